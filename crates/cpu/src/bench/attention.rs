//! Attention of one token over a context, and of a prompt over itself.

use super::{Case, Plan, Unit, Work, noise, number};
use crate::isa::IsaChoice;
use crate::kv::{BLOCK, KvCache, KvFormat};
use crate::memory::OutOfMemory;
use crate::phases::attention::{AttendSplit, Merge, Query, SPLIT, Scoring, reset, state};
use forthwith_core::program::{KvLayer, Program};
use forthwith_core::units::{BlockId, Blocks, Tokens};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const GROUP: usize = HEADS / KV_HEADS;
const HEAD_DIM: usize = 128;
const STATE: usize = HEAD_DIM + 2;
/// Layers that are attended in turn, so that no cache holds the keys and values of a long context.
const LAYERS: usize = 16;
/// Tokens whose queries are attended together, as in the executor.
const TILE_TOKENS: usize = 8;

pub(super) fn plans() -> Vec<Plan> {
    let mut plans = Vec::new();
    for format in KvFormat::ALL {
        for depth in [0, 512, 2048] {
            let name = format!("attention-decode/{format}/{depth}");
            plans.push(Plan::new(name, move |isa| case(isa, format, depth, 1)));
        }
        let name = format!("attention-prefill/{format}/512");
        plans.push(Plan::new(name, move |isa| case(isa, format, 0, 512)));
    }
    plans
}

fn cache(isa: IsaChoice, format: KvFormat, positions: usize) -> Result<KvCache, OutOfMemory> {
    let layer = KvLayer {
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        window: None,
    };
    let program = Program {
        architecture: String::new(),
        hidden: 0,
        vocab: 0,
        context: Tokens::ZERO,
        weights: vec![],
        ropes: vec![],
        kv_layers: vec![layer; LAYERS],
        phases: vec![],
    };
    let blocks = positions.div_ceil(BLOCK);
    let mut cache = KvCache::new(&program, format, Blocks::new(blocks))?;
    let values = noise(64 * HEAD_DIM);
    let head = |seed: usize| &values[seed % 64 * HEAD_DIM..][..HEAD_DIM];
    for layer in 0..LAYERS {
        let view = cache.layers().layer(layer);
        for position in 0..positions {
            for kv_head in 0..KV_HEADS {
                let place = (block(position / BLOCK), kv_head, position % BLOCK);
                let seed = 7 * position + kv_head;
                // SAFETY: a single thread.
                unsafe { view.write(isa, place, head(seed), head(seed + 3)) };
            }
        }
    }
    Ok(cache)
}

fn block(index: usize) -> BlockId {
    BlockId::new(u32::try_from(index).expect("few blocks"))
}

/// The queries of some tokens and one key-value head; token `t` stands at `depth + t`.
fn queries(tokens: std::ops::Range<usize>, kv_head: usize, depth: usize) -> Vec<Query> {
    let of = |token: usize| {
        (0..GROUP).map(move |head| Query {
            start: (token * HEADS + kv_head * GROUP + head) * HEAD_DIM,
            first: 0,
            end: depth + token + 1,
            bias: 0,
        })
    };
    tokens.flat_map(of).collect()
}

/// `tokens` tokens behind `depth` others, in one layer a run.
fn case(
    isa: IsaChoice,
    format: KvFormat,
    depth: usize,
    tokens: usize,
) -> Result<Case, OutOfMemory> {
    let positions = depth + tokens;
    let mut cache = cache(isa, format, positions)?;
    let blocks: Vec<BlockId> = (0..positions.div_ceil(BLOCK)).map(block).collect();
    let rows = noise(tokens * HEADS * HEAD_DIM);
    let size = TILE_TOKENS * GROUP * STATE;
    let (mut totals, mut states) = (vec![0.0; size], vec![0.0; size]);
    let mut opened = vec![0.0; 2 * BLOCK * HEAD_DIM];
    let tiles: Vec<_> = (0..tokens)
        .step_by(TILE_TOKENS)
        .flat_map(|first| (0..KV_HEADS).map(move |head| (first, head)))
        .map(|(first, head)| {
            let tokens = first..(first + TILE_TOKENS).min(tokens);
            (head, queries(tokens, head, depth))
        })
        .collect();
    let seen: usize = (0..tokens).map(|token| depth + token + 1).sum();
    let head_bytes = format.head_bytes(HEAD_DIM) / BLOCK;
    let work = Work {
        bytes: number(2 * positions * KV_HEADS * head_bytes),
        multiply_adds: number(2 * seen * HEADS * HEAD_DIM),
        unit: Unit::Floats,
    };
    let scoring = Scoring {
        scale: 0.09,
        softcap: None,
    };
    let mut layer = 0;
    Ok(Case::new(work, move || {
        layer = (layer + 1) % LAYERS;
        for (kv_head, queries) in &tiles {
            for query in 0..queries.len() {
                reset(&mut state(&mut totals, query, HEAD_DIM));
            }
            let end = queries.last().map_or(0, |query| query.end);
            for split in 0..end.div_ceil(SPLIT) {
                isa.run(AttendSplit {
                    queries,
                    rows: &rows,
                    kv: cache.layers().layer(layer),
                    kv_head: *kv_head,
                    blocks: &blocks,
                    split,
                    scoring,
                    bias: None,
                    states: &mut states,
                    opened: &mut opened,
                });
                for query in 0..queries.len() {
                    isa.run(Merge {
                        total: state(&mut totals, query, HEAD_DIM),
                        next: state(&mut states, query, HEAD_DIM),
                    });
                }
            }
        }
    }))
}
