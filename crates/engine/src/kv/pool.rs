//! The free blocks of the KV cache.
//!
//! Every block is either here or in exactly one [`super::BlockTable`]. The pool is a plain struct
//! with one owner: blocks move, nothing counts them from afar. "No free block" is an answer, not
//! an error.

use forthwith_core::executor::KvGeometry;
use forthwith_core::units::{BlockId, Blocks, Tokens};

/// Gives and takes back blocks, each in constant time.
#[derive(Debug)]
pub(crate) struct BlockPool {
    free: Vec<BlockId>,
    total: Blocks,
    block_size: Tokens,
}

impl BlockPool {
    /// All of a backend's blocks, free.
    pub(crate) fn new(geometry: KvGeometry) -> Self {
        let mut pool = Self {
            free: Vec::with_capacity(geometry.blocks.get()),
            total: geometry.blocks,
            block_size: geometry.block_size,
        };
        pool.reset();
        pool
    }

    /// Makes every block free again; all tables must have been dropped.
    pub(crate) fn reset(&mut self) {
        self.free.clear();
        let count = u32::try_from(self.total.get()).expect("block ids fit 32 bits");
        self.free.extend((0..count).rev().map(BlockId::new));
    }

    /// A free block, if there is one.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        self.free.pop()
    }

    /// Takes a block back.
    pub(crate) fn give(&mut self, block: BlockId) {
        self.free.push(block);
    }

    /// How many blocks are free.
    pub(crate) fn free(&self) -> Blocks {
        Blocks::new(self.free.len())
    }

    /// How many blocks there are.
    pub(crate) fn total(&self) -> Blocks {
        self.total
    }

    /// How many blocks tables hold.
    pub(crate) fn used(&self) -> Blocks {
        self.total - self.free()
    }

    /// Positions in one block.
    pub(crate) fn block_size(&self) -> Tokens {
        self.block_size
    }

    /// Checks that every block is free or in exactly one table.
    ///
    /// # Panics
    /// If not: a block was lost, given twice or shared.
    pub(crate) fn check_invariants<'a>(&'a self, tables: impl Iterator<Item = &'a [BlockId]>) {
        let mut owners = vec![0_u32; self.total.get()];
        for blocks in tables.chain([self.free.as_slice()]) {
            for block in blocks {
                owners[block.index()] += 1;
            }
        }
        if let Some(block) = owners.iter().position(|&count| count != 1) {
            panic!("cache block {block} has {} owners", owners[block]);
        }
    }
}
