//! The attention phase: prepare heads and write the cache, attend, merge splits.

use super::places::Tile;
use super::workspace::{SPLIT_TOKENS, Scratch};
use super::{Member, Step};
use crate::kv::{BLOCK, KvView, MAX_HEAD_DIM};
use crate::phases::attention::{
    AttendSplit, Merge, Query, SPLIT, Scoring, finish, reset, state, visible,
};
use crate::phases::rope::{self, Rotate};
use crate::quant::Matrix;
use forthwith_core::program::{Attention, KvLayer, Norm, RelativeBias};
use forthwith_core::units::Tokens;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The shape of one attention phase.
#[derive(Clone, Copy)]
struct Shape<'a> {
    heads: usize,
    layer: KvLayer,
    causal: bool,
    bias: Option<&'a HeadBias>,
}

/// A relative bias by distance: for each head a number for every distance between two positions.
pub(super) struct HeadBias {
    /// `[heads, 2 · reach + 32]`
    values: Vec<f32>,
    /// Positions that a key can be before or after a query, in whole blocks.
    reach: usize,
}

impl HeadBias {
    /// Spreads the table of buckets `[buckets, heads]` out for texts of up to `context` tokens.
    pub(super) fn new(bias: &RelativeBias, table: &Matrix, context: usize) -> Self {
        let (buckets, heads) = (table.rows, table.cols);
        let mut rows = vec![0.0; buckets * heads];
        for (bucket, row) in rows.chunks_exact_mut(heads).enumerate() {
            table.read_row(bucket, row);
        }
        let reach = context.next_multiple_of(BLOCK);
        let length = 2 * reach + BLOCK;
        let of = |(head, at): (usize, usize)| {
            rows[bias.bucket(at.cast_signed() - reach.cast_signed(), buckets) * heads + head]
        };
        let places = (0..heads).flat_map(|head| (0..length).map(move |at| (head, at)));
        Self {
            values: places.map(of).collect(),
            reach,
        }
    }

    /// Where the number of position 0 lies for a query.
    fn start(&self, head: usize, position: usize) -> usize {
        head * (2 * self.reach + BLOCK) + self.reach - position
    }
}

impl Shape<'_> {
    fn group(self) -> usize {
        self.heads / self.layer.kv_heads
    }

    fn qkv_width(self) -> usize {
        (self.heads + 2 * self.layer.kv_heads) * self.layer.head_dim
    }

    fn state(self) -> usize {
        self.layer.head_dim + 2
    }
}

/// A tile of queries of one key-value head.
struct Unit {
    tile: Tile,
    kv_head: usize,
}

impl Step<'_> {
    /// Fills the tables of all rotary embeddings for the step's tokens.
    pub(super) fn rope_tables(&self, member: Member<'_>) {
        for token in member.share(self.tokens()) {
            let position = self.places.tokens[token].position;
            for (index, rope) in self.program.ropes.iter().enumerate() {
                let range = self.rope_table(index, token);
                // SAFETY: this member's share of tokens; read after the next barrier.
                rope::table(rope, position, unsafe { self.space.ropes.range_mut(range) });
            }
        }
    }

    /// Where the table of a rotary embedding lies for a token.
    fn rope_table(&self, rope: usize, token: usize) -> Range<usize> {
        let sizes = |count: usize| -> usize {
            self.program.ropes[..count]
                .iter()
                .map(|r| 2 * r.inverse_frequencies.len())
                .sum()
        };
        let (before, all) = (sizes(rope), sizes(self.program.ropes.len()));
        let start = token * all + before;
        start..start + 2 * self.program.ropes[rope].inverse_frequencies.len()
    }

    pub(super) fn attention(
        &self,
        member: Member<'_>,
        counter: usize,
        phase: &Attention,
        scratch: &mut Scratch<'_>,
    ) {
        let kv = self.kv.layer(phase.layer);
        let shape = Shape {
            heads: phase.heads,
            layer: kv.layer(),
            causal: phase.causal,
            bias: phase
                .relative_bias
                .and_then(|bias| self.biases.get(&bias.table)),
        };
        for token in member.share(self.tokens()) {
            self.write_token(phase, shape, kv, token, scratch);
        }
        member.barrier();
        let scoring = Scoring {
            scale: phase.scale,
            softcap: phase.softcap,
        };
        if self.tokens() <= SPLIT_TOKENS {
            self.attend_by_splits((member, counter), shape, kv, scoring, scratch);
            return;
        }
        let tiles = &self.places.tiles;
        let units = tiles.len() * shape.layer.kv_heads;
        loop {
            let item = self.counters[counter].fetch_add(1, Ordering::Relaxed);
            if item >= units {
                return;
            }
            let unit = Unit {
                tile: tiles[item / shape.layer.kv_heads].clone(),
                kv_head: item % shape.layer.kv_heads,
            };
            self.attend_tile(&unit, shape, kv, scoring, scratch);
        }
    }

    /// Norms and rotates the heads of one token in place and writes its keys and values.
    fn write_token(
        &self,
        phase: &Attention,
        shape: Shape<'_>,
        kv: KvView<'_>,
        token: usize,
        scratch: &mut Scratch<'_>,
    ) {
        let (width, head_dim) = (shape.qkv_width(), shape.layer.head_dim);
        // SAFETY: this member's token, written before the last barrier.
        let row = unsafe { self.space.qkv.range_mut(token * width..(token + 1) * width) };
        let (queries, rest) = row.split_at_mut(shape.heads * head_dim);
        let (keys, values) = rest.split_at_mut(shape.layer.kv_heads * head_dim);
        self.norm_heads(phase.query_norm, queries, scratch);
        self.norm_heads(phase.key_norm, keys, scratch);
        if let Some(rope) = phase.rope {
            for head in queries.chunks_exact_mut(head_dim) {
                self.turn(rope, token, head);
            }
            for head in keys.chunks_exact_mut(head_dim) {
                self.turn(rope, token, head);
            }
        }
        let place = self.places.tokens[token];
        let block = self.input.segments[place.segment].blocks[place.position / BLOCK];
        let slot = place.position % BLOCK;
        for head in 0..shape.layer.kv_heads {
            let range = head * head_dim..(head + 1) * head_dim;
            let key = &keys[range.clone()];
            // SAFETY: each token of a step has its own place in the cache, and this is this
            // member's token.
            unsafe { kv.write(self.isa, (block, head, slot), key, &values[range]) };
        }
    }

    /// Norms runs as long as the norm's weight: each head, or all of them together.
    fn norm_heads(&self, norm: Option<Norm>, heads: &mut [f32], scratch: &mut Scratch<'_>) {
        let Some(norm) = norm else {
            return;
        };
        for run in heads.chunks_exact_mut(self.vector(norm.weight).len()) {
            let out = &mut scratch.row[..run.len()];
            self.normalize(norm, run, out);
            run.copy_from_slice(out);
        }
    }

    /// Rotates a head of a token.
    fn turn(&self, rope: usize, token: usize, head: &mut [f32]) {
        let pairing = self.program.ropes[rope].pairing;
        // SAFETY: tables were written before the barrier of an earlier phase.
        let table = unsafe { self.space.ropes.range(self.rope_table(rope, token)) };
        self.isa.run(Rotate {
            pairing,
            table,
            head,
        });
    }

    /// The positions that a token sees.
    fn sees(&self, shape: Shape<'_>, token: usize) -> Range<usize> {
        let place = self.places.tokens[token];
        let window = shape.layer.window.map(Tokens::get);
        visible(place.position, window, (!shape.causal).then_some(place.end))
    }

    /// The rows that hold the queries of all tokens.
    fn query_rows(&self, shape: Shape<'_>) -> &[f32] {
        let all = 0..self.tokens() * shape.qkv_width();
        // SAFETY: queries were written before the last barrier.
        unsafe { self.space.qkv.range(all) }
    }

    /// Lists the queries of a unit, token by token, and tells which splits they see.
    fn queries<'b>(
        &self,
        unit: &Unit,
        shape: Shape<'_>,
        list: &'b mut [Query],
    ) -> (&'b [Query], Range<usize>) {
        let (head_dim, width, group) = (shape.layer.head_dim, shape.qkv_width(), shape.group());
        let list = &mut list[..unit.tile.tokens.len() * group];
        let (mut low, mut high) = (usize::MAX, 0);
        for (token, heads) in unit.tile.tokens.clone().zip(list.chunks_exact_mut(group)) {
            let range = self.sees(shape, token);
            let position = self.places.tokens[token].position;
            low = low.min(range.start);
            high = high.max(range.end);
            for (head, query) in heads.iter_mut().enumerate() {
                let head = unit.kv_head * group + head;
                *query = Query {
                    start: token * width + head * head_dim,
                    first: range.start,
                    end: range.end,
                    bias: shape.bias.map_or(0, |bias| bias.start(head, position)),
                };
            }
        }
        (list, low / SPLIT..high.div_ceil(SPLIT))
    }

    /// Attends one tile to its whole context, split after split.
    fn attend_tile(
        &self,
        unit: &Unit,
        shape: Shape<'_>,
        kv: KvView<'_>,
        scoring: Scoring,
        scratch: &mut Scratch<'_>,
    ) {
        let head_dim = shape.layer.head_dim;
        let (queries, splits) = self.queries(unit, shape, scratch.queries);
        let blocks = self.input.segments[unit.tile.segment].blocks;
        for query in 0..queries.len() {
            reset(&mut state(scratch.totals, query, head_dim));
        }
        for split in splits {
            let kv_head = unit.kv_head;
            let (rows, states) = (self.query_rows(shape), &mut *scratch.states);
            self.isa.run(AttendSplit {
                queries,
                rows,
                kv,
                kv_head,
                blocks,
                split,
                scoring,
                bias: shape.bias.map(|bias| &bias.values[..]),
                states,
                opened: scratch.opened,
            });
            for query in 0..queries.len() {
                let total = state(scratch.totals, query, head_dim);
                let next = state(scratch.states, query, head_dim);
                self.isa.run(Merge { total, next });
            }
        }
        for query in 0..queries.len() {
            let token = unit.tile.tokens.start + query / shape.group();
            let head = unit.kv_head * shape.group() + query % shape.group();
            self.put_head(shape, token, head, &state(scratch.totals, query, head_dim));
        }
    }

    /// Attends few tokens: the team divides tiles, heads and splits, then merges the splits.
    fn attend_by_splits(
        &self,
        (member, counter): (Member<'_>, usize),
        shape: Shape<'_>,
        kv: KvView<'_>,
        scoring: Scoring,
        scratch: &mut Scratch<'_>,
    ) {
        let (kv_heads, splits) = (shape.layer.kv_heads, self.space.splits);
        let per_token = splits * shape.heads * shape.state();
        let units = self.tokens() * kv_heads * splits;
        loop {
            let item = self.counters[counter].fetch_add(1, Ordering::Relaxed);
            if item >= units {
                break;
            }
            let (token, rest) = (item / (kv_heads * splits), item % (kv_heads * splits));
            let (split, kv_head) = (rest / kv_heads, rest % kv_heads);
            let segment = self.places.tokens[token].segment;
            let tokens = token..token + 1;
            let tile = Tile { segment, tokens };
            let unit = Unit { tile, kv_head };
            let (queries, seen) = self.queries(&unit, shape, scratch.queries);
            if !seen.contains(&split) {
                continue;
            }
            let size = shape.group() * shape.state();
            let start = token * per_token + split * shape.heads * shape.state() + kv_head * size;
            // SAFETY: this unit's own states.
            let states = unsafe { self.space.split_states.range_mut(start..start + size) };
            let blocks = self.input.segments[segment].blocks;
            let rows = self.query_rows(shape);
            self.isa.run(AttendSplit {
                queries,
                rows,
                kv,
                kv_head,
                blocks,
                split,
                scoring,
                bias: shape.bias.map(|bias| &bias.values[..]),
                states,
                opened: scratch.opened,
            });
        }
        member.barrier();
        for item in member.share(self.tokens() * shape.heads) {
            self.merge_splits(shape, item / shape.heads, item % shape.heads);
        }
    }

    fn merge_splits(&self, shape: Shape<'_>, token: usize, head: usize) {
        let size = shape.state();
        let seen = self.sees(shape, token);
        let mut total = [0.0; 2 + MAX_HEAD_DIM];
        let total = &mut total[..size];
        reset(&mut state(total, 0, shape.layer.head_dim));
        for split in seen.start / SPLIT..seen.end.div_ceil(SPLIT) {
            let start = ((token * self.space.splits + split) * shape.heads + head) * size;
            // SAFETY: written before the barrier; this member's token and head.
            let next = unsafe { self.space.split_states.range_mut(start..start + size) };
            let next = state(next, 0, shape.layer.head_dim);
            self.isa.run(Merge {
                total: state(total, 0, shape.layer.head_dim),
                next,
            });
        }
        self.put_head(shape, token, head, &state(total, 0, shape.layer.head_dim));
    }

    fn put_head(
        &self,
        shape: Shape<'_>,
        token: usize,
        head: usize,
        state: &crate::phases::attention::State<'_>,
    ) {
        let head_dim = shape.layer.head_dim;
        let at = (token * shape.heads + head) * head_dim;
        // SAFETY: each head of each token is finished by one member.
        finish(state, unsafe {
            self.space.attended.range_mut(at..at + head_dim)
        });
    }
}
