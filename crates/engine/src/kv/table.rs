//! The blocks of one sequence, in order of position.
//!
//! The first of them may be shared with other tables; those are full and never written again.

use forthwith_core::units::{BlockId, Blocks, Tokens};

use super::BlockPool;

/// Owns its blocks. It cannot be cloned, and only [`BlockTable::release`] gives the blocks back.
#[derive(Debug, Default)]
#[must_use = "a table that is dropped loses its blocks"]
pub(crate) struct BlockTable {
    blocks: Vec<BlockId>,
}

impl BlockTable {
    /// The blocks in order of position.
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Gets memory for the ids of this many blocks, before it holds any.
    pub(crate) fn reserve(&mut self, blocks: Blocks) {
        self.blocks.reserve_exact(blocks.get());
    }

    /// How many more blocks are needed to hold this many tokens.
    pub(crate) fn missing(&self, tokens: Tokens, pool: &BlockPool) -> Blocks {
        tokens
            .blocks_needed(pool.block_size())
            .saturating_sub(Blocks::new(self.blocks.len()))
    }

    /// Takes the blocks that are missing to hold this many tokens; false, and nothing changes, if
    /// the pool has too few.
    pub(crate) fn grow(&mut self, tokens: Tokens, pool: &mut BlockPool) -> bool {
        let missing = self.missing(tokens, pool);
        if missing > pool.free() {
            return false;
        }
        self.blocks
            .extend((0..missing.get()).map_while(|_| pool.take()));
        true
    }

    /// Holds, before it holds anything, the blocks of a text that begins like its own.
    pub(crate) fn share(&mut self, blocks: &[BlockId], pool: &mut BlockPool) {
        debug_assert!(self.blocks.is_empty(), "shared blocks come first");
        for &block in blocks {
            pool.share(block);
            self.blocks.push(block);
        }
    }

    /// Holds another block with the same content in place of its own.
    pub(crate) fn replace(&mut self, index: usize, block: BlockId, pool: &mut BlockPool) {
        pool.share(block);
        pool.give(std::mem::replace(&mut self.blocks[index], block));
    }

    /// Gives all blocks back, the last one first, so that they are taken again in order.
    pub(crate) fn release(self, pool: &mut BlockPool) {
        for block in self.blocks.into_iter().rev() {
            pool.give(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use forthwith_core::executor::KvGeometry;
    use forthwith_core::units::Bytes;
    use proptest::prelude::*;

    use super::super::PrefixCacheConfig;
    use super::*;

    fn pool(blocks: usize) -> BlockPool {
        let geometry = KvGeometry {
            block_size: Tokens::new(4),
            block_bytes: Bytes::new(1),
            blocks: Blocks::new(blocks),
        };
        BlockPool::new(geometry, PrefixCacheConfig::default())
    }

    #[test]
    fn grows_by_what_is_missing_and_refuses_whole() {
        let mut pool = pool(3);
        let mut table = BlockTable::default();
        assert!(table.grow(Tokens::new(5), &mut pool));
        assert!(table.grow(Tokens::new(8), &mut pool));
        assert_eq!(table.blocks().len(), 2);
        assert!(!table.grow(Tokens::new(13), &mut pool));
        assert_eq!(pool.used(), Blocks::new(2));
        table.release(&mut pool);
        assert_eq!(pool.free(), pool.total());
    }

    #[test]
    #[should_panic(expected = "owners")]
    fn a_lost_block_is_noticed() {
        let mut pool = pool(3);
        let mut table = BlockTable::default();
        assert!(table.grow(Tokens::new(1), &mut pool));
        pool.check_invariants(std::iter::empty());
    }

    proptest! {
        #[test]
        fn blocks_are_never_lost_or_shared(steps in prop::collection::vec((0_usize..4, 0_usize..40), 1..60)) {
            let mut pool = pool(17);
            let mut tables: Vec<BlockTable> = (0..4).map(|_| BlockTable::default()).collect();
            for (index, tokens) in steps {
                if tokens == 0 {
                    std::mem::take(&mut tables[index]).release(&mut pool);
                } else {
                    let missing = tables[index].missing(Tokens::new(tokens), &pool);
                    let fits = missing <= pool.free();
                    prop_assert_eq!(tables[index].grow(Tokens::new(tokens), &mut pool), fits);
                }
                pool.check_invariants(tables.iter().map(BlockTable::blocks));
            }
        }
    }
}
