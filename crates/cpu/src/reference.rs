//! The reference executor: every phase in plain loops, the specification of all backends.
//!
//! Two arithmetics: [`Arithmetic::Oracle`] is the model as trained, dequantized weights times
//! plain activations; [`Arithmetic::Quantizing`] rounds activations and the cache as the kernels
//! do, so that kernels must equal it up to the rounding of sums. Sums are in double precision.

mod experts;
mod weights;

use crate::executor::LoadError;
use crate::kv::{BLOCK, BLOCK_SIZE, KvFormat};
use crate::phases::attention::{self, Scoring, visible};
use crate::phases::norm::{self, NormValues};
use crate::phases::{gate, rope, softcap};
use crate::quant::kernels::Form;
use crate::quant::{activations, matrix};
use forthwith_core::executor::{Executor, KvGeometry, Segment, StepError, StepInput};
use forthwith_core::program::{
    Attention, Embed, GateUp, Linear, Norm, Output, Phase, Pool, Pooling, Program,
    ProjectionResidual, QkvProjection, Up, WeightId,
};
use forthwith_core::shape::WeightSource;
use forthwith_core::units::{BlockId, Blocks, Bytes, Tokens};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use weights::Weights;

/// How the reference rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Single-precision activations and cache.
    Oracle,
    /// Activations as signed bytes per 32 and a cache in this format, as the kernels store them.
    Quantizing(KvFormat),
}

/// A model in plain floats: loaded, or with its matrices read from the file for each step.
pub struct Reference<'a> {
    program: Arc<Program>,
    arithmetic: Arithmetic,
    weights: Weights<'a>,
    /// Per layer, `[position][kv_heads · head_dim]` over all blocks.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    blocks: Blocks,
    /// Which weights are stored as floats: their products take plain activations.
    plain: Vec<bool>,
}

/// The buffers of one step, `[tokens, width]` each.
#[derive(Default)]
struct Buffers {
    residual: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    gated: Vec<f32>,
}

impl Reference<'static> {
    /// Loads a program with all weights as floats.
    pub fn load(
        program: Arc<Program>,
        source: &dyn WeightSource,
        arithmetic: Arithmetic,
        blocks: Blocks,
    ) -> Result<Self, LoadError> {
        let weights = Weights::load(&program, source)?;
        Ok(Self::with(program, weights, arithmetic, blocks))
    }
}

impl<'a> Reference<'a> {
    /// The same without memory for the matrices: each step reads them from the source, and finds rows
    /// that hold what is not a number.
    pub fn streamed(
        program: Arc<Program>,
        source: &'a dyn WeightSource,
        arithmetic: Arithmetic,
        blocks: Blocks,
    ) -> Result<Self, LoadError> {
        let weights = Weights::streamed(&program, source)?;
        Ok(Self::with(program, weights, arithmetic, blocks))
    }

    fn with(
        program: Arc<Program>,
        weights: Weights<'a>,
        arithmetic: Arithmetic,
        blocks: Blocks,
    ) -> Self {
        let specs = &program.weights;
        let plain = specs
            .iter()
            .map(|spec| Form::of(spec.format).reads_plain())
            .collect();
        let cache: Vec<Vec<f32>> = program
            .kv_layers
            .iter()
            .map(|layer| vec![0.0; blocks.get() * BLOCK * layer.kv_heads * layer.head_dim])
            .collect();
        Self {
            arithmetic,
            weights,
            keys: cache.clone(),
            values: cache,
            blocks,
            plain,
            program,
        }
    }

    /// Rows of a weight.
    fn rows(&self, id: WeightId, rows: Range<usize>) -> Result<Cow<'_, [f32]>, StepError> {
        self.weights.rows((id, self.program.weight(id)), rows)
    }

    fn norm_values(&self, norm: Norm) -> NormValues<'_> {
        NormValues {
            kind: norm.kind,
            weight: self.weights.held(norm.weight),
            bias: norm.bias.map(|id| self.weights.held(id)),
            eps: norm.eps,
        }
    }

    fn normalize(&self, norm: Option<Norm>, rows: &[f32], width: usize) -> Vec<f32> {
        let Some(norm) = norm else {
            return rows.to_vec();
        };
        let norm = self.norm_values(norm);
        rows.chunks_exact(width)
            .flat_map(|row| norm::reference(norm, row))
            .collect()
    }

    /// `[tokens, hidden]`
    fn embed(&self, phase: &Embed, input: &StepInput<'_>) -> Result<Vec<f32>, StepError> {
        let hidden = self.program.hidden;
        let row = |table: WeightId, at: usize| self.rows(table, at..at + 1);
        let positions = input.segments.iter();
        let positions = positions.flat_map(|run| {
            let positions = run.position..run.position + run.tokens;
            positions.map(|position| (position, run.second_from))
        });
        let mut residual = Vec::new();
        for (id, (position, second)) in input.tokens.iter().zip(positions) {
            let token = row(phase.table, id.index())?;
            let mut out: Vec<f32> = token.iter().map(|value| value * phase.scale).collect();
            if let Some(table) = phase.positions {
                add(&mut out, &row(table, position)?, 1.0);
            }
            if let Some(table) = phase.token_types {
                let second = second.is_some_and(|from| position >= from);
                add(&mut out, &row(table, usize::from(second))?, 1.0);
            }
            residual.extend(self.normalize(phase.norm, &out, hidden));
        }
        Ok(residual)
    }

    /// `[tokens, rows of the weight]`
    fn product(&self, linear: Linear, rows: &[f32]) -> Result<Vec<f32>, StepError> {
        let count = self.program.weight(linear.weight).rows;
        let mut out = self.product_of(linear.weight, 0..count, rows)?;
        if let Some(bias) = linear.bias {
            for row in out.chunks_exact_mut(count) {
                add(row, self.weights.held(bias), 1.0);
            }
        }
        Ok(out)
    }

    /// The product with some rows of a matrix.
    fn product_of(
        &self,
        id: WeightId,
        part: Range<usize>,
        rows: &[f32],
    ) -> Result<Vec<f32>, StepError> {
        let spec = self.program.weight(id);
        let rounded;
        let rows = if self.arithmetic != Arithmetic::Oracle && !self.plain[id.0] {
            rounded = rows
                .chunks_exact(spec.cols)
                .flat_map(activations::reference)
                .collect::<Vec<_>>();
            &rounded
        } else {
            rows
        };
        let mut out = vec![0.0; rows.len() / spec.cols * part.len()];
        let first = part.start;
        let weights = |range: Range<usize>| self.rows(id, first + range.start..first + range.end);
        matrix::reference_on_threads([part.len(), spec.cols], &weights, rows, &mut out)?;
        Ok(out)
    }

    fn add_projection(
        &self,
        phase: &ProjectionResidual,
        from: &[f32],
        residual: &mut [f32],
    ) -> Result<(), StepError> {
        let projected = self.product(phase.projection, from)?;
        let projected = self.normalize(phase.post_norm, &projected, self.program.hidden);
        add(residual, &projected, phase.scale);
        let normed = self.normalize(phase.sum_norm, residual, self.program.hidden);
        residual.copy_from_slice(&normed);
        Ok(())
    }

    fn qkv(&self, phase: &QkvProjection, residual: &[f32]) -> Result<Vec<f32>, StepError> {
        let input = self.normalize(phase.norm, residual, self.program.hidden);
        let mut parts = Vec::new();
        for linear in [phase.query, phase.key, phase.value] {
            let rows = self.program.weight(linear.weight).rows;
            parts.push((self.product(linear, &input)?, rows));
        }
        let tokens = residual.len() / self.program.hidden;
        let qkv = (0..tokens)
            .flat_map(|t| {
                parts
                    .iter()
                    .flat_map(move |(part, rows)| &part[t * rows..(t + 1) * rows])
            })
            .copied();
        Ok(qkv.collect())
    }

    fn gate_up(&self, phase: &GateUp, residual: &[f32]) -> Result<Vec<f32>, StepError> {
        let input = self.normalize(phase.norm, residual, self.program.hidden);
        let (gate, up) = (
            self.product(phase.gate, &input)?,
            self.product(phase.up, &input)?,
        );
        Ok(gate::reference(phase.activation, &gate, &up))
    }

    fn up(&self, phase: &Up, residual: &[f32]) -> Result<Vec<f32>, StepError> {
        let input = self.normalize(phase.norm, residual, self.program.hidden);
        let mut values = self.product(phase.up, &input)?;
        gate::reference_alone(phase.activation, &mut values);
        Ok(values)
    }

    /// `[output rows, width]`
    fn pool(
        &self,
        phase: &Pool,
        input: &StepInput<'_>,
        residual: &[f32],
    ) -> Result<Vec<f32>, StepError> {
        let hidden = self.program.hidden;
        let normed = self.normalize(phase.norm, residual, hidden);
        let row = |at: usize| &normed[at * hidden..(at + 1) * hidden];
        let mut rows = Vec::new();
        let mut first = 0;
        for segment in input.segments {
            let text = first..first + segment.tokens;
            first = text.end;
            let listed = input.output_rows.iter().filter(|row| text.contains(row));
            for &listed in listed {
                match phase.pooling {
                    Pooling::First => rows.extend(row(text.start)),
                    Pooling::Last | Pooling::Each => rows.extend(row(listed)),
                    Pooling::Mean => rows.extend(mean(text.clone().map(row), hidden)),
                }
            }
        }
        for layer in &phase.layers {
            rows = self.product(layer.linear, &rows)?;
            if let Some(activation) = layer.activation {
                gate::reference_alone(activation, &mut rows);
            }
            let width = self.program.weight(layer.linear.weight).rows;
            rows = self.normalize(layer.norm, &rows, width);
        }
        Ok(rows)
    }

    /// Heads as the cache gives them back.
    fn stored(&self, heads: &[f32], head_dim: usize) -> Vec<f32> {
        match self.arithmetic {
            Arithmetic::Oracle => heads.to_vec(),
            Arithmetic::Quantizing(format) => heads
                .chunks_exact(head_dim)
                .flat_map(|head| format.reference(head))
                .collect(),
        }
    }

    /// Norms runs as long as the norm's weight, then rotates heads.
    fn turn(
        &self,
        norm: Option<Norm>,
        rope: Option<usize>,
        (position, head_dim): (usize, usize),
        heads: &mut [f32],
    ) {
        if let Some(norm) = norm {
            let width = self.program.weight(norm.weight).cols;
            let normed = self.normalize(Some(norm), heads, width);
            heads.copy_from_slice(&normed);
        }
        if let Some(rope) = rope {
            for head in heads.chunks_exact_mut(head_dim) {
                rope::reference(&self.program.ropes[rope], position, head);
            }
        }
    }

    fn attention(&mut self, phase: &Attention, input: &StepInput<'_>, qkv: &mut [f32]) -> Vec<f32> {
        let layer = self.program.kv_layers[phase.layer];
        let (head_dim, kv_width) = (layer.head_dim, layer.kv_heads * layer.head_dim);
        let width = phase.heads * head_dim + 2 * kv_width;
        let mut attended = Vec::new();
        let mut rows = qkv.chunks_exact_mut(width);
        for segment in input.segments {
            let mut turned = Vec::new();
            for offset in 0..segment.tokens {
                let row = rows.next().expect("a row for each token");
                let position = segment.position + offset;
                let (queries, rest) = row.split_at_mut(phase.heads * head_dim);
                let (keys, values) = rest.split_at_mut(kv_width);
                let place = (position, head_dim);
                self.turn(phase.query_norm, phase.rope, place, queries);
                self.turn(phase.key_norm, phase.rope, place, keys);
                let at = slot(segment, position) * kv_width;
                let (keys, values) = (self.stored(keys, head_dim), self.stored(values, head_dim));
                self.keys[phase.layer][at..at + kv_width].copy_from_slice(&keys);
                self.values[phase.layer][at..at + kv_width].copy_from_slice(&values);
                turned.push(queries);
            }
            for (position, queries) in (segment.position..).zip(turned) {
                attended.extend(self.attend(phase, segment, position, queries));
            }
        }
        attended
    }

    fn attend<'s>(
        &'s self,
        phase: &Attention,
        segment: &Segment<'_>,
        position: usize,
        queries: &[f32],
    ) -> Vec<f32> {
        let layer = self.program.kv_layers[phase.layer];
        let (head_dim, kv_width) = (layer.head_dim, layer.kv_heads * layer.head_dim);
        let group = phase.heads / layer.kv_heads;
        let scoring = Scoring {
            scale: phase.scale,
            softcap: phase.softcap,
        };
        let ahead = (!phase.causal).then_some(segment.position + segment.tokens);
        let seen = visible(position, layer.window.map(Tokens::get), ahead);
        let attend_head = |(head, query): (usize, &[f32])| {
            let rows = |cache: &'s [f32]| -> Vec<&'s [f32]> {
                let start = |position| slot(segment, position) * kv_width + head / group * head_dim;
                seen.clone()
                    .map(|position| &cache[start(position)..][..head_dim])
                    .collect()
            };
            let (keys, values) = (
                rows(&self.keys[phase.layer]),
                rows(&self.values[phase.layer]),
            );
            let bias: Option<Vec<f32>> = phase.relative_bias.map(|bias| {
                let buckets = self.program.weight(bias.table).rows;
                let distance = |key: usize| key.cast_signed() - position.cast_signed();
                let row = |key| bias.bucket(distance(key), buckets) * phase.heads + head;
                let keys = seen.clone();
                keys.map(|key| self.weights.held(bias.table)[row(key)])
                    .collect()
            });
            attention::reference(query, &keys, &values, scoring, bias.as_deref())
        };
        queries
            .chunks_exact(head_dim)
            .enumerate()
            .flat_map(attend_head)
            .collect()
    }
}

/// The mean of rows, in double precision.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "specification"
)]
fn mean<'a>(rows: impl Iterator<Item = &'a [f32]>, width: usize) -> Vec<f32> {
    let (mut sums, mut count) = (vec![0.0_f64; width], 0_usize);
    for row in rows {
        count += 1;
        for (sum, &value) in sums.iter_mut().zip(row) {
            *sum += f64::from(value);
        }
    }
    sums.iter().map(|sum| (sum / count as f64) as f32).collect()
}

/// `to += scale · values`
fn add(to: &mut [f32], values: &[f32], scale: f32) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += scale * value;
    }
}

/// The place of a position in the caches.
fn slot(segment: &Segment<'_>, position: usize) -> usize {
    segment.blocks[position / BLOCK].index() * BLOCK + position % BLOCK
}

impl Executor for Reference<'_> {
    fn vocab(&self) -> usize {
        self.program.vocab
    }

    fn kv_geometry(&self) -> KvGeometry {
        let bytes = self.program.kv_elements_per_token() * BLOCK * size_of::<f32>();
        KvGeometry {
            block_size: BLOCK_SIZE,
            block_bytes: Bytes::new(bytes as u64),
            blocks: self.blocks,
        }
    }

    fn max_step_tokens(&self) -> Tokens {
        Tokens::new(512)
    }

    fn output(&self) -> Output {
        self.program.output()
    }

    fn step(&mut self, input: &StepInput<'_>, output: &mut Vec<f32>) -> Result<(), StepError> {
        input.check(self)?;
        let program = Arc::clone(&self.program);
        let hidden = program.hidden;
        let mut buffers = Buffers::default();
        for phase in &program.phases {
            match phase {
                Phase::Embed(phase) => buffers.residual = self.embed(phase, input)?,
                Phase::QkvProjection(phase) => buffers.qkv = self.qkv(phase, &buffers.residual)?,
                Phase::Attention(phase) => {
                    buffers.attended = self.attention(phase, input, &mut buffers.qkv);
                }
                Phase::OutputResidual(phase) => {
                    let Buffers {
                        residual, attended, ..
                    } = &mut buffers;
                    self.add_projection(phase, attended, residual)?;
                }
                Phase::GateUp(phase) => buffers.gated = self.gate_up(phase, &buffers.residual)?,
                Phase::Experts(phase) => self.experts(phase, &mut buffers.residual)?,
                Phase::Up(phase) => buffers.gated = self.up(phase, &buffers.residual)?,
                Phase::DownResidual(phase) => {
                    let Buffers {
                        residual, gated, ..
                    } = &mut buffers;
                    self.add_projection(phase, gated, residual)?;
                }
                Phase::Logits(phase) => {
                    let row = |&row: &usize| &buffers.residual[row * hidden..(row + 1) * hidden];
                    let rows: Vec<f32> = input.output_rows.iter().flat_map(row).copied().collect();
                    *output =
                        self.product(phase.head, &self.normalize(phase.norm, &rows, hidden))?;
                    for logit in &mut *output {
                        *logit *= phase.scale;
                    }
                    if let Some(cap) = phase.softcap {
                        softcap::reference(cap, output);
                    }
                }
                Phase::Pool(phase) => *output = self.pool(phase, input, &buffers.residual)?,
            }
        }
        Ok(())
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        for (layer, shape) in self.program.kv_layers.iter().enumerate() {
            let size = BLOCK * shape.kv_heads * shape.head_dim;
            let start = from.index() * size;
            for cache in [&mut self.keys[layer], &mut self.values[layer]] {
                cache.copy_within(start..start + size, to.index() * size);
            }
        }
    }
}
