//! The memory that a step works in, sized once at load.

use super::experts::{ExpertSizes, ExpertSpace, ExpertView};
use crate::kv::BLOCK;
use crate::memory::{Buffer, OutOfMemory, SharedSlice};
use crate::phases::attention::{Query, SPLIT};
use crate::quant::{Activations, ActivationsView, FEW_TILES, LANES, panel_bytes};
use forthwith_core::program::{Phase, Program};
use forthwith_core::units::{Bytes, Tokens};

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
    /// The widest row between the layers of a head.
    pooled: usize,
    /// The widest row that is normed or quantized.
    widest: usize,
    /// Floats of rope tables per token.
    ropes: usize,
    /// Floats of a softmax state per token, over all heads.
    states: usize,
    /// Floats of a tile's states.
    tile_states: usize,
    /// Queries of a tile.
    tile_queries: usize,
    /// Floats of the keys and values of one head in one block.
    opened: usize,
    splits: usize,
    experts: ExpertSizes,
}

impl Sizes {
    pub(super) fn of(program: &Program, max_step_tokens: Tokens, context: Tokens) -> Self {
        let widths = program.buffer_widths();
        let post_norm = program.phases.iter().any(|phase| match phase {
            Phase::OutputResidual(phase) | Phase::DownResidual(phase) => phase.post_norm.is_some(),
            _ => false,
        });
        let mut head = 0;
        if let Some(Phase::Pool(pool)) = program.phases.last() {
            let weights = pool.layers.iter().map(|layer| layer.linear.weight);
            let widths = weights.map(|id| program.weight(id).rows.max(program.weight(id).cols));
            head = widths.max().unwrap_or(0);
        }
        let (mut states, mut tile_states, mut tile_queries) = (0, 0, 0);
        let mut opened = 0;
        for phase in &program.phases {
            if let Phase::Attention(phase) = phase {
                let layer = program.kv_layers[phase.layer];
                let size = layer.head_dim + 2;
                states = states.max(phase.heads * size);
                opened = opened.max(2 * BLOCK * layer.head_dim);
                let queries = TILE_TOKENS * (phase.heads / layer.kv_heads);
                tile_states = tile_states.max(queries * size);
                tile_queries = tile_queries.max(queries);
            }
        }
        Self {
            tokens: max_step_tokens.get(),
            hidden: program.hidden,
            qkv: widths.qkv,
            attended: widths.attended,
            gated: widths.gated,
            projected: if post_norm { program.hidden } else { 0 },
            pooled: head,
            widest: [program.hidden, widths.attended, widths.gated, head]
                .into_iter()
                .max()
                .unwrap_or(0),
            ropes: program
                .ropes
                .iter()
                .map(|rope| 2 * rope.inverse_frequencies.len())
                .sum(),
            states,
            tile_states,
            tile_queries,
            opened,
            splits: context.get().div_ceil(SPLIT).max(1),
            experts: ExpertSizes::of(program, max_step_tokens.get()),
        }
    }

    fn split_states(self) -> usize {
        SPLIT_TOKENS * self.splits * self.states
    }

    /// Floats of the tiles of a product, `[groups, tokens, 16]`.
    fn tile(self) -> usize {
        self.tokens.max(FEW_TILES) * LANES
    }

    /// Floats of one member, in whole cache lines so that no two members share one.
    fn member_floats(self) -> usize {
        let tiles = 2 * self.tile() + 2 * self.tile_states;
        (tiles + self.opened + self.widest).next_multiple_of(16)
    }

    /// Bytes of one member's panel, in whole cache lines.
    fn member_panel(self) -> usize {
        panel_bytes(self.widest.max(self.experts.widest())).next_multiple_of(64)
    }

    fn bytes(self, threads: usize) -> usize {
        let rows = self.hidden
            + self.qkv
            + self.attended
            + self.gated
            + self.projected
            + self.pooled
            + self.ropes;
        4 * (self.tokens * rows + self.split_states() + threads * self.member_floats())
            + threads * (self.member_panel() + self.tile_queries * size_of::<Query>())
            + Activations::bytes(self.tokens, self.widest)
            + self.experts.bytes()
    }
}

/// The bytes that a step's buffers take, for sequences of at most `context` tokens.
pub fn workspace_bytes(
    program: &Program,
    max_step_tokens: Tokens,
    context: Tokens,
    threads: usize,
) -> Bytes {
    Bytes::new(Sizes::of(program, max_step_tokens, context).bytes(threads) as u64)
}

/// All buffers of a step.
pub(super) struct Workspace {
    sizes: Sizes,
    residual: Buffer<f32>,
    qkv: Buffer<f32>,
    attended: Buffer<f32>,
    gated: Buffer<f32>,
    projected: Buffer<f32>,
    pooled: Buffer<f32>,
    ropes: Buffer<f32>,
    split_states: Buffer<f32>,
    activations: Activations,
    experts: ExpertSpace,
    /// What members have for themselves, one after the other.
    floats: Buffer<f32>,
    panels: Buffer<u8>,
    queries: Buffer<Query>,
}

/// The same, shared by the team.
#[derive(Clone, Copy)]
pub(super) struct WorkspaceView<'a> {
    pub(super) residual: SharedSlice<'a, f32>,
    pub(super) qkv: SharedSlice<'a, f32>,
    pub(super) attended: SharedSlice<'a, f32>,
    pub(super) gated: SharedSlice<'a, f32>,
    pub(super) projected: SharedSlice<'a, f32>,
    pub(super) pooled: SharedSlice<'a, f32>,
    pub(super) ropes: SharedSlice<'a, f32>,
    pub(super) split_states: SharedSlice<'a, f32>,
    pub(super) splits: usize,
    pub(super) activations: ActivationsView<'a>,
    pub(super) experts: ExpertView<'a>,
    floats: SharedSlice<'a, f32>,
    panels: SharedSlice<'a, u8>,
    queries: SharedSlice<'a, Query>,
    sizes: Sizes,
}

/// One member's own memory.
pub(super) struct Scratch<'a> {
    /// `[groups, tokens, 16]`
    pub(super) tile: &'a mut [f32],
    /// `[groups, tokens, 16]`
    pub(super) second_tile: &'a mut [f32],
    /// The widest row.
    pub(super) row: &'a mut [f32],
    /// Softmax states of a tile of queries, so far.
    pub(super) totals: &'a mut [f32],
    /// Softmax states of the same tile, of one split.
    pub(super) states: &'a mut [f32],
    /// Keys and values of one head in one block, as single floats.
    pub(super) opened: &'a mut [f32],
    /// The queries of that tile.
    pub(super) queries: &'a mut [Query],
    /// An expanded group of a matrix.
    pub(super) panel: &'a mut [u8],
}

impl Workspace {
    pub(super) fn new(sizes: Sizes, threads: usize) -> Result<Self, OutOfMemory> {
        Ok(Self {
            sizes,
            residual: Buffer::zeroed(sizes.tokens * sizes.hidden)?,
            qkv: Buffer::zeroed(sizes.tokens * sizes.qkv)?,
            attended: Buffer::zeroed(sizes.tokens * sizes.attended)?,
            gated: Buffer::zeroed(sizes.tokens * sizes.gated)?,
            projected: Buffer::zeroed(sizes.tokens * sizes.projected)?,
            pooled: Buffer::zeroed(sizes.tokens * sizes.pooled)?,
            ropes: Buffer::zeroed(sizes.tokens * sizes.ropes)?,
            split_states: Buffer::zeroed(sizes.split_states())?,
            activations: Activations::new(sizes.tokens, sizes.widest)?,
            experts: ExpertSpace::new(sizes.experts)?,
            floats: Buffer::zeroed(threads * sizes.member_floats())?,
            panels: Buffer::zeroed(threads * sizes.member_panel())?,
            queries: Buffer::zeroed(threads * sizes.tile_queries)?,
        })
    }

    pub(super) fn view(&mut self) -> WorkspaceView<'_> {
        WorkspaceView {
            residual: self.residual.shared(),
            qkv: self.qkv.shared(),
            attended: self.attended.shared(),
            gated: self.gated.shared(),
            projected: self.projected.shared(),
            pooled: self.pooled.shared(),
            ropes: self.ropes.shared(),
            split_states: self.split_states.shared(),
            splits: self.sizes.splits,
            activations: self.activations.view(self.sizes.hidden),
            experts: self.experts.view(),
            floats: self.floats.shared(),
            panels: self.panels.shared(),
            queries: self.queries.shared(),
            sizes: self.sizes,
        }
    }
}

impl<'a> WorkspaceView<'a> {
    /// The memory of one member; each member asks once per step, for its own number.
    pub(super) fn scratch(&self, member: usize) -> Scratch<'a> {
        let sizes = self.sizes;
        let part = |size: usize| member * size..(member + 1) * size;
        // SAFETY: only this member asks for these parts, once per step.
        let (floats, panel, queries) = unsafe {
            (
                self.floats.range_mut(part(sizes.member_floats())),
                self.panels.range_mut(part(sizes.member_panel())),
                self.queries.range_mut(part(sizes.tile_queries)),
            )
        };
        let (tile, widest, states) = (sizes.tile(), sizes.widest, sizes.tile_states);
        let (first, rest) = floats.split_at_mut(tile);
        let (second, rest) = rest.split_at_mut(tile);
        let (opened, rest) = rest.split_at_mut(sizes.opened);
        let (row, rest) = rest.split_at_mut(widest);
        let (totals, rest) = rest.split_at_mut(states);
        Scratch {
            tile: first,
            second_tile: second,
            row,
            totals,
            states: &mut rest[..states],
            opened,
            queries,
            panel,
        }
    }
}
