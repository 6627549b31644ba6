//! Attention of a tile of queries over the paged cache, one split of positions at a time.
//!
//! For a query at position `p`: `out = Σ_j softmax_j(scale · q·k_j + bias[j − p]) · v_j` over the positions
//! `j` from `p + 1 − window` (or 0) to `p`, or as far ahead as back where the layer sees ahead.
//!
//! The arithmetic of a query depends on its own position alone: positions are taken in blocks of
//! 32 and splits of 512 at absolute positions, maxima and sums are carried on block by block, and
//! splits are merged in order. How queries share a tile or threads share the splits changes no bit.
//!
//! Source: online softmax, Milakov & Gimelshein 2018, arXiv:1805.02867.

mod tile;

use crate::isa::math::exp_one;
use crate::isa::{Isa, Kernel, Lanes};
use crate::kv::{BLOCK, BrainStore, ByteStore, HalfStore, KvFormat, KvView, SingleStore, Store};
use crate::memory::Plain;
use forthwith_core::units::BlockId;
use std::marker::PhantomData;
use std::ops::Range;
use tile::BlockTile;

/// Positions in one split.
pub(crate) const SPLIT: usize = 512;
const _: () = assert!(SPLIT.is_multiple_of(BLOCK));
/// Above this many queries, keys and values are expanded to single floats before they are used.
const OPEN_ABOVE: usize = 8;

/// What a layer does to scores.
#[derive(Clone, Copy)]
pub(crate) struct Scoring {
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
}

/// The positions that a query at `position` sees, up to itself or, `ahead`, up to the end of a text
/// of so many.
pub(crate) fn visible(
    position: usize,
    window: Option<usize>,
    ahead: Option<usize>,
) -> Range<usize> {
    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
    let end = ahead.map_or(position + 1, |length| {
        window.map_or(length, |window| length.min(position.saturating_add(window)))
    });
    first..end
}

/// Plain loops in double precision over keys and values `[position][head_dim]`; `bias` has a number for
/// each key.
#[expect(clippy::cast_possible_truncation, reason = "specification")]
pub(crate) fn reference(
    query: &[f32],
    keys: &[&[f32]],
    values: &[&[f32]],
    scoring: Scoring,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let mut scores = tile::reference(query, keys, scoring);
    for (score, &bias) in scores.iter_mut().zip(bias.unwrap_or_default()) {
        *score += f64::from(bias);
    }
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
    /// Where in the layer's relative bias that of position 0 lies, if there is one.
    pub(crate) bias: usize,
}

// SAFETY: four numbers of one size.
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
/// # Cost     each key and value read once per four queries, or expanded once and then read once per six;
///   `4·head_dim` operations per score
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
    /// What is added to scores, by [`Query::bias`] and position.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) states: &'a mut [f32],
    /// Room for the keys and values of a block in single floats: `[2, 32, head_dim]`.
    pub(crate) opened: &'a mut [f32],
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

/// Keys and values of one head in one block.
type Halves<'a> = (&'a [u8], &'a [u8]);

impl AttendSplit<'_> {
    #[inline(always)]
    fn attend<I: Isa, S: Store>(mut self, isa: I) {
        let head_dim = self.kv.layer().head_dim;
        for query in 0..self.queries.len() {
            reset(&mut state(self.states, query, head_dim));
        }
        let first_block = self.split * SPLIT / BLOCK;
        let ends = self.queries.iter().map(|query| query.end);
        let last = ends.max().unwrap_or(0);
        let end_block = last.div_ceil(BLOCK).min(first_block + SPLIT / BLOCK);
        let opened = std::mem::take(&mut self.opened);
        let (keys, values) = opened.split_at_mut(opened.len() / 2);
        for block in first_block..end_block {
            let here = self.halves(block);
            let next = self.halves((block + 1).min(end_block - 1));
            if S::NARROW && self.queries.len() > OPEN_ABOVE {
                let size = BLOCK * head_dim;
                let keys = open::<I, S>(isa, here.0, next.0, &mut keys[..size]);
                let values = open::<I, S>(isa, here.1, next.1, &mut values[..size]);
                self.block::<I, SingleStore>(isa, block, (keys, values), None);
            } else {
                let next = (next.0.as_ptr(), next.1.as_ptr());
                self.block::<I, S>(isa, block, here, Some(next));
            }
        }
    }

    fn halves<'a>(&self, block: usize) -> Halves<'a>
    where
        Self: 'a,
    {
        let id = self.blocks[block];
        // SAFETY: a barrier separates the writers of the cache from attention.
        unsafe {
            (
                self.kv.keys(id, self.kv_head),
                self.kv.values(id, self.kv_head),
            )
        }
    }

    /// Carries all states on by one block; `next` is asked for meanwhile.
    #[inline(always)]
    fn block<I: Isa, S: Store>(
        &mut self,
        isa: I,
        block: usize,
        (keys, values): Halves<'_>,
        next: Option<(*const u8, *const u8)>,
    ) {
        let (start, head_dim) = (block * BLOCK, self.kv.layer().head_dim);
        let most = if S::NARROW || S::SCALED { 4 } else { 6 };
        let mut at = 0;
        while at < self.queries.len() {
            let (first, end) = self.queries[at].within(start);
            let mut run = 1;
            while run < most
                && at + run < self.queries.len()
                && self.queries[at + run].within(start) == (first, end)
            {
                run += 1;
            }
            if first < end {
                let store = PhantomData::<S>;
                let tile = BlockTile {
                    rows: self.rows,
                    bias: self.bias,
                    start,
                    keys,
                    values,
                    head_dim,
                    first,
                    end,
                    next: next.filter(|_| at == 0),
                    store,
                };
                let queries = &self.queries[at..at + run];
                let states = &mut self.states[at * (head_dim + 2)..];
                match run {
                    1 => tile.attend::<I, 1>(isa, queries, self.scoring, states),
                    2 => tile.attend::<I, 2>(isa, queries, self.scoring, states),
                    3 => tile.attend::<I, 3>(isa, queries, self.scoring, states),
                    4 => tile.attend::<I, 4>(isa, queries, self.scoring, states),
                    5 => tile.attend::<I, 5>(isa, queries, self.scoring, states),
                    _ => tile.attend::<I, 6>(isa, queries, self.scoring, states),
                }
            }
            at += run;
        }
    }
}

/// Expands one half of a block to single floats, once for all queries of a tile; asks for the same
/// half of the next block meanwhile.
#[inline(always)]
fn open<'a, I: Isa, S: Store>(isa: I, half: &[u8], next: &[u8], out: &'a mut [f32]) -> &'a [u8] {
    let (lanes, size) = (isa.wide(), S::FORMAT.element_bytes());
    assert!(half.len() >= out.len() * size, "a half of a block");
    for (index, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        lanes.prefetch_far(next.as_ptr().wrapping_add(16 * size * index));
        // SAFETY: sixteen elements are readable as asserted, and writable.
        unsafe { lanes.store(out.as_mut_ptr(), S::load(lanes, half.as_ptr(), 16 * index)) };
    }
    // SAFETY: the same memory as bytes.
    unsafe { std::slice::from_raw_parts(out.as_ptr().cast(), size_of_val(out)) }
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
