//! The memory that a step works in, sized once at load.

use crate::kv::BLOCK;
use crate::memory::{Buffer, OutOfMemory, SharedSlice};
use crate::phases::attention::SPLIT;
use crate::quant::{Activations, ActivationsView, LANES, panel_bytes};
use forthwith_core::program::{Phase, Program};
use forthwith_core::units::{Blocks, Bytes, Tokens};

/// Queries of one tile of attention, in tokens.
pub(super) const TILE_TOKENS: usize = 8;
/// Up to this many tokens in a step, splits of the context are divided among the team.
pub(super) const SPLIT_TOKENS: usize = 16;

/// The lengths of all buffers.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    tokens: usize,
    hidden: usize,
    qkv: usize,
    attended: usize,
    gated: usize,
    projected: usize,
    /// The widest row that is normed or quantized.
    widest: usize,
    /// Floats of rope tables per token.
    ropes: usize,
    /// Floats of a softmax state per token, over all heads.
    states: usize,
    /// Floats of a tile's states.
    tile_states: usize,
    splits: usize,
}

impl Sizes {
    pub(super) fn of(program: &Program, max_step_tokens: Tokens, blocks: Blocks) -> Self {
        let widths = program.buffer_widths();
        let post_norm = program.phases.iter().any(|phase| match phase {
            Phase::OutputResidual(phase) | Phase::DownResidual(phase) => phase.post_norm.is_some(),
            _ => false,
        });
        let (mut states, mut tile_states) = (0, 0);
        for phase in &program.phases {
            if let Phase::Attention(phase) = phase {
                let layer = program.kv_layers[phase.layer];
                let size = layer.head_dim + 2;
                states = states.max(phase.heads * size);
                tile_states = tile_states.max(TILE_TOKENS * phase.heads / layer.kv_heads * size);
            }
        }
        let positions = (blocks.get() * BLOCK).min(program.context.get().max(1));
        Self {
            tokens: max_step_tokens.get(),
            hidden: program.hidden,
            qkv: widths.qkv,
            attended: widths.attended,
            gated: widths.gated,
            projected: if post_norm { program.hidden } else { 0 },
            widest: program.hidden.max(widths.attended).max(widths.gated),
            ropes: program
                .ropes
                .iter()
                .map(|rope| 2 * rope.inverse_frequencies.len())
                .sum(),
            states,
            tile_states,
            splits: positions.div_ceil(SPLIT),
        }
    }

    fn split_states(self) -> usize {
        SPLIT_TOKENS * self.splits * self.states
    }

    fn bytes(self, threads: usize) -> usize {
        let rows =
            self.hidden + self.qkv + self.attended + self.gated + self.projected + self.ropes;
        let thread = 2 * self.tokens * LANES + self.widest + 2 * self.tile_states;
        4 * (self.tokens * rows + self.split_states() + threads * thread)
            + threads * panel_bytes(self.widest)
            + Activations::bytes(self.tokens, self.widest)
    }
}

/// The bytes that a step's buffers take.
pub fn workspace_bytes(
    program: &Program,
    max_step_tokens: Tokens,
    blocks: Blocks,
    threads: usize,
) -> Bytes {
    Bytes::new(Sizes::of(program, max_step_tokens, blocks).bytes(threads) as u64)
}

/// All buffers of a step.
pub(super) struct Workspace {
    sizes: Sizes,
    residual: Buffer<f32>,
    qkv: Buffer<f32>,
    attended: Buffer<f32>,
    gated: Buffer<f32>,
    projected: Buffer<f32>,
    ropes: Buffer<f32>,
    split_states: Buffer<f32>,
    activations: Activations,
    threads: Vec<ThreadBuffers>,
}

struct ThreadBuffers {
    floats: Buffer<f32>,
    panel: Buffer<u8>,
}

/// The same, shared by the team.
#[derive(Clone)]
pub(super) struct WorkspaceView<'a> {
    pub(super) residual: SharedSlice<'a, f32>,
    pub(super) qkv: SharedSlice<'a, f32>,
    pub(super) attended: SharedSlice<'a, f32>,
    pub(super) gated: SharedSlice<'a, f32>,
    pub(super) projected: SharedSlice<'a, f32>,
    pub(super) ropes: SharedSlice<'a, f32>,
    pub(super) split_states: SharedSlice<'a, f32>,
    pub(super) splits: usize,
    pub(super) activations: ActivationsView<'a>,
    threads: Vec<(SharedSlice<'a, f32>, SharedSlice<'a, u8>)>,
    sizes: Sizes,
}

/// One member's own memory.
pub(super) struct Scratch<'a> {
    /// `[tokens, 8]`
    pub(super) tile: &'a mut [f32],
    /// `[tokens, 8]`
    pub(super) second_tile: &'a mut [f32],
    /// The widest row.
    pub(super) row: &'a mut [f32],
    /// Softmax states of a tile of queries, so far.
    pub(super) totals: &'a mut [f32],
    /// Softmax states of the same tile, of one split.
    pub(super) states: &'a mut [f32],
    /// An expanded group of a matrix.
    pub(super) panel: &'a mut [u8],
}

impl Workspace {
    pub(super) fn new(sizes: Sizes, threads: usize) -> Result<Self, OutOfMemory> {
        let thread = || {
            let floats = 2 * sizes.tokens * LANES + sizes.widest + 2 * sizes.tile_states;
            Ok(ThreadBuffers {
                floats: Buffer::zeroed(floats)?,
                panel: Buffer::zeroed(panel_bytes(sizes.widest))?,
            })
        };
        Ok(Self {
            sizes,
            residual: Buffer::zeroed(sizes.tokens * sizes.hidden)?,
            qkv: Buffer::zeroed(sizes.tokens * sizes.qkv)?,
            attended: Buffer::zeroed(sizes.tokens * sizes.attended)?,
            gated: Buffer::zeroed(sizes.tokens * sizes.gated)?,
            projected: Buffer::zeroed(sizes.tokens * sizes.projected)?,
            ropes: Buffer::zeroed(sizes.tokens * sizes.ropes)?,
            split_states: Buffer::zeroed(sizes.split_states())?,
            activations: Activations::new(sizes.tokens, sizes.widest)?,
            threads: (0..threads)
                .map(|_| thread())
                .collect::<Result<_, OutOfMemory>>()?,
        })
    }

    pub(super) fn view(&mut self) -> WorkspaceView<'_> {
        let threads = self.threads.iter_mut();
        WorkspaceView {
            residual: self.residual.shared(),
            qkv: self.qkv.shared(),
            attended: self.attended.shared(),
            gated: self.gated.shared(),
            projected: self.projected.shared(),
            ropes: self.ropes.shared(),
            split_states: self.split_states.shared(),
            splits: self.sizes.splits,
            activations: self.activations.view(self.sizes.hidden),
            threads: threads
                .map(|own| (own.floats.shared(), own.panel.shared()))
                .collect(),
            sizes: self.sizes,
        }
    }
}

impl<'a> WorkspaceView<'a> {
    /// The memory of one member; each member asks once per step, for its own number.
    pub(super) fn scratch(&self, member: usize) -> Scratch<'a> {
        let (floats, panel) = self.threads[member];
        let (tile, widest) = (self.sizes.tokens * LANES, self.sizes.widest);
        let states = self.sizes.tile_states;
        // SAFETY: only this member asks for these buffers, once per step.
        let (floats, panel) = unsafe {
            let floats = floats.range_mut(0..2 * tile + widest + 2 * states);
            (floats, panel.range_mut(0..panel_bytes(widest)))
        };
        let (first, rest) = floats.split_at_mut(tile);
        let (second, rest) = rest.split_at_mut(tile);
        let (row, rest) = rest.split_at_mut(widest);
        let (totals, states) = rest.split_at_mut(states);
        Scratch {
            tile: first,
            second_tile: second,
            row,
            totals,
            states,
            panel,
        }
    }
}
