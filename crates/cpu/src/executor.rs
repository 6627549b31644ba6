//! The SIMD executor: the thread team walks the program's list of phases, a barrier after each.

mod attention;
mod embed;
mod experts;
mod load;
mod logits;
mod places;
mod pool;
mod products;
mod profile;
mod workspace;

use crate::isa::IsaChoice;
use crate::kv::{BLOCK_SIZE, KvCache, KvFormat, KvLayers, kv_block_bytes};
use crate::memory::SharedSlice;
use crate::phases::gate::{Activate, GatedUnit};
use crate::phases::norm::{NormValues, Normalize};
use crate::quant::{ActivationsView, LANES, Matrix};
use crate::rows::CompiledPasses;
use crate::team::{Member, Team};
use attention::HeadBias;
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::program::{
    GateUp, Linear, Norm, Output, Phase, Program, ProjectionResidual, QkvProjection, Up, WeightId,
};
use forthwith_core::rows::RowPasses;
use forthwith_core::units::{BlockId, Tokens};
use places::Places;
use products::Product;
use profile::Profile;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use workspace::{Scratch, Workspace, WorkspaceView};

pub use load::{Expansion, LoadError, expansions, weight_bytes};
pub(crate) use load::{find, first_byte};
pub use profile::{PHASE_NAMES, phase_kind};
pub use workspace::workspace_bytes;

/// What the executor is sized for.
#[derive(Clone, Copy, Debug)]
pub struct CpuConfig {
    /// Members of the thread team, the caller included.
    pub threads: usize,
    /// The instruction set.
    pub isa: IsaChoice,
    /// How keys and values are stored.
    pub kv_format: KvFormat,
    /// Blocks of the KV cache.
    pub kv_blocks: forthwith_core::units::Blocks,
    /// The most tokens in one step.
    pub max_step_tokens: Tokens,
    /// The most tokens of one sequence; what the cache cannot hold of it costs nothing.
    pub context: Tokens,
}

/// A loaded model on the CPU.
pub struct Cpu {
    program: Arc<Program>,
    isa: IsaChoice,
    weights: Vec<Weight>,
    /// By the weight that holds the buckets.
    biases: BTreeMap<WeightId, HeadBias>,
    kv: KvCache,
    workspace: Workspace,
    places: Places,
    team: Team,
    /// The next item of work of each phase.
    counters: Vec<AtomicUsize>,
    max_step_tokens: Tokens,
    context: Tokens,
    profile: Option<Profile>,
}

/// A weight in this backend's memory.
enum Weight {
    Vector(Vec<f32>),
    Matrix(Matrix),
}

impl Executor for Cpu {
    fn vocab(&self) -> usize {
        self.program.vocab
    }

    fn kv_geometry(&self) -> KvGeometry {
        KvGeometry {
            block_size: BLOCK_SIZE,
            block_bytes: kv_block_bytes(&self.program, self.kv.format()),
            blocks: self.kv.blocks(),
        }
    }

    fn max_step_tokens(&self) -> Tokens {
        self.max_step_tokens
    }

    fn output(&self) -> Output {
        self.program.output()
    }

    fn step(&mut self, input: &StepInput<'_>, output: &mut Vec<f32>) -> Result<(), StepError> {
        input.check(self)?;
        for segment in input.segments {
            let end = Tokens::new(segment.position + segment.tokens);
            if end > self.context {
                let context = self.context;
                return Err(StepError::Input(format!(
                    "{end} tokens of a context of {context}"
                )));
            }
        }
        output.clear();
        output.resize(input.output_rows.len() * self.output_width(), 0.0);
        for counter in &self.counters {
            counter.store(0, Ordering::Relaxed);
        }
        self.places.fill(input);
        let step = Step {
            program: &self.program,
            isa: self.isa,
            weights: &self.weights,
            biases: &self.biases,
            kv: self.kv.layers(),
            input,
            places: &self.places,
            space: self.workspace.view(),
            counters: &self.counters,
            output: SharedSlice::new(output),
            profile: self.profile.as_ref(),
        };
        self.team
            .run(&|member| step.walk(member))
            .map_err(StepError::Worker)
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.kv.copy_block(from, to);
    }

    fn threads(&self) -> usize {
        self.team.members()
    }

    fn lend_threads(&mut self, work: &(dyn Fn(usize) + Sync)) -> Result<(), StepError> {
        self.team
            .run(&|member| work(member.index))
            .map_err(StepError::Worker)
    }

    fn row_passes(&self) -> Arc<dyn RowPasses> {
        Arc::new(CompiledPasses(self.isa))
    }
}

/// Everything that the members of the team share during one step.
struct Step<'a> {
    program: &'a Program,
    isa: IsaChoice,
    weights: &'a [Weight],
    biases: &'a BTreeMap<WeightId, HeadBias>,
    kv: KvLayers<'a>,
    input: &'a StepInput<'a>,
    places: &'a Places,
    space: WorkspaceView<'a>,
    counters: &'a [AtomicUsize],
    output: SharedSlice<'a, f32>,
    profile: Option<&'a Profile>,
}

/// Rows that a product reads.
#[derive(Clone, Copy)]
struct Rows<'a> {
    from: SharedSlice<'a, f32>,
    width: usize,
    count: usize,
    /// Which rows of `from`; all in order if absent.
    listed: Option<&'a [usize]>,
}

/// Quantized rows and how many there are.
type Input<'a> = (ActivationsView<'a>, usize);

fn add(to: &mut [f32], values: &[f32]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += value;
    }
}

/// `values *= scale`, for free where it is 1.
fn multiply(values: &mut [f32], scale: f32) {
    if scale.to_bits() != 1.0_f32.to_bits() {
        for value in values {
            *value *= scale;
        }
    }
}

impl<'a> Step<'a> {
    /// One member's walk over the program.
    ///
    /// Members divide each part of a phase by rows, tokens or heads, never inside a sum, and meet
    /// at a barrier before anyone reads what others wrote. That is what every `SAFETY` note below
    /// rests on.
    fn walk(&self, member: Member<'_>) {
        let scratch = &mut self.space.scratch(member.index);
        self.rope_tables(member);
        let profile = self.profile.filter(|_| member.index == 0);
        for (index, phase) in self.program.phases.iter().enumerate() {
            let began = profile.map(Profile::now);
            match phase {
                Phase::Embed(phase) => self.embed(member, phase, scratch),
                Phase::QkvProjection(phase) => self.qkv(member, index, phase, scratch),
                Phase::Attention(phase) => self.attention(member, index, phase, scratch),
                Phase::OutputResidual(phase) => {
                    self.add_projection((member, index), phase, self.space.attended, scratch);
                }
                Phase::GateUp(phase) => self.gate_up(member, index, phase, scratch),
                Phase::Up(phase) => self.up(member, index, phase, scratch),
                Phase::DownResidual(phase) => {
                    self.add_projection((member, index), phase, self.space.gated, scratch);
                }
                Phase::Experts(phase) => self.experts(member, index, phase, scratch),
                Phase::Logits(phase) => self.logits(member, index, phase, scratch),
                Phase::Pool(phase) => self.pool(member, index, phase, scratch),
            }
            member.barrier();
            if let (Some(profile), Some(began)) = (profile, began) {
                profile.note(phase, began);
            }
        }
    }

    fn tokens(&self) -> usize {
        self.input.tokens.len()
    }

    /// All rows of the residual.
    fn residual(&self) -> Rows<'a> {
        let (width, count) = (self.program.hidden, self.tokens());
        Rows {
            from: self.space.residual,
            width,
            count,
            listed: None,
        }
    }

    fn matrix(&self, id: WeightId) -> &'a Matrix {
        match &self.weights[id.0] {
            Weight::Matrix(matrix) => matrix,
            Weight::Vector(_) => panic!("weight {} is used as a matrix", id.0),
        }
    }

    fn vector(&self, id: WeightId) -> &'a [f32] {
        match &self.weights[id.0] {
            Weight::Vector(vector) => vector,
            Weight::Matrix(_) => panic!("weight {} is used as a vector", id.0),
        }
    }

    fn product(&self, linear: Linear) -> Product<'a> {
        Product {
            matrix: self.matrix(linear.weight),
            bias: linear.bias.map(|id| self.vector(id)),
        }
    }

    fn normalize(&self, norm: Norm, x: &[f32], out: &mut [f32]) {
        let norm = NormValues {
            kind: norm.kind,
            weight: self.vector(norm.weight),
            bias: norm.bias.map(|id| self.vector(id)),
            eps: norm.eps,
        };
        self.isa.run(Normalize { norm, x, out });
    }

    /// Norms (if asked for) and quantizes rows; the input of the products that follow.
    fn prepare(
        &self,
        member: Member<'_>,
        rows: &Rows<'_>,
        norm: Option<Norm>,
        keep_plain: bool,
        scratch: &mut Scratch<'_>,
    ) -> Input<'a> {
        let &Rows {
            from,
            width,
            count,
            listed,
        } = rows;
        let activations = self.space.activations.with_cols(width);
        for row in member.share(count) {
            let at = listed.map_or(row, |listed| listed[row]) * width;
            // SAFETY: the source was written before the last barrier; the row is this member's.
            unsafe {
                let x = from.range(at..at + width);
                if let Some(norm) = norm {
                    let out = &mut scratch.row[..width];
                    self.normalize(norm, x, out);
                    activations.put(self.isa, row, out, keep_plain);
                } else {
                    activations.put(self.isa, row, x, keep_plain);
                }
            }
        }
        member.barrier();
        (activations, count)
    }

    fn qkv(
        &self,
        member: Member<'_>,
        counter: usize,
        phase: &QkvProjection,
        scratch: &mut Scratch<'_>,
    ) {
        let products = [phase.query, phase.key, phase.value].map(|linear| self.product(linear));
        let rows = products.map(|product| product.matrix.rows);
        let plain = products.iter().any(|product| product.matrix.reads_plain());
        let input = self.prepare(member, &self.residual(), phase.norm, plain, scratch);
        let starts = [0, rows[0], rows[0] + rows[1]];
        let width = starts[2] + rows[2];
        self.products(
            (member, counter),
            &products,
            input,
            scratch,
            |which, group, tile| {
                let column = starts[which] + group * LANES;
                let columns = (column, starts[which] + rows[which]);
                Self::put_tile(self.space.qkv, width, columns, tile);
            },
        );
    }

    fn gate_up(
        &self,
        member: Member<'_>,
        counter: usize,
        phase: &GateUp,
        scratch: &mut Scratch<'_>,
    ) {
        let (gate_product, up_product) = (self.product(phase.gate), self.product(phase.up));
        let (gate, up) = (gate_product.matrix, up_product.matrix);
        let plain = gate.reads_plain() || up.reads_plain();
        let input = self.prepare(member, &self.residual(), phase.norm, plain, scratch);
        let (size, isa) = (input.1 * LANES, self.isa);
        let together = gate.together(input.1).min(up.together(input.1));
        self.take(member, counter, gate.groups(), |mut items| {
            while !items.is_empty() {
                let groups = items.start..items.start + together.min(items.len());
                items.start = groups.end;
                let gate_tiles = &mut scratch.second_tile[..groups.len() * size];
                gate.multiply(isa, groups.clone(), input, gate_tiles, scratch.panel);
                let tiles = &mut scratch.tile[..groups.len() * size];
                up.multiply(isa, groups.clone(), input, tiles, scratch.panel);
                gate_product.add_bias(groups.start, size, gate_tiles);
                up_product.add_bias(groups.start, size, tiles);
                isa.run(GatedUnit {
                    activation: phase.activation,
                    gate: gate_tiles,
                    up: tiles,
                });
                for (group, tile) in groups.zip(tiles.chunks_exact(size)) {
                    let columns = (group * LANES, gate.rows);
                    Self::put_tile(self.space.gated, gate.rows, columns, tile);
                }
            }
        });
    }

    fn up(&self, member: Member<'_>, counter: usize, phase: &Up, scratch: &mut Scratch<'_>) {
        let product = self.product(phase.up);
        let (rows, plain) = (product.matrix.rows, product.matrix.reads_plain());
        let input = self.prepare(member, &self.residual(), phase.norm, plain, scratch);
        let (isa, activation) = (self.isa, phase.activation);
        self.products(
            (member, counter),
            &[product],
            input,
            scratch,
            |_, group, values| {
                isa.run(Activate { activation, values });
                Self::put_tile(self.space.gated, rows, (group * LANES, rows), values);
            },
        );
    }

    fn add_projection(
        &self,
        (member, counter): (Member<'_>, usize),
        phase: &ProjectionResidual,
        from: SharedSlice<'_, f32>,
        scratch: &mut Scratch<'_>,
    ) {
        let (product, hidden) = (self.product(phase.projection), self.program.hidden);
        let (matrix, scale) = (product.matrix, phase.scale);
        let rows = Rows {
            from,
            width: matrix.cols,
            count: self.tokens(),
            listed: None,
        };
        let input = self.prepare(member, &rows, None, matrix.reads_plain(), scratch);
        let residual = self.space.residual;
        let Some(norm) = phase.post_norm else {
            self.products(
                (member, counter),
                &[product],
                input,
                scratch,
                |_, group, tile| {
                    multiply(tile, scale);
                    let (column, count) = (group * LANES, LANES.min(hidden - group * LANES));
                    for (token, lanes) in tile.chunks_exact(LANES).enumerate() {
                        let at = token * hidden + column;
                        // SAFETY: the columns of this group belong to the member that multiplied it.
                        add(unsafe { residual.range_mut(at..at + count) }, lanes);
                    }
                },
            );
            if let Some(norm) = phase.sum_norm {
                member.barrier();
                for token in member.share(self.tokens()) {
                    let range = token * hidden..(token + 1) * hidden;
                    // SAFETY: sums were written before the barrier; the row is this member's.
                    self.normalize_in_place(norm, unsafe { residual.range_mut(range) }, scratch);
                }
            }
            return;
        };
        self.products(
            (member, counter),
            &[product],
            input,
            scratch,
            |_, group, tile| {
                Self::put_tile(self.space.projected, hidden, (group * LANES, hidden), tile);
            },
        );
        member.barrier();
        for token in member.share(self.tokens()) {
            let range = token * hidden..(token + 1) * hidden;
            let out = &mut scratch.row[..hidden];
            // SAFETY: the projection was written before the barrier; the row is this member's.
            unsafe {
                self.normalize(norm, self.space.projected.range(range.clone()), out);
                multiply(out, scale);
                let sum = residual.range_mut(range);
                add(sum, out);
                if let Some(norm) = phase.sum_norm {
                    self.normalize_in_place(norm, sum, scratch);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
