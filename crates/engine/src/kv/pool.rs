//! The blocks of the KV cache: who holds how many, and what can be had.
//!
//! Every block is empty, held by one or more [`super::BlockTable`]s, or idle: nobody holds it, but
//! what it holds is known and may be asked for again. An idle block is as good as an empty one; it
//! is emptied, the longest unused first, when no empty one is left.
//!
//! The pool is a plain struct with one owner and counts the tables itself; ids stay in the tables.
//! "No free block" is an answer, not an error.

use forthwith_core::executor::KvGeometry;
use forthwith_core::units::{BlockId, Blocks, Tokens};

use super::idle::IdleList;
use super::prefix::{Content, Known, PrefixCacheConfig, PrefixIndex};

/// Gives, shares and takes back blocks, each in constant time.
#[derive(Debug)]
pub(crate) struct BlockPool {
    empty: Vec<BlockId>,
    idle: IdleList,
    /// For each block, how many tables hold it.
    holders: Vec<u32>,
    index: PrefixIndex,
    block_size: Tokens,
    evictions: u64,
}

/// What became of a block whose content was made known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// It is found from now on.
    Now,
    /// Another block holds the same.
    Before(BlockId),
    /// It cannot be found: another content has its hash, or it is shared already without being
    /// known.
    Never,
}

impl BlockPool {
    /// All of a backend's blocks, empty.
    pub(crate) fn new(geometry: KvGeometry, config: PrefixCacheConfig) -> Self {
        let blocks = geometry.blocks.get();
        let mut pool = Self {
            empty: Vec::with_capacity(blocks),
            idle: IdleList::new(blocks),
            holders: vec![0; blocks],
            index: PrefixIndex::new(config, geometry.block_size.get(), blocks),
            block_size: geometry.block_size,
            evictions: 0,
        };
        pool.reset();
        pool
    }

    /// Makes every block empty again; all tables must have been dropped.
    pub(crate) fn reset(&mut self) {
        self.empty.clear();
        self.idle.clear();
        self.index.clear();
        self.holders.fill(0);
        let count = u32::try_from(self.holders.len()).expect("block ids fit 32 bits");
        self.empty.extend((0..count).rev().map(BlockId::new));
    }

    /// A block for one table, if nobody else needs it.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        let block = match self.empty.pop() {
            Some(block) => block,
            None => self.evict()?,
        };
        self.holders[block.index()] = 1;
        Some(block)
    }

    /// Whoever holds a block holds those before it and gives them back later, so the longest
    /// unused block is never one on which others build.
    fn evict(&mut self) -> Option<BlockId> {
        let block = self.idle.oldest()?;
        self.idle.remove(block);
        self.index.evict(block);
        self.evictions += 1;
        Some(block)
    }

    /// Lets one more table hold a block that is held or idle.
    pub(crate) fn share(&mut self, block: BlockId) {
        if self.is_idle(block) {
            self.idle.remove(block);
        }
        self.holders[block.index()] += 1;
    }

    /// Takes a block back from one table.
    pub(crate) fn give(&mut self, block: BlockId) {
        let holders = &mut self.holders[block.index()];
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        if self.index.holds(block) {
            self.idle.push(block);
        } else {
            self.empty.push(block);
        }
    }

    /// Makes known what a held block holds; from now on nobody may write it.
    pub(crate) fn publish(&mut self, block: BlockId, content: &Content<'_>) -> Published {
        match self.index.find(content) {
            Known::As(other) => Published::Before(other),
            Known::Collides => Published::Never,
            // Another holder may have come to it by other blocks, which can be given up sooner.
            Known::No if self.holders[block.index()] > 1 => Published::Never,
            Known::No => {
                self.index.insert(block, content);
                Published::Now
            }
        }
    }

    pub(crate) fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// Whether nobody holds a known block.
    pub(crate) fn is_idle(&self, block: BlockId) -> bool {
        self.holders[block.index()] == 0
    }

    /// Whether only one table holds a block and nothing is known of it.
    pub(crate) fn is_private(&self, block: BlockId) -> bool {
        self.holders[block.index()] == 1 && !self.index.holds(block)
    }

    /// How many blocks can be taken.
    pub(crate) fn free(&self) -> Blocks {
        Blocks::new(self.empty.len() + self.idle.len())
    }

    /// How many of the free blocks hold something known.
    pub(crate) fn cached(&self) -> Blocks {
        Blocks::new(self.idle.len())
    }

    /// How many blocks there are.
    pub(crate) fn total(&self) -> Blocks {
        Blocks::new(self.holders.len())
    }

    /// How many blocks tables hold.
    pub(crate) fn used(&self) -> Blocks {
        self.total() - self.free()
    }

    /// How often a known block was emptied.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Positions in one block.
    pub(crate) fn block_size(&self) -> Tokens {
        self.block_size
    }

    /// Checks that counts equal owners, that every block is in one place, and that nothing is
    /// known of an empty block.
    ///
    /// # Panics
    /// If not: a block was lost, or given once too often.
    pub(crate) fn check_invariants<'a>(&'a self, tables: impl Iterator<Item = &'a [BlockId]>) {
        let mut owners = vec![0_u32; self.holders.len()];
        for block in tables.flatten() {
            owners[block.index()] += 1;
        }
        for (block, (&owners, &holders)) in owners.iter().zip(&self.holders).enumerate() {
            assert_eq!(owners, holders, "cache block {block} has {owners} owners");
        }
        let mut places = owners;
        for block in &self.empty {
            assert!(!self.index.holds(*block), "an empty block is known");
            places[block.index()] += 1;
        }
        for block in self.idle.iter() {
            assert!(self.index.holds(block), "an idle block is unknown");
            places[block.index()] += 1;
            if let Some(parent) = self.index.parent(block) {
                let still = !self.is_idle(parent) || self.index.holds(parent);
                assert!(still, "a block outlives its parent");
            }
        }
        assert!(places.iter().all(|&count| count > 0), "a block is lost");
        let in_one_place = self.empty.len()
            + self.idle.len()
            + self.holders.iter().filter(|&&holders| holders > 0).count();
        assert_eq!(in_one_place, self.holders.len(), "a block is in two places");
        self.index.check_invariants();
    }
}
