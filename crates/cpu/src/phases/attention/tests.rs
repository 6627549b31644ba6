use super::*;
use crate::isa::IsaChoice;
use crate::kv::KvCache;
use forthwith_core::program::{KvLayer, Program};
use forthwith_core::units::{Blocks, Tokens};
use half::f16;
use proptest::prelude::*;

struct Case {
    head_dim: usize,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    blocks: Vec<BlockId>,
    cache: KvCache,
}

/// A pseudo-random float in −1..1 that a half float holds exactly.
#[expect(clippy::cast_precision_loss, reason = "24 bits")]
fn noise(seed: usize) -> f32 {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    f16::from_f32(mixed as f32 / 8_388_608.0 - 1.0).to_f32()
}

fn case(format: KvFormat, head_dim: usize, positions: usize, seed: usize) -> Case {
    let layer = KvLayer {
        kv_heads: 1,
        head_dim,
        window: None,
    };
    let program = Program {
        architecture: String::new(),
        hidden: 0,
        vocab: 0,
        context: Tokens::ZERO,
        weights: vec![],
        ropes: vec![],
        kv_layers: vec![layer],
        phases: vec![],
    };
    let count = positions.div_ceil(BLOCK);
    let mut cache = KvCache::new(&program, format, Blocks::new(count + 3)).unwrap();
    // Any order of blocks, not starting at the first.
    let blocks: Vec<BlockId> = (0..count)
        .map(|i| BlockId::new(u32::try_from((i * 7 + 3) % (count + 3)).unwrap()))
        .collect();
    let distinct: std::collections::BTreeSet<_> = blocks.iter().collect();
    let blocks = if distinct.len() == count {
        blocks
    } else {
        (0..count)
            .rev()
            .map(|i| BlockId::new(u32::try_from(i + 2).unwrap()))
            .collect()
    };
    let vector = |salt: usize, position: usize| -> Vec<f32> {
        (0..head_dim)
            .map(|d| noise(seed + salt + position * 1000 + d))
            .collect()
    };
    let keys: Vec<_> = (0..positions)
        .map(|position| vector(1 << 20, position))
        .collect();
    let values: Vec<_> = (0..positions)
        .map(|position| vector(1 << 30, position))
        .collect();
    let view = cache.layers().layer(0);
    for position in 0..positions {
        let place = (blocks[position / BLOCK], 0, position % BLOCK);
        // SAFETY: a single thread.
        unsafe { view.write(IsaChoice::best(), place, &keys[position], &values[position]) };
    }
    let stored = |rows: Vec<Vec<f32>>| rows.iter().map(|row| format.reference(row)).collect();
    let (keys, values) = (stored(keys), stored(values));
    Case {
        head_dim,
        keys,
        values,
        blocks,
        cache,
    }
}

fn attend(
    case: &mut Case,
    isa: IsaChoice,
    queries: &[Query],
    rows: &[f32],
    (scoring, bias): (Scoring, Option<&[f32]>),
) -> Vec<Vec<f32>> {
    let size = case.head_dim + 2;
    let mut totals = vec![0.0; queries.len() * size];
    let mut next = totals.clone();
    let mut opened = vec![0.0; 2 * BLOCK * case.head_dim];
    for query in 0..queries.len() {
        reset(&mut state(&mut totals, query, case.head_dim));
    }
    let end = queries.iter().map(|query| query.end).max().unwrap();
    for split in 0..end.div_ceil(SPLIT) {
        isa.run(AttendSplit {
            queries,
            rows,
            kv: case.cache.layers().layer(0),
            kv_head: 0,
            blocks: &case.blocks,
            split,
            scoring,
            bias,
            states: &mut next,
            opened: &mut opened,
        });
        for query in 0..queries.len() {
            let total = state(&mut totals, query, case.head_dim);
            isa.run(Merge {
                total,
                next: state(&mut next, query, case.head_dim),
            });
        }
    }
    (0..queries.len())
        .map(|query| {
            let mut out = vec![0.0; case.head_dim];
            finish(&state(&mut totals, query, case.head_dim), &mut out);
            out
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn matches_the_reference_alone_and_in_company(
        format in proptest::sample::select(KvFormat::ALL.to_vec()),
        head_dim in (1_usize..=9).prop_map(|n| 8 * n),
        start in prop_oneof![0_usize..40, 480_usize..560, 1000_usize..1100],
        tokens in 1_usize..6,
        group in 1_usize..4,
        window in prop_oneof![Just(None), (1_usize..700).prop_map(Some)],
        softcap in prop_oneof![Just(None), Just(Some(2.0_f32))],
        (ahead, biased) in (any::<bool>(), any::<bool>()),
        seed in 0_usize..10_000,
    ) {
        let mut case = case(format, head_dim, start + tokens, seed);
        let scoring = Scoring { scale: 0.7, softcap };
        let rows: Vec<f32> = (0..tokens * group)
            .flat_map(|q| (0..head_dim).map(move |d| 2.0 * noise(seed ^ (q * 4096 + d))))
            .collect();
        let queries: Vec<Query> = (0..tokens * group)
            .map(|q| {
                let position = start + q / group;
                let range = visible(position, window, ahead.then_some(start + tokens));
                let bias = q % group * 2400 + 1200 - position;
                Query { start: q * head_dim, first: range.start, end: range.end, bias }
            })
            .collect();
        let numbers: Vec<f32> = (0..3 * 2400).map(|at| noise(seed ^ (at + 77))).collect();
        let bias = biased.then_some(&numbers[..]);
        let together = attend(&mut case, IsaChoice::best(), &queries, &rows, (scoring, bias));
        for (q, query) in queries.iter().enumerate() {
            let range = query.first..query.end;
            let keys: Vec<&[f32]> = case.keys[range.clone()].iter().map(Vec::as_slice).collect();
            let values: Vec<&[f32]> =
                case.values[range.clone()].iter().map(Vec::as_slice).collect();
            let added = bias.map(|bias| &bias[query.bias..][range]);
            let values_of_query = &rows[query.start..query.start + head_dim];
            let want = reference(values_of_query, &keys, &values, scoring, added);
            for (got, want) in together[q].iter().zip(&want) {
                prop_assert!((got - want).abs() < 1e-5, "{got} {want}");
            }
            for isa in IsaChoice::available() {
                let query_alone = std::slice::from_ref(query);
                let alone = attend(&mut case, isa, query_alone, &rows, (scoring, bias));
                let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&alone[0]), bits(&together[q]), "query {} on {:?}", q, isa);
            }
        }
    }
}

#[test]
fn what_a_query_may_not_see_cannot_touch_it() {
    for format in KvFormat::ALL {
        check_blindness(format);
    }
}

fn check_blindness(format: KvFormat) {
    let mut case = case(format, 16, 40, 1);
    let values: Vec<f32> = (0..16).map(noise).collect();
    let query = Query {
        start: 0,
        first: 3,
        end: 20,
        bias: 0,
    };
    let scoring = Scoring {
        scale: 0.25,
        softcap: None,
    };
    let before = attend(
        &mut case,
        IsaChoice::best(),
        &[query],
        &values,
        (scoring, None),
    );
    let poison = [f32::NAN; 16];
    let view = case.cache.layers().layer(0);
    for position in (0..3).chain(20..40) {
        let place = (case.blocks[position / BLOCK], 0, position % BLOCK);
        // SAFETY: a single thread.
        unsafe { view.write(IsaChoice::best(), place, &poison, &poison) };
    }
    assert_eq!(
        attend(
            &mut case,
            IsaChoice::best(),
            &[query],
            &values,
            (scoring, None)
        ),
        before
    );
}

#[test]
fn what_a_query_sees_shows_when_it_is_not_finite() {
    for format in KvFormat::ALL {
        for (key, value) in [(f32::NAN, 1.0), (1.0, f32::NAN), (1.0, f32::INFINITY)] {
            let mut case = case(format, 16, 40, 1);
            let place = (case.blocks[0], 0, 7);
            // SAFETY: a single thread.
            unsafe {
                case.cache.layers().layer(0).write(
                    IsaChoice::best(),
                    place,
                    &[key; 16],
                    &[value; 16],
                );
            }
            let values: Vec<f32> = (0..16).map(noise).collect();
            let query = Query {
                start: 0,
                first: 3,
                end: 20,
                bias: 0,
            };
            let scoring = Scoring {
                scale: 0.25,
                softcap: None,
            };
            for isa in IsaChoice::available() {
                let seen = attend(&mut case, isa, &[query], &values, (scoring, None));
                let shown = seen[0].iter().any(|value| !value.is_finite());
                assert!(shown, "{format} on {isa:?}: key {key}, value {value}");
            }
        }
    }
}
