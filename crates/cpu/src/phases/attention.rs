//! Attention of a tile of queries over the paged cache, one split of positions at a time.
//!
//! For a query at position `p`: `out = Σ_j softmax_j(scale · q·k_j) · v_j` over the positions `j`
//! from `p + 1 − window` (or 0) to `p`.
//!
//! The arithmetic of a query depends on its own position alone: positions are taken in blocks of
//! 32 and splits of 512 at absolute positions, maxima and sums are carried on block by block, and
//! splits are merged in order. How queries share a tile or threads share the splits changes no bit.
//!
//! Source: online softmax, Milakov & Gimelshein 2018, arXiv:1805.02867.

use crate::isa::math::{exp, exp_one, max_lane, sum_lanes, tanh};
use crate::isa::{Isa, Kernel};
use crate::kv::{
    BLOCK, BrainStore, ByteStore, HalfStore, KvFormat, KvView, SCALE_GROUP, SingleStore, Store,
};
use crate::memory::Plain;
use forthwith_core::units::BlockId;
use std::marker::PhantomData;
use std::ops::Range;

/// Positions in one split.
pub(crate) const SPLIT: usize = 512;
const _: () = assert!(SPLIT.is_multiple_of(BLOCK));

/// What a layer does to scores.
#[derive(Clone, Copy)]
pub(crate) struct Scoring {
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
}

/// The positions that a query at `position` sees.
pub(crate) fn visible(position: usize, window: Option<usize>) -> Range<usize> {
    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
    first..position + 1
}

/// Plain loops in double precision over keys and values `[position][head_dim]`.
#[expect(clippy::cast_possible_truncation, reason = "specification")]
pub(crate) fn reference(
    query: &[f32],
    keys: &[&[f32]],
    values: &[&[f32]],
    scoring: Scoring,
) -> Vec<f32> {
    let score = |key: &&[f32]| {
        let dot: f64 = query
            .iter()
            .zip(*key)
            .map(|(&q, &k)| f64::from(q) * f64::from(k))
            .sum();
        let score = dot * f64::from(scoring.scale);
        scoring.softcap.map_or(score, |cap| {
            f64::from(cap) * (score / f64::from(cap)).tanh()
        })
    };
    let scores: Vec<f64> = keys.iter().map(score).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..query.len())
        .map(|d| {
            let sum: f64 = weights
                .iter()
                .zip(values)
                .map(|(weight, value)| weight * f64::from(value[d]))
                .sum();
            (sum / total) as f32
        })
        .collect()
}

/// One query of a tile: where it is and what it sees.
#[derive(Clone, Copy)]
pub(crate) struct Query {
    /// Where its `head_dim` elements start among the rows of the step.
    pub(crate) start: usize,
    /// First visible position.
    pub(crate) first: usize,
    /// One past the last visible position.
    pub(crate) end: usize,
}

// SAFETY: three numbers of one size.
unsafe impl Plain for Query {}

impl Query {
    /// The visible positions of the block that starts at `start`, relative to it.
    fn within(&self, start: usize) -> (usize, usize) {
        let relative = |position: usize| position.clamp(start, start + BLOCK) - start;
        (relative(self.first), relative(self.end))
    }
}

/// The softmax state of one query over some positions: largest score, sum of weights, weighted values.
pub(crate) struct State<'a> {
    pub(crate) largest: &'a mut f32,
    pub(crate) sum: &'a mut f32,
    pub(crate) out: &'a mut [f32],
}

/// Where a tile's states lie: per query `[largest, sum, out…]`, `head_dim + 2` floats.
pub(crate) fn state(states: &mut [f32], query: usize, head_dim: usize) -> State<'_> {
    let size = head_dim + 2;
    let (head, out) = states[query * size..(query + 1) * size].split_at_mut(2);
    let (largest, sum) = head.split_at_mut(1);
    State {
        largest: &mut largest[0],
        sum: &mut sum[0],
        out,
    }
}

/// Resets a state to "no positions yet".
pub(crate) fn reset(state: &mut State<'_>) {
    *state.largest = f32::NEG_INFINITY;
    *state.sum = 0.0;
    state.out.fill(0.0);
}

/// Attends a tile of queries to the positions of one split; states are overwritten.
///
/// # Shapes   queries: any number, sharing one key-value head; states: `[queries, head_dim + 2]`
/// # Cost     reads each key and value once per four queries; `4·head_dim` operations per score
pub(crate) struct AttendSplit<'a> {
    pub(crate) queries: &'a [Query],
    /// The rows that the queries lie in.
    pub(crate) rows: &'a [f32],
    pub(crate) kv: KvView<'a>,
    pub(crate) kv_head: usize,
    /// All blocks of the sequence.
    pub(crate) blocks: &'a [BlockId],
    /// The number of the split.
    pub(crate) split: usize,
    pub(crate) scoring: Scoring,
    pub(crate) states: &'a mut [f32],
}

impl Kernel for AttendSplit<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        match self.kv.format() {
            KvFormat::F16 => self.attend::<I, HalfStore>(isa),
            KvFormat::BF16 => self.attend::<I, BrainStore>(isa),
            KvFormat::F32 => self.attend::<I, SingleStore>(isa),
            KvFormat::Q8_0 => self.attend::<I, ByteStore>(isa),
        }
    }
}

impl AttendSplit<'_> {
    #[inline(always)]
    fn attend<I: Isa, S: Store>(self, isa: I) {
        let head_dim = self.kv.layer().head_dim;
        for query in 0..self.queries.len() {
            reset(&mut state(self.states, query, head_dim));
        }
        let first_block = self.split * SPLIT / BLOCK;
        let ends = self.queries.iter().map(|query| query.end);
        let last = ends.max().unwrap_or(0);
        let end_block = last.div_ceil(BLOCK).min(first_block + SPLIT / BLOCK);
        for block in first_block..end_block {
            let start = block * BLOCK;
            let (id, head) = (self.blocks[block], self.kv_head);
            // SAFETY: a barrier separates the writers of the cache from attention.
            let (keys, values) = unsafe { (self.kv.keys(id, head), self.kv.values(id, head)) };
            let mut at = 0;
            while at < self.queries.len() {
                let (first, end) = self.queries[at].within(start);
                let mut run = 1;
                while run < 4
                    && at + run < self.queries.len()
                    && self.queries[at + run].within(start) == (first, end)
                {
                    run += 1;
                }
                if first < end {
                    let store = PhantomData::<S>;
                    let tile = BlockTile {
                        rows: self.rows,
                        keys,
                        values,
                        head_dim,
                        first,
                        end,
                        store,
                    };
                    let queries = &self.queries[at..at + run];
                    let states = &mut self.states[at * (head_dim + 2)..];
                    match run {
                        1 => tile.attend::<I, 1>(isa, queries, self.scoring, states),
                        2 => tile.attend::<I, 2>(isa, queries, self.scoring, states),
                        3 => tile.attend::<I, 3>(isa, queries, self.scoring, states),
                        _ => tile.attend::<I, 4>(isa, queries, self.scoring, states),
                    }
                }
                at += run;
            }
        }
    }
}

/// One block of keys and values, of which positions `first..end` are visible.
#[derive(Clone, Copy)]
struct BlockTile<'a, S> {
    /// What queries point into.
    rows: &'a [f32],
    /// `[head_dim][32]`, then scales
    keys: &'a [u8],
    /// `[32][head_dim]`, then scales
    values: &'a [u8],
    head_dim: usize,
    first: usize,
    end: usize,
    store: PhantomData<S>,
}

impl<S: Store> BlockTile<'_, S> {
    /// How many elements share a scale: all of them where there is none.
    fn group(self) -> usize {
        if S::SCALED {
            SCALE_GROUP
        } else {
            self.head_dim
        }
    }

    /// The scales of group `group` behind the elements of `head`, eight positions from `position`.
    ///
    /// # Safety
    /// The format is scaled, `head` holds a head of a block, and group and positions exist.
    #[inline(always)]
    unsafe fn scales<I: Isa>(self, isa: I, head: &[u8], group: usize, position: usize) -> I::F {
        // SAFETY: scales follow the elements, by the layout of the cache.
        unsafe {
            let scales = head.as_ptr().add(self.head_dim * BLOCK).cast::<u16>();
            isa.load_half(scales.add(group * BLOCK + position))
        }
    }

    /// Carries the states of `Q` queries on by this block.
    #[inline(always)]
    fn attend<I: Isa, const Q: usize>(
        self,
        isa: I,
        queries: &[Query],
        scoring: Scoring,
        states: &mut [f32],
    ) {
        let queries: &[Query; Q] = queries.try_into().expect("the caller counted the queries");
        let mut weights = self.scores::<I, Q>(isa, queries);
        let mut decay = [0.0; Q];
        for (q, scores) in weights.iter_mut().enumerate() {
            let mut state = state(states, q, self.head_dim);
            decay[q] = self.soften(isa, scoring, scores, &mut state);
        }
        self.accumulate::<I, Q>(isa, &weights, decay, states);
    }

    /// `q · k` for all 32 positions; those that are not visible hold garbage.
    #[inline(always)]
    fn scores<I: Isa, const Q: usize>(self, isa: I, queries: &[Query; Q]) -> [[f32; BLOCK]; Q] {
        assert!(
            self.keys.len() == S::FORMAT.head_bytes(self.head_dim),
            "the keys of a block"
        );
        let mut scores = [[0.0; BLOCK]; Q];
        let mut query: [&[f32]; Q] = [&[]; Q];
        for q in 0..Q {
            query[q] = &self.rows[queries[q].start..][..self.head_dim];
        }
        for half in 0..2 {
            if self.end <= 16 * half || self.first >= 16 * (half + 1) {
                continue;
            }
            let mut totals = [[isa.splat(0.0); 2]; Q];
            for start in (0..self.head_dim).step_by(self.group()) {
                let mut sums = [[isa.splat(0.0); 2]; Q];
                for d in start..(start + self.group()).min(self.head_dim) {
                    // SAFETY: 16 positions of row `d`, within the block's keys as asserted.
                    let keys = unsafe {
                        let at = d * BLOCK + 16 * half;
                        let from = self.keys.as_ptr();
                        [S::load(isa, from, at), S::load(isa, from, at + 8)]
                    };
                    for q in 0..Q {
                        // SAFETY: `d` is below the length of each query's slice.
                        let value = isa.splat(unsafe { *query[q].get_unchecked(d) });
                        sums[q][0] = isa.fma(value, keys[0], sums[q][0]);
                        sums[q][1] = isa.fma(value, keys[1], sums[q][1]);
                    }
                }
                if !S::SCALED {
                    totals = sums;
                    continue;
                }
                // SAFETY: the format is scaled and the group exists.
                let scales = unsafe {
                    let group = start / SCALE_GROUP;
                    [
                        self.scales(isa, self.keys, group, 16 * half),
                        self.scales(isa, self.keys, group, 16 * half + 8),
                    ]
                };
                for q in 0..Q {
                    totals[q][0] = isa.fma(sums[q][0], scales[0], totals[q][0]);
                    totals[q][1] = isa.fma(sums[q][1], scales[1], totals[q][1]);
                }
            }
            let sums = totals;
            for q in 0..Q {
                scores[q][16 * half..16 * half + 8].copy_from_slice(&isa.to_array(sums[q][0]));
                scores[q][16 * half + 8..16 * half + 16].copy_from_slice(&isa.to_array(sums[q][1]));
            }
        }
        scores
    }

    /// Turns scores into weights relative to the new largest score and updates largest and sum;
    /// returns the factor for what was accumulated before.
    #[inline(always)]
    fn soften<I: Isa>(
        self,
        isa: I,
        scoring: Scoring,
        scores: &mut [f32; BLOCK],
        state: &mut State<'_>,
    ) -> f32 {
        let scale = isa.splat(scoring.scale);
        for chunk in scores.as_chunks_mut::<8>().0 {
            // SAFETY: a chunk holds eight floats.
            let mut score = unsafe { isa.mul(isa.load(chunk.as_ptr()), scale) };
            if let Some(cap) = scoring.softcap {
                let cap = isa.splat(cap);
                score = isa.mul(cap, tanh(isa, isa.div(score, cap)));
            }
            *chunk = isa.to_array(score);
        }
        scores[..self.first].fill(f32::NEG_INFINITY);
        scores[self.end..].fill(f32::NEG_INFINITY);
        let mut vectors = [scale; 4];
        for (i, vector) in vectors.iter_mut().enumerate() {
            // SAFETY: four chunks of eight floats each.
            *vector = unsafe { isa.load(scores.as_ptr().add(8 * i)) };
        }
        let highest = isa.max(
            isa.max(vectors[0], vectors[1]),
            isa.max(vectors[2], vectors[3]),
        );
        let largest = state.largest.max(max_lane(isa, highest));
        let mut weights = vectors;
        for weight in &mut weights {
            *weight = exp(isa, isa.sub(*weight, isa.splat(largest)));
        }
        let decay = exp_one(isa, *state.largest - largest);
        let total = isa.add(
            isa.add(weights[0], weights[1]),
            isa.add(weights[2], weights[3]),
        );
        *state.sum = state.sum.mul_add(decay, sum_lanes(isa, total));
        *state.largest = largest;
        for (i, &weight) in weights.iter().enumerate() {
            // SAFETY: four chunks of eight floats each.
            unsafe { isa.store(scores.as_mut_ptr().add(8 * i), weight) };
        }
        decay
    }

    /// `out = out · decay + Σ weight_j · value_j`, positions in order.
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "positions index weights and values"
    )]
    fn accumulate<I: Isa, const Q: usize>(
        self,
        isa: I,
        weights: &[[f32; BLOCK]; Q],
        decay: [f32; Q],
        states: &mut [f32],
    ) {
        let size = self.head_dim + 2;
        assert!(states.len() >= Q * size, "a state for each query");
        assert!(
            self.values.len() == S::FORMAT.head_bytes(self.head_dim),
            "the values of a block"
        );
        let mut scaled = *weights;
        let mut d = 0;
        while d < self.head_dim {
            let wide = d + 16 <= self.head_dim;
            if S::SCALED && d.is_multiple_of(SCALE_GROUP) {
                self.scale_weights(isa, d / SCALE_GROUP, weights, &mut scaled);
            }
            // SAFETY: columns `d..d + 8` (or 16) of the states and of visible positions, within
            // the asserted lengths; head_dim is a multiple of eight, checked at load.
            unsafe {
                let out = states.as_mut_ptr().add(2 + d);
                let mut sums = [[isa.splat(0.0); 2]; Q];
                for q in 0..Q {
                    let at = out.add(q * size);
                    let decay = isa.splat(decay[q]);
                    sums[q][0] = isa.mul(isa.load(at), decay);
                    if wide {
                        sums[q][1] = isa.mul(isa.load(at.add(8)), decay);
                    }
                }
                for j in self.first..self.end {
                    let (from, at) = (self.values.as_ptr(), j * self.head_dim + d);
                    let first = S::load(isa, from, at);
                    let second = if wide {
                        S::load(isa, from, at + 8)
                    } else {
                        isa.splat(0.0)
                    };
                    for q in 0..Q {
                        let weight = isa.splat(scaled[q][j]);
                        sums[q][0] = isa.fma(weight, first, sums[q][0]);
                        sums[q][1] = isa.fma(weight, second, sums[q][1]);
                    }
                }
                for (q, sums) in sums.iter().enumerate() {
                    isa.store(out.add(q * size), sums[0]);
                    if wide {
                        isa.store(out.add(q * size + 8), sums[1]);
                    }
                }
            }
            d += if wide { 16 } else { 8 };
        }
    }
}

impl<S: Store> BlockTile<'_, S> {
    /// `scaled[q][j] = weights[q][j] · scale[group][j]` for all positions of the block.
    #[inline(always)]
    fn scale_weights<I: Isa, const Q: usize>(
        self,
        isa: I,
        group: usize,
        weights: &[[f32; BLOCK]; Q],
        scaled: &mut [[f32; BLOCK]; Q],
    ) {
        for position in (0..BLOCK).step_by(8) {
            // SAFETY: eight positions of the block; the caller's format is scaled.
            unsafe {
                let scales = self.scales(isa, self.values, group, position);
                for q in 0..Q {
                    let weight = isa.load(weights[q].as_ptr().add(position));
                    isa.store(
                        scaled[q].as_mut_ptr().add(position),
                        isa.mul(weight, scales),
                    );
                }
            }
        }
    }
}

/// Carries `total` on by the state of the next split.
pub(crate) struct Merge<'a> {
    pub(crate) total: State<'a>,
    pub(crate) next: State<'a>,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (total, next) = (self.total, self.next);
        if *next.sum == 0.0 {
            // The query sees nothing of this split.
            return;
        }
        let largest = total.largest.max(*next.largest);
        let old = exp_one(isa, *total.largest - largest);
        let new = exp_one(isa, *next.largest - largest);
        *total.sum = total.sum.mul_add(old, *next.sum * new);
        *total.largest = largest;
        for (total, next) in total.out.iter_mut().zip(next.out.iter()) {
            *total = total.mul_add(old, next * new);
        }
    }
}

/// `out = state.out / state.sum`
pub(crate) fn finish(state: &State<'_>, out: &mut [f32]) {
    let inverse = 1.0 / *state.sum;
    for (out, value) in out.iter_mut().zip(state.out.iter()) {
        *out = value * inverse;
    }
}

#[cfg(test)]
mod tests;
