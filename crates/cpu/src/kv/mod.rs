//! The memory of the paged KV cache: one run per block, in it one per layer.
//!
//! Fresh blocks touch fresh memory one after the other, and the system hands it out in huge pages: were
//! the blocks of each layer side by side, all layers would come to the end of their pages in the same step,
//! which then waits for as many pages as there are layers (0.2 s were seen, once in 85 blocks).
//!
//! Within a block, keys lie `[kv_head][head_dim][position]` (so that eight positions are scored at
//! once) and values `[kv_head][position][head_dim]`. In a scaled format the scales of a head
//! follow its elements, as half floats `[group][position]`.

mod format;

pub(crate) use format::{
    BrainStore, ByteStore, Encode, HalfStore, SCALE_GROUP, SingleStore, Store,
};
pub use format::{KvFormat, UnknownKvFormat};

use crate::isa::IsaChoice;
use crate::memory::{Buffer, OutOfMemory, SharedSlice};
use forthwith_core::program::{KvLayer, Program};
use forthwith_core::units::{BlockId, Blocks, Bytes, Tokens};

/// Positions in one block.
pub const BLOCK_SIZE: Tokens = Tokens::new(BLOCK);
pub(crate) const BLOCK: usize = 32;
/// The longest head that fits the stack buffers of the attention phase.
pub(crate) const MAX_HEAD_DIM: usize = 512;

/// The bytes of one block over all layers.
pub fn kv_block_bytes(program: &Program, format: KvFormat) -> Bytes {
    let layer = |layer: &KvLayer| 2 * layer.kv_heads * format.head_bytes(layer.head_dim);
    Bytes::new(program.kv_layers.iter().map(layer).sum::<usize>() as u64)
}

/// All layers' keys and values.
pub(crate) struct KvCache {
    memory: Buffer<u8>,
    layout: Vec<LayerLayout>,
    format: KvFormat,
    blocks: usize,
    /// Bytes of one block over all layers.
    block: usize,
}

#[derive(Clone, Copy)]
struct LayerLayout {
    /// From one block to the next, in bytes.
    block: usize,
    /// Where the layer begins in a block.
    start: usize,
    layer: KvLayer,
    /// Bytes of the keys (or of the values) of one head in one block.
    head: usize,
}

impl LayerLayout {
    /// Bytes of the keys (or of the values) of one block.
    fn half(self) -> usize {
        self.layer.kv_heads * self.head
    }
}

/// All layers' caches while a step runs.
#[derive(Clone, Copy)]
pub(crate) struct KvLayers<'a> {
    memory: SharedSlice<'a, u8>,
    layout: &'a [LayerLayout],
    format: KvFormat,
}

/// One layer's cache while a step runs.
#[derive(Clone, Copy)]
pub(crate) struct KvView<'a> {
    memory: SharedSlice<'a, u8>,
    layout: LayerLayout,
    format: KvFormat,
}

impl KvCache {
    pub(crate) fn new(
        program: &Program,
        format: KvFormat,
        blocks: Blocks,
    ) -> Result<Self, OutOfMemory> {
        let block = kv_block_bytes(program, format).get();
        let block = usize::try_from(block).unwrap_or(usize::MAX);
        let mut start = 0;
        let mut layout = Vec::new();
        for &layer in &program.kv_layers {
            let entry = LayerLayout {
                block,
                start,
                layer,
                head: format.head_bytes(layer.head_dim),
            };
            start += 2 * entry.half();
            layout.push(entry);
        }
        Ok(Self {
            memory: Buffer::zeroed(block.saturating_mul(blocks.get()))?,
            layout,
            format,
            blocks: blocks.get(),
            block,
        })
    }

    pub(crate) fn blocks(&self) -> Blocks {
        Blocks::new(self.blocks)
    }

    pub(crate) fn format(&self) -> KvFormat {
        self.format
    }

    /// Views of all layers.
    pub(crate) fn layers(&mut self) -> KvLayers<'_> {
        KvLayers {
            memory: self.memory.shared(),
            layout: &self.layout,
            format: self.format,
        }
    }

    pub(crate) fn copy_block(&mut self, from: BlockId, to: BlockId) {
        let start = from.index() * self.block;
        self.memory
            .copy_within(start..start + self.block, to.index() * self.block);
    }
}

impl<'a> KvLayers<'a> {
    pub(crate) fn layer(self, index: usize) -> KvView<'a> {
        KvView {
            memory: self.memory,
            layout: self.layout[index],
            format: self.format,
        }
    }
}

impl<'a> KvView<'a> {
    pub(crate) fn layer(self) -> KvLayer {
        self.layout.layer
    }

    pub(crate) fn format(self) -> KvFormat {
        self.format
    }

    /// Where the keys of a head in a block start; values start `half` later.
    fn start(self, block: BlockId, head: usize) -> usize {
        let layout = self.layout;
        block.index() * layout.block + layout.start + head * layout.head
    }

    /// Keys of one head in one block: `[head_dim][position]`, then scales.
    ///
    /// # Safety
    /// No thread writes to the block meanwhile.
    pub(crate) unsafe fn keys(self, block: BlockId, head: usize) -> &'a [u8] {
        let start = self.start(block, head);
        // SAFETY: passed on to the caller.
        unsafe { self.memory.range(start..start + self.layout.head) }
    }

    /// Values of one head in one block: `[position][head_dim]`, then scales.
    ///
    /// # Safety
    /// No thread writes to the block meanwhile.
    pub(crate) unsafe fn values(self, block: BlockId, head: usize) -> &'a [u8] {
        let start = self.start(block, head) + self.layout.half();
        // SAFETY: passed on to the caller.
        unsafe { self.memory.range(start..start + self.layout.head) }
    }

    /// Stores one position's key and value of one head into its block.
    ///
    /// # Safety
    /// No other thread touches this position of this head meanwhile.
    pub(crate) unsafe fn write(
        self,
        isa: IsaChoice,
        (block, head, slot): (BlockId, usize, usize),
        key: &[f32],
        value: &[f32],
    ) {
        let start = self.start(block, head);
        let mut buffer = [0; 4 * MAX_HEAD_DIM];
        // SAFETY: passed on to the caller.
        unsafe {
            let elements = self.encode(isa, (start, slot), key, &mut buffer);
            match self.format.element_bytes() {
                1 => self.scatter::<1>(start, slot, elements),
                2 => self.scatter::<2>(start, slot, elements),
                _ => self.scatter::<4>(start, slot, elements),
            }
            let start = start + self.layout.half();
            let elements = self.encode(isa, (start, slot), value, &mut buffer);
            let at = start + slot * elements.len();
            self.memory
                .range_mut(at..at + elements.len())
                .copy_from_slice(elements);
        }
    }

    /// Stores a key of elements of `SIZE` bytes, one in each row of positions.
    ///
    /// # Safety
    /// No other thread touches this position of this head meanwhile.
    unsafe fn scatter<const SIZE: usize>(self, start: usize, slot: usize, elements: &[u8]) {
        let (elements, _) = elements.as_chunks::<SIZE>();
        for (row, element) in elements.iter().enumerate() {
            let at = start + (row * BLOCK + slot) * SIZE;
            // SAFETY: passed on to the caller.
            let place = unsafe { self.memory.range_mut(at..at + SIZE) };
            // Of a known size, so that no function is called for it.
            if let Some(place) = place.first_chunk_mut() {
                *place = *element;
            }
        }
    }

    /// Encodes a head, stores its scales behind the elements of `start` and returns the elements.
    ///
    /// # Safety
    /// No other thread touches this position of this head meanwhile.
    unsafe fn encode<'b>(
        self,
        isa: IsaChoice,
        (start, slot): (usize, usize),
        head: &[f32],
        buffer: &'b mut [u8],
    ) -> &'b [u8] {
        let (format, size) = (self.format, self.format.element_bytes());
        let elements = &mut buffer[..size * head.len()];
        let mut scales = [0; MAX_HEAD_DIM.div_ceil(SCALE_GROUP)];
        isa.run(Encode {
            format,
            head,
            elements,
            scales: &mut scales,
        });
        let scales_start = start + size * head.len() * BLOCK;
        let groups = (self.layout.head - size * head.len() * BLOCK) / (2 * BLOCK);
        for (group, scale) in scales.iter().enumerate().take(groups) {
            let at = scales_start + 2 * (group * BLOCK + slot);
            // SAFETY: passed on to the caller.
            unsafe {
                self.memory
                    .range_mut(at..at + 2)
                    .copy_from_slice(&scale.to_le_bytes());
            };
        }
        elements
    }
}
