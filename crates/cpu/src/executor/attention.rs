//! The attention phase: prepare heads and write the cache, attend, merge splits.

use super::workspace::{SPLIT_TOKENS, Scratch, TILE_TOKENS};
use super::{Member, Step};
use crate::kv::{BLOCK, KvView, MAX_HEAD_DIM};
use crate::phases::attention::{
    AttendSplit, Merge, Query, SPLIT, Scoring, finish, reset, state, visible,
};
use crate::phases::rope::{self, Rotate};
use forthwith_core::program::{Attention, KvLayer, Norm};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The shape of one attention phase.
#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    layer: KvLayer,
}

impl Shape {
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

/// A run of tokens of one segment that is attended together, for one key-value head.
#[derive(Clone)]
struct Unit {
    tokens: Range<usize>,
    segment: usize,
    kv_head: usize,
}

impl Step<'_> {
    /// Fills the tables of all rotary embeddings for the step's tokens.
    pub(super) fn rope_tables(&self, member: Member<'_>) {
        for token in member.share(self.tokens()) {
            let position = self.places[token].position;
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
        let kv = self.kv[phase.layer];
        let shape = Shape {
            heads: phase.heads,
            layer: kv.layer(),
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
            self.attend_by_splits(member, counter, shape, kv, scoring);
            return;
        }
        let tiles = self.tiles();
        let units = tiles.len() * shape.layer.kv_heads;
        loop {
            let item = self.counters[counter].fetch_add(1, Ordering::Relaxed);
            if item >= units {
                return;
            }
            let (segment, tokens) = tiles[item / shape.layer.kv_heads].clone();
            let unit = Unit {
                tokens,
                segment,
                kv_head: item % shape.layer.kv_heads,
            };
            self.attend_tile(&unit, shape, kv, scoring, scratch);
        }
    }

    /// Norms and rotates the heads of one token in place and writes its keys and values.
    fn write_token(
        &self,
        phase: &Attention,
        shape: Shape,
        kv: KvView<'_>,
        token: usize,
        scratch: &mut Scratch<'_>,
    ) {
        let (width, head_dim) = (shape.qkv_width(), shape.layer.head_dim);
        // SAFETY: this member's token, written before the last barrier.
        let row = unsafe { self.space.qkv.range_mut(token * width..(token + 1) * width) };
        let (queries, rest) = row.split_at_mut(shape.heads * head_dim);
        let (keys, values) = rest.split_at_mut(shape.layer.kv_heads * head_dim);
        for head in queries.chunks_exact_mut(head_dim) {
            self.turn(phase.query_norm, phase.rope, token, head, scratch);
        }
        let place = self.places[token];
        let block = self.input.segments[place.segment].blocks[place.position / BLOCK];
        let slot = place.position % BLOCK;
        for head in 0..shape.layer.kv_heads {
            let range = head * head_dim..(head + 1) * head_dim;
            let key = &mut keys[range.clone()];
            self.turn(phase.key_norm, phase.rope, token, key, scratch);
            // SAFETY: each token of a step has its own place in the cache, and this is this
            // member's token.
            unsafe { kv.write(self.isa, (block, head, slot), key, &values[range]) };
        }
    }

    fn turn(
        &self,
        norm: Option<Norm>,
        rope: Option<usize>,
        token: usize,
        head: &mut [f32],
        scratch: &mut Scratch<'_>,
    ) {
        if let Some(norm) = norm {
            let out = &mut scratch.row[..head.len()];
            self.normalize(norm, head, out);
            head.copy_from_slice(out);
        }
        if let Some(index) = rope {
            let pairing = self.program.ropes[index].pairing;
            // SAFETY: tables were written before the barrier of an earlier phase.
            let table = unsafe { self.space.ropes.range(self.rope_table(index, token)) };
            self.isa.run(Rotate {
                pairing,
                table,
                head,
            });
        }
    }

    /// The step's tokens in tiles of one segment each.
    fn tiles(&self) -> Vec<(usize, Range<usize>)> {
        let mut tiles = Vec::new();
        let mut first = 0;
        for (segment, run) in self.input.segments.iter().enumerate() {
            let end = first + run.tokens;
            for start in (first..end).step_by(TILE_TOKENS) {
                tiles.push((segment, start..(start + TILE_TOKENS).min(end)));
            }
            first = end;
        }
        tiles
    }

    /// The queries of a unit, token by token, and the splits that they see.
    fn queries(&self, unit: &Unit, shape: Shape) -> (Vec<Query<'_>>, Range<usize>) {
        let (head_dim, width) = (shape.layer.head_dim, shape.qkv_width());
        let window = shape.layer.window.map(forthwith_core::units::Tokens::get);
        let mut queries = Vec::with_capacity(unit.tokens.len() * shape.group());
        let (mut low, mut high) = (usize::MAX, 0);
        for token in unit.tokens.clone() {
            let range = visible(self.places[token].position, window);
            low = low.min(range.start);
            high = high.max(range.end);
            for head in 0..shape.group() {
                let at = token * width + (unit.kv_head * shape.group() + head) * head_dim;
                // SAFETY: queries were written before the last barrier.
                let values = unsafe { self.space.qkv.range(at..at + head_dim) };
                queries.push(Query {
                    values,
                    first: range.start,
                    end: range.end,
                });
            }
        }
        (queries, low / SPLIT..high.div_ceil(SPLIT))
    }

    /// Attends one tile to its whole context, split after split.
    fn attend_tile(
        &self,
        unit: &Unit,
        shape: Shape,
        kv: KvView<'_>,
        scoring: Scoring,
        scratch: &mut Scratch<'_>,
    ) {
        let head_dim = shape.layer.head_dim;
        let (queries, splits) = self.queries(unit, shape);
        let blocks = self.input.segments[unit.segment].blocks;
        for query in 0..queries.len() {
            reset(&mut state(scratch.totals, query, head_dim));
        }
        for split in splits {
            let kv_head = unit.kv_head;
            let (queries, states) = (&queries[..], &mut *scratch.states);
            self.isa.run(AttendSplit {
                queries,
                kv,
                kv_head,
                blocks,
                split,
                scoring,
                states,
            });
            for query in 0..queries.len() {
                let total = state(scratch.totals, query, head_dim);
                let next = state(scratch.states, query, head_dim);
                self.isa.run(Merge { total, next });
            }
        }
        for query in 0..queries.len() {
            let token = unit.tokens.start + query / shape.group();
            let head = unit.kv_head * shape.group() + query % shape.group();
            self.put_head(shape, token, head, &state(scratch.totals, query, head_dim));
        }
    }

    /// Attends few tokens: the team divides tiles, heads and splits, then merges the splits.
    fn attend_by_splits(
        &self,
        member: Member<'_>,
        counter: usize,
        shape: Shape,
        kv: KvView<'_>,
        scoring: Scoring,
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
            let segment = self.places[token].segment;
            let unit = Unit {
                tokens: token..token + 1,
                segment,
                kv_head,
            };
            let (queries, seen) = self.queries(&unit, shape);
            if !seen.contains(&split) {
                continue;
            }
            let size = shape.group() * shape.state();
            let start = token * per_token + split * shape.heads * shape.state() + kv_head * size;
            // SAFETY: this unit's own states.
            let states = unsafe { self.space.split_states.range_mut(start..start + size) };
            let blocks = self.input.segments[segment].blocks;
            let queries = &queries[..];
            self.isa.run(AttendSplit {
                queries,
                kv,
                kv_head,
                blocks,
                split,
                scoring,
                states,
            });
        }
        member.barrier();
        for item in member.share(self.tokens() * shape.heads) {
            self.merge_splits(shape, item / shape.heads, item % shape.heads);
        }
    }

    fn merge_splits(&self, shape: Shape, token: usize, head: usize) {
        let size = shape.state();
        let window = shape.layer.window.map(forthwith_core::units::Tokens::get);
        let seen = visible(self.places[token].position, window);
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
        shape: Shape,
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
