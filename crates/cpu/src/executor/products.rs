//! Products of a step: groups of matrices handed out to the team, tiles written where they belong.

use super::workspace::Scratch;
use super::{Input, Step};
use crate::memory::SharedSlice;
use crate::quant::{LANES, Matrix};
use crate::team::Member;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Up to this many tokens in a step, items of a phase are handed out in runs.
const RUN_TOKENS: usize = 64;

/// A matrix and what is added to its products.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) matrix: &'a Matrix,
    pub(super) bias: Option<&'a [f32]>,
}

impl Product<'_> {
    /// Adds the bias to tiles of `size` floats, one for each group from `first` on.
    pub(super) fn add_bias(&self, first: usize, size: usize, tiles: &mut [f32]) {
        let Some(bias) = self.bias else {
            return;
        };
        let lanes = bias[first * LANES..].chunks(LANES);
        for (tile, bias) in tiles.chunks_exact_mut(size).zip(lanes) {
            for row in tile.chunks_exact_mut(LANES) {
                for (value, bias) in row.iter_mut().zip(bias) {
                    *value += bias;
                }
            }
        }
    }
}

impl Step<'_> {
    /// Hands the items `0..total` of a phase out to all members: in runs where an item is short, else
    /// one by one, so that all finish together.
    pub(super) fn take(
        &self,
        member: Member<'_>,
        counter: usize,
        total: usize,
        mut work: impl FnMut(Range<usize>),
    ) {
        let run = if self.tokens() > RUN_TOKENS {
            1
        } else {
            (total / (member.members * 8)).max(1)
        };
        loop {
            let start = self.counters[counter].fetch_add(run, Ordering::Relaxed);
            if start >= total {
                return;
            }
            work(start..(start + run).min(total));
        }
    }

    /// Computes all groups of `products` and hands each tile of `[rows, 16]` to
    /// `sink(product, group, tile)`.
    pub(super) fn products(
        &self,
        (member, counter): (Member<'_>, usize),
        products: &[Product<'_>],
        input: Input<'_>,
        scratch: &mut Scratch<'_>,
        sink: impl Fn(usize, usize, &mut [f32]),
    ) {
        let total: usize = products.iter().map(|product| product.matrix.groups()).sum();
        let size = input.1 * LANES;
        self.take(member, counter, total, |mut items| {
            while !items.is_empty() {
                let (mut which, mut group) = (0, items.start);
                while group >= products[which].matrix.groups() {
                    group -= products[which].matrix.groups();
                    which += 1;
                }
                let matrix = products[which].matrix;
                let together = matrix.together(input.1).min(matrix.groups() - group);
                let groups = group..group + together.min(items.len());
                items.start += groups.len();
                let tiles = &mut scratch.tile[..groups.len() * size];
                matrix.multiply(self.isa, groups.clone(), input, tiles, scratch.panel);
                products[which].add_bias(groups.start, size, tiles);
                for (group, tile) in groups.zip(tiles.chunks_exact_mut(size)) {
                    sink(which, group, tile);
                }
            }
        });
    }

    /// Writes a tile into columns `column..` of rows of `width`, at most to column `end`.
    pub(super) fn put_tile(
        target: SharedSlice<'_, f32>,
        width: usize,
        columns: (usize, usize),
        tile: &[f32],
    ) {
        let count = LANES.min(columns.1 - columns.0);
        for (row, lanes) in tile.as_chunks::<LANES>().0.iter().enumerate() {
            let at = row * width + columns.0;
            // SAFETY: the tile's group belongs to the member that multiplied it.
            let place = unsafe { target.range_mut(at..at + count) };
            match place.as_chunks_mut().0 {
                // Of a known size, so that no function is called for it.
                [place] => *place = *lanes,
                _ => place.copy_from_slice(&lanes[..count]),
            }
        }
    }
}
