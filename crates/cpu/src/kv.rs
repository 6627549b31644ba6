//! The memory of the paged KV cache: half floats, one run per layer and block.
//!
//! Within a block, keys lie `[kv_head][head_dim][position]` (so that eight positions are scored at
//! once) and values `[kv_head][position][head_dim]`.

use crate::memory::{Buffer, OutOfMemory, SharedSlice};
use forthwith_core::program::{KvLayer, Program};
use forthwith_core::units::{BlockId, Blocks, Bytes, Tokens};

/// Positions in one block.
pub const BLOCK_SIZE: Tokens = Tokens::new(BLOCK);
pub(crate) const BLOCK: usize = 32;

/// The bytes of one block over all layers.
pub fn kv_block_bytes(program: &Program) -> Bytes {
    Bytes::new((program.kv_elements_per_token() * BLOCK * size_of::<u16>()) as u64)
}

/// All layers' keys and values.
pub(crate) struct KvCache {
    memory: Buffer<u16>,
    layout: Vec<LayerLayout>,
    blocks: usize,
}

#[derive(Clone, Copy)]
struct LayerLayout {
    start: usize,
    layer: KvLayer,
}

impl LayerLayout {
    /// Elements of the keys (or of the values) of one block.
    fn half(self) -> usize {
        self.layer.kv_heads * self.layer.head_dim * BLOCK
    }
}

/// One layer's cache while a step runs.
#[derive(Clone, Copy)]
pub(crate) struct KvView<'a> {
    memory: SharedSlice<'a, u16>,
    layout: LayerLayout,
}

impl KvCache {
    pub(crate) fn new(program: &Program, blocks: Blocks) -> Result<Self, OutOfMemory> {
        let mut start = 0;
        let mut layout = Vec::new();
        for &layer in &program.kv_layers {
            let entry = LayerLayout { start, layer };
            start += 2 * entry.half() * blocks.get();
            layout.push(entry);
        }
        Ok(Self {
            memory: Buffer::zeroed(start)?,
            layout,
            blocks: blocks.get(),
        })
    }

    pub(crate) fn blocks(&self) -> Blocks {
        Blocks::new(self.blocks)
    }

    /// A copyable view of one layer.
    #[cfg(test)]
    pub(crate) fn view(&mut self, layer: usize) -> KvView<'_> {
        let layout = self.layout[layer];
        KvView {
            memory: self.memory.shared(),
            layout,
        }
    }

    /// Views of all layers.
    pub(crate) fn views(&mut self) -> Vec<KvView<'_>> {
        let memory = self.memory.shared();
        self.layout
            .iter()
            .map(|&layout| KvView { memory, layout })
            .collect()
    }

    pub(crate) fn copy_block(&mut self, from: BlockId, to: BlockId) {
        for layout in &self.layout {
            let size = 2 * layout.half();
            let start = layout.start + from.index() * size;
            self.memory
                .copy_within(start..start + size, layout.start + to.index() * size);
        }
    }
}

impl<'a> KvView<'a> {
    pub(crate) fn layer(self) -> KvLayer {
        self.layout.layer
    }

    fn block_start(self, block: BlockId) -> usize {
        self.layout.start + block.index() * 2 * self.layout.half()
    }

    /// Keys of one head in one block: `[head_dim][position]`.
    ///
    /// # Safety
    /// No thread writes to the block meanwhile.
    pub(crate) unsafe fn keys(self, block: BlockId, head: usize) -> &'a [u16] {
        let size = self.layout.layer.head_dim * BLOCK;
        let start = self.block_start(block) + head * size;
        // SAFETY: passed on to the caller.
        unsafe { self.memory.range(start..start + size) }
    }

    /// Values of one head in one block: `[position][head_dim]`.
    ///
    /// # Safety
    /// No thread writes to the block meanwhile.
    pub(crate) unsafe fn values(self, block: BlockId, head: usize) -> &'a [u16] {
        let size = self.layout.layer.head_dim * BLOCK;
        let start = self.block_start(block) + self.layout.half() + head * size;
        // SAFETY: passed on to the caller.
        unsafe { self.memory.range(start..start + size) }
    }

    /// Stores one position's key (of one head) into its block.
    ///
    /// # Safety
    /// No other thread touches this position of this head meanwhile.
    pub(crate) unsafe fn write_key(self, block: BlockId, head: usize, slot: usize, key: &[u16]) {
        let size = self.layout.layer.head_dim * BLOCK;
        let start = self.block_start(block) + head * size + slot;
        for (i, &element) in key.iter().enumerate() {
            let at = start + i * BLOCK;
            // SAFETY: one element, which only this thread writes.
            unsafe { self.memory.range_mut(at..at + 1)[0] = element };
        }
    }

    /// Stores one position's value (of one head) into its block.
    ///
    /// # Safety
    /// No other thread touches this position of this head meanwhile.
    pub(crate) unsafe fn write_value(
        self,
        block: BlockId,
        head: usize,
        slot: usize,
        value: &[u16],
    ) {
        let head_dim = self.layout.layer.head_dim;
        let start = self.block_start(block) + self.layout.half() + (head * BLOCK + slot) * head_dim;
        // SAFETY: passed on to the caller.
        unsafe {
            self.memory
                .range_mut(start..start + head_dim)
                .copy_from_slice(value);
        };
    }
}
