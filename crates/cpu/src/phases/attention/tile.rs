//! A few queries against one block of keys and values.

use super::{Query, Scoring, state};
use crate::isa::math::{exp, exp_each, max_wide, sum_wide, tanh};
use crate::isa::{Isa, Lanes};
use crate::kv::{BLOCK, SCALE_GROUP, Store};
use std::marker::PhantomData;

/// The scores of one query, in plain loops and double precision.
pub(super) fn reference(query: &[f32], keys: &[&[f32]], scoring: Scoring) -> Vec<f64> {
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
    keys.iter().map(score).collect()
}

/// Asks for `bytes` bytes of another block: pages apart, where the hardware does not foresee them.
#[inline(always)]
fn prefetch<V: Lanes>(lanes: V, from: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        lanes.prefetch_far(from.wrapping_add(64 * line));
    }
}

/// Turns scores into weights relative to `largest` and returns their sum.
#[inline(always)]
fn soften<I: Isa>(isa: I, largest: f32, scores: &mut [f32; BLOCK]) -> f32 {
    let lanes = isa.wide();
    let (low, high) = scores.split_at_mut(16);
    // SAFETY: both halves hold sixteen floats.
    unsafe {
        let largest = lanes.splat(largest);
        let first = exp(lanes, lanes.sub(lanes.load(low.as_ptr()), largest));
        let second = exp(lanes, lanes.sub(lanes.load(high.as_ptr()), largest));
        lanes.store(low.as_mut_ptr(), first);
        lanes.store(high.as_mut_ptr(), second);
        sum_wide(isa, lanes.add(first, second))
    }
}

/// One block of keys and values, of which positions `first..end` are visible.
#[derive(Clone, Copy)]
pub(super) struct BlockTile<'a, S> {
    /// What queries point into.
    pub(super) rows: &'a [f32],
    /// What is added to scores, by [`Query::bias`] and position.
    pub(super) bias: Option<&'a [f32]>,
    /// The block's first position.
    pub(super) start: usize,
    /// `[head_dim][32]`, then scales
    pub(super) keys: &'a [u8],
    /// `[32][head_dim]`, then scales
    pub(super) values: &'a [u8],
    pub(super) head_dim: usize,
    pub(super) first: usize,
    pub(super) end: usize,
    /// Keys and values of the block to come, for the first queries that see this one.
    pub(super) next: Option<(*const u8, *const u8)>,
    pub(super) store: PhantomData<S>,
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

    /// The scales of group `group` behind the elements of `head`, one vector from `position` on.
    ///
    /// # Safety
    /// The format is scaled, `head` holds a head of a block, and group and positions exist.
    #[inline(always)]
    unsafe fn scales<V: Lanes>(self, lanes: V, head: &[u8], group: usize, position: usize) -> V::F {
        // SAFETY: scales follow the elements, by the layout of the cache.
        unsafe {
            let scales = head.as_ptr().add(self.head_dim * BLOCK).cast::<u16>();
            lanes.load_half(scales.add(group * BLOCK + position))
        }
    }

    /// Carries the states of `Q` queries on by this block.
    #[inline(always)]
    pub(super) fn attend<I: Isa, const Q: usize>(
        self,
        isa: I,
        queries: &[Query],
        scoring: Scoring,
        states: &mut [f32],
    ) {
        let queries: &[Query; Q] = queries.try_into().expect("the caller counted the queries");
        let mut weights = self.scores::<I, Q>(isa, queries);
        let mut largest = [0.0; Q];
        for q in 0..Q {
            let bias = self.bias.map(|bias| &bias[queries[q].bias + self.start..]);
            largest[q] = self.scale_scores(isa, (scoring, bias), &mut weights[q]);
        }
        let mut decay = [0.0; Q];
        for q in 0..Q {
            let state = state(states, q, self.head_dim);
            largest[q] = state.largest.max(largest[q]);
            decay[q] = *state.largest - largest[q];
        }
        let decay = exp_each(isa, decay);
        for q in 0..Q {
            let total = soften(isa, largest[q], &mut weights[q]);
            let state = state(states, q, self.head_dim);
            *state.sum = state.sum.mul_add(decay[q], total);
            *state.largest = largest[q];
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
        let (lower, upper) = (self.first < 16, self.end > 16);
        if I::MANY_REGISTERS && lower && upper {
            self.dots::<I::Wide, Q, 2>(isa.wide(), &query, 0, &mut scores);
            return scores;
        }
        if lower {
            self.dots::<I::Wide, Q, 1>(isa.wide(), &query, 0, &mut scores);
        }
        if upper {
            self.dots::<I::Wide, Q, 1>(isa.wide(), &query, 1, &mut scores);
        }
        scores
    }

    /// The scores of `H` times sixteen positions from half `half` of the block on.
    #[inline(always)]
    fn dots<V: Lanes, const Q: usize, const H: usize>(
        self,
        lanes: V,
        query: &[&[f32]; Q],
        half: usize,
        scores: &mut [[f32; BLOCK]; Q],
    ) {
        let from = self.keys.as_ptr();
        let mut totals = [[lanes.splat(0.0); H]; Q];
        for start in (0..self.head_dim).step_by(self.group()) {
            let mut sums = [[lanes.splat(0.0); H]; Q];
            for d in start..(start + self.group()).min(self.head_dim) {
                if let Some((next, _)) = self.next {
                    let row = BLOCK * S::FORMAT.element_bytes();
                    prefetch(lanes, next.wrapping_add(d * row), row);
                }
                let mut keys = [lanes.splat(0.0); H];
                for (h, keys) in keys.iter_mut().enumerate() {
                    // SAFETY: sixteen positions of row `d`, within the block's keys as asserted.
                    *keys = unsafe { S::load(lanes, from, d * BLOCK + 16 * (half + h)) };
                }
                for q in 0..Q {
                    // SAFETY: `d` is below the length of each query's slice.
                    let value = lanes.splat(unsafe { *query[q].get_unchecked(d) });
                    for h in 0..H {
                        sums[q][h] = lanes.fma(value, keys[h], sums[q][h]);
                    }
                }
            }
            if !S::SCALED {
                totals = sums;
                continue;
            }
            for h in 0..H {
                let group = start / SCALE_GROUP;
                // SAFETY: the format is scaled and the group exists.
                let scales = unsafe { self.scales(lanes, self.keys, group, 16 * (half + h)) };
                for q in 0..Q {
                    totals[q][h] = lanes.fma(sums[q][h], scales, totals[q][h]);
                }
            }
        }
        for (scores, totals) in scores.iter_mut().zip(totals) {
            let (scores, _) = scores.as_chunks_mut::<16>();
            for (scores, total) in scores[half..].iter_mut().zip(totals) {
                // SAFETY: a chunk holds sixteen floats.
                unsafe { lanes.store(scores.as_mut_ptr(), total) };
            }
        }
    }

    /// Scales scores, hides those that are not visible and returns the largest.
    #[inline(always)]
    fn scale_scores<I: Isa>(
        self,
        isa: I,
        (scoring, bias): (Scoring, Option<&[f32]>),
        scores: &mut [f32; BLOCK],
    ) -> f32 {
        let lanes = isa.wide();
        let scale = lanes.splat(scoring.scale);
        let bias = bias.map(|bias| bias[..BLOCK].as_chunks::<16>().0);
        let mut scaled = [scale; 2];
        for (half, (chunk, scaled)) in scores
            .as_chunks_mut::<16>()
            .0
            .iter_mut()
            .zip(&mut scaled)
            .enumerate()
        {
            // SAFETY: a chunk holds sixteen floats.
            unsafe {
                let mut score = lanes.mul(lanes.load(chunk.as_ptr()), scale);
                if let Some(cap) = scoring.softcap {
                    let cap = lanes.splat(cap);
                    score = lanes.mul(cap, tanh(lanes, lanes.div(score, cap)));
                }
                if let Some(bias) = bias {
                    score = lanes.add(score, lanes.load(bias[half].as_ptr()));
                }
                lanes.store(chunk.as_mut_ptr(), score);
                *scaled = score;
            }
        }
        if (self.first, self.end) != (0, BLOCK) {
            scores[..self.first].fill(f32::NEG_INFINITY);
            scores[self.end..].fill(f32::NEG_INFINITY);
            for (chunk, scaled) in scores.as_chunks::<16>().0.iter().zip(&mut scaled) {
                // SAFETY: a chunk holds sixteen floats.
                *scaled = unsafe { lanes.load(chunk.as_ptr()) };
            }
        }
        max_wide(isa, lanes.max(scaled[0], scaled[1]))
    }

    /// `out = out · decay + Σ weight_j · value_j`, positions in order.
    #[inline(always)]
    fn accumulate<I: Isa, const Q: usize>(
        self,
        isa: I,
        weights: &[[f32; BLOCK]; Q],
        decay: [f32; Q],
        states: &mut [f32],
    ) {
        assert!(
            states.len() >= Q * (self.head_dim + 2),
            "a state for each query"
        );
        assert!(
            self.values.len() == S::FORMAT.head_bytes(self.head_dim),
            "the values of a block"
        );
        let lanes = isa.wide();
        let mut scaled = [[0.0; BLOCK]; Q];
        let mut d = 0;
        while d < self.head_dim {
            if S::SCALED && d.is_multiple_of(SCALE_GROUP) {
                self.scale_weights(lanes, d / SCALE_GROUP, weights, &mut scaled);
            }
            let left = self.head_dim - d;
            let factors = if S::SCALED { &scaled } else { weights };
            let (factors, out) = ((factors, decay), states.as_mut_ptr());
            // SAFETY: that many elements are left; states and values were checked above, and
            // head_dim is a multiple of eight, checked at load.
            unsafe {
                if I::MANY_REGISTERS && !S::SCALED && left >= 64 {
                    self.columns::<I::Wide, Q, 4>(lanes, factors, d, out);
                    d += 64;
                } else if I::MANY_REGISTERS && left >= 32 {
                    self.columns::<I::Wide, Q, 2>(lanes, factors, d, out);
                    d += 32;
                } else if left >= 16 {
                    self.columns::<I::Wide, Q, 1>(lanes, factors, d, out);
                    d += 16;
                } else {
                    self.columns::<I, Q, 1>(isa, factors, d, out);
                    d += 8;
                }
            }
        }
    }

    /// The same for `W` vectors of elements from `d` on.
    ///
    /// # Safety
    /// Those elements exist in the block's values and in the `Q` states at `states`.
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "positions index weights and values"
    )]
    unsafe fn columns<V: Lanes, const Q: usize, const W: usize>(
        self,
        lanes: V,
        (weights, decay): (&[[f32; BLOCK]; Q], [f32; Q]),
        d: usize,
        states: *mut f32,
    ) {
        let (size, from) = (self.head_dim + 2, self.values.as_ptr());
        // SAFETY: the caller vouches for the elements.
        unsafe {
            let out = states.add(2 + d);
            let mut sums = [[lanes.splat(0.0); W]; Q];
            for q in 0..Q {
                let decay = lanes.splat(decay[q]);
                for w in 0..W {
                    let before = lanes.load(out.add(q * size + w * V::LANES));
                    sums[q][w] = lanes.mul(before, decay);
                }
            }
            for j in self.first..self.end {
                if let Some((_, next)) = self.next {
                    let size = S::FORMAT.element_bytes();
                    let next = next.wrapping_add((j * self.head_dim + d) * size);
                    prefetch(lanes, next, W * V::LANES * size);
                }
                let mut values = [lanes.splat(0.0); W];
                for (w, values) in values.iter_mut().enumerate() {
                    *values = S::load(lanes, from, j * self.head_dim + d + w * V::LANES);
                }
                for q in 0..Q {
                    let weight = lanes.splat(weights[q][j]);
                    for w in 0..W {
                        sums[q][w] = lanes.fma(weight, values[w], sums[q][w]);
                    }
                }
            }
            for (q, sums) in sums.iter().enumerate() {
                for (w, &sum) in sums.iter().enumerate() {
                    lanes.store(out.add(q * size + w * V::LANES), sum);
                }
            }
        }
    }
}

impl<S: Store> BlockTile<'_, S> {
    /// `scaled[q][j] = weights[q][j] · scale[group][j]` for all positions of the block.
    #[inline(always)]
    fn scale_weights<V: Lanes, const Q: usize>(
        self,
        lanes: V,
        group: usize,
        weights: &[[f32; BLOCK]; Q],
        scaled: &mut [[f32; BLOCK]; Q],
    ) {
        for position in (0..BLOCK).step_by(V::LANES) {
            // SAFETY: a vector of positions of the block; the caller's format is scaled.
            unsafe {
                let scales = self.scales(lanes, self.values, group, position);
                for q in 0..Q {
                    let weight = lanes.load(weights[q].as_ptr().add(position));
                    let to = scaled[q].as_mut_ptr().add(position);
                    lanes.store(to, lanes.mul(weight, scales));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{IsaChoice, Kernel};
    use crate::kv::SingleStore;
    use proptest::prelude::*;

    /// The scores of one query that sees positions 3 to 29.
    struct Scores<'a> {
        tile: BlockTile<'a, SingleStore>,
        scoring: Scoring,
    }

    impl Kernel for Scores<'_> {
        type Output = ([f32; BLOCK], f32);

        #[inline(always)]
        fn run<I: Isa>(self, isa: I) -> Self::Output {
            let (start, first, end) = (0, self.tile.first, self.tile.end);
            let query = Query {
                start,
                first,
                end,
                bias: 0,
            };
            let [mut scores] = self.tile.scores::<I, 1>(isa, &[query]);
            let largest = self
                .tile
                .scale_scores(isa, (self.scoring, None), &mut scores);
            (scores, largest)
        }
    }

    proptest! {
        #[test]
        fn scores_match_the_reference(
            query in proptest::collection::vec(-2.0_f32..2.0, 24),
            keys in proptest::collection::vec(-2.0_f32..2.0, 24 * BLOCK),
            softcap in prop_oneof![Just(None), Just(Some(5.0_f32))],
        ) {
            let scoring = Scoring { scale: 0.2, softcap };
            let (first, end) = (3, 29);
            let rows: Vec<&[f32]> = keys.chunks_exact(24).collect();
            let want = reference(&query, &rows, scoring);
            let mut bytes = Vec::new();
            for d in 0..24 {
                bytes.extend(rows.iter().flat_map(|key| key[d].to_le_bytes()));
            }
            for isa in IsaChoice::available() {
                let (rows, keys, values) = (&query[..], &bytes[..], &bytes[..]);
                let (next, store) = (None, PhantomData);
                let (bias, start, head_dim) = (None, 0, 24);
                let tile = BlockTile {
                    rows, bias, start, keys, values, head_dim, first, end, next, store,
                };
                let (scores, largest) = isa.run(Scores { tile, scoring });
                for (position, (got, want)) in scores.iter().zip(&want).enumerate() {
                    if !(first..end).contains(&position) {
                        prop_assert_eq!(*got, f32::NEG_INFINITY);
                        continue;
                    }
                    prop_assert!((f64::from(*got) - want).abs() < 2e-5, "{isa:?}: {got} {want}");
                    prop_assert!(*got <= largest);
                }
                prop_assert!(scores.contains(&largest));
            }
        }
    }
}
