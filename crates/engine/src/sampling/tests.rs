//! The sampler against its definition: a full sort, once in `f64`, once in its own arithmetic.
#![expect(clippy::cast_precision_loss, reason = "margins cover it")]

use forthwith_core::request::{Limits, RequestParts};
use forthwith_core::rows::PlainPasses;
use forthwith_core::units::Tokens;
use proptest::prelude::*;

use forthwith_core::request::GenerationRequest;

use super::scan::Alone;
use super::*;

/// Closer to a border than this, single and double precision may disagree.
const ROUNDING: f64 = 1e-4;

/// Log-probabilities are told from weights in single precision.
const PRECISION: f64 = 4e-7;

/// What the definition says, and how far the case is from one where rounding may decide.
struct Expected {
    token: u32,
    margin: f64,
}

fn by_definition(logits: &[f32], params: &SamplingParams, bits: u64) -> Expected {
    let temperature = f64::from(params.temperature);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let best = f64::from(logits[order[0]]);
    let weight = |id: usize| ((f64::from(logits[id]) - best) / temperature).exp();
    let mut margin = f64::INFINITY;
    if params.top_p < 1.0 {
        let need = f64::from(params.top_p) * order.iter().map(|&id| weight(id)).sum::<f64>();
        let mut sum = 0.0;
        let mut kept = 0;
        for &id in &order {
            sum += weight(id);
            kept += 1;
            margin = margin.min((sum - need).abs());
            if sum >= need {
                break;
            }
        }
        order.truncate(kept);
    }
    order.retain(|&id| {
        let over = weight(id) - f64::from(params.min_p);
        if params.min_p > 0.0 && over != 0.0 {
            margin = margin.min(over.abs());
        }
        over >= 0.0
    });
    order.sort_unstable();
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    let point = bits as f64 / 2.0_f64.powi(64) * total;
    let mut sum = 0.0;
    for &id in &order {
        sum += weight(id);
        margin = margin.min((sum - point).abs());
        if sum > point {
            return Expected {
                token: u32::try_from(id).unwrap(),
                margin,
            };
        }
    }
    Expected {
        token: 0,
        margin: 0.0,
    }
}

/// The definition again with the sampler's own weights: no rounding is left to disagree on.
fn by_full_sort(logits: &[f32], params: &SamplingParams, bits: u64) -> u32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weighing = Weighing::new(max, params.temperature);
    let mut sorted: Vec<Candidate> = (0_u32..)
        .zip(logits)
        .map(|(id, &logit)| Candidate {
            logit,
            id,
            share: weighing.share(logit),
        })
        .collect();
    sorted.sort_by(by_likelihood);
    if params.top_k > 0 {
        sorted.truncate(params.top_k as usize);
    }
    let need = nucleus_mass(filters::mass(&sorted), params.top_p);
    let mut sum = 0;
    let mut shortest = 0;
    while sum < need || shortest == 0 {
        sum += sorted[shortest].weight();
        shortest += 1;
    }
    if params.top_p < 1.0 {
        sorted.truncate(shortest);
    }
    sorted.retain(|candidate| candidate.share >= params.min_p);
    sorted.sort_by_key(|candidate| candidate.id);
    let mut rest = filters::scale(filters::mass(&sorted), bits);
    for candidate in &sorted {
        if rest < candidate.weight() {
            return candidate.id;
        }
        rest -= candidate.weight();
    }
    unreachable!("the point lies below the total")
}

fn pick_at(logits: &[f32], params: &SamplingParams, bits: u64) -> u32 {
    picked(logits, params, bits, &mut Alone)
}

fn picked(logits: &[f32], params: &SamplingParams, bits: u64, crew: &mut dyn Crew) -> u32 {
    let mut sampler = Sampler::new(logits.len(), crew.count(), Arc::new(PlainPasses));
    let max = sampler.scan.look(logits, crew).unwrap();
    sampler.pick_at((logits, max), params, bits, crew).unwrap()
}

fn sampler(vocab: usize) -> Sampler {
    Sampler::new(vocab, 1, Arc::new(PlainPasses))
}

/// Threads that begin in the opposite order.
struct Threads(usize);

impl Crew for Threads {
    fn count(&self) -> usize {
        self.0
    }

    fn run(&mut self, work: &(dyn Fn(usize) + Sync)) -> Result<(), StepError> {
        std::thread::scope(|scope| {
            for index in (0..self.0).rev() {
                scope.spawn(move || work(index));
            }
        });
        Ok(())
    }
}

fn request(params: SamplingParams, prompt: &[u32], logprobs: Option<u32>) -> GenerationRequest {
    let parts = RequestParts {
        sampling: params,
        logprobs,
        ..RequestParts::new(prompt.iter().copied().map(TokenId::new).collect())
    };
    let limits = Limits {
        vocab: 1 << 20,
        context: Tokens::new(1 << 20),
    };
    GenerationRequest::new(parts, limits).unwrap()
}

fn row<'a>(logits: &'a [f32], request: &'a GenerationRequest, tokens: &'a [TokenId]) -> Row<'a> {
    Row {
        logits,
        request,
        tokens,
        guide: None,
        bound: 0.0,
        scored: None,
    }
}

fn choose(logits: &[f32], params: SamplingParams, prompt: &[u32], answer: &[u32]) -> u32 {
    let request = request(params, prompt, None);
    let tokens: Vec<TokenId> = prompt
        .iter()
        .chain(answer)
        .copied()
        .map(TokenId::new)
        .collect();
    let choice = sampler(logits.len()).choose(&row(logits, &request, &tokens), &mut Alone);
    choice.unwrap().token.get()
}

fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        6 => -12.0_f32..12.0,
        3 => (-6_i8..6).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
    ];
    (prop::collection::vec(logit, 1..200), -5.0_f32..5.0).prop_map(|(mut logits, first)| {
        logits[0] = first;
        logits
    })
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let top_k = prop_oneof![2 => Just(0_u32), 3 => 2_u32..300];
    let top_p = prop_oneof![2 => Just(1.0_f32), 3 => 0.0_f32..1.0];
    let min_p = prop_oneof![2 => Just(0.0_f32), 2 => 0.0_f32..0.3];
    (0.05_f32..2.0, top_k, top_p, min_p).prop_map(|(temperature, top_k, top_p, min_p)| {
        SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            ..SamplingParams::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn picks_what_the_definition_says(logits in any_logits(), params in any_params(), bits: u64) {
        let expected = by_definition(&logits, &params, bits);
        let token = pick_at(&logits, &params, bits);
        prop_assert_eq!(token, by_full_sort(&logits, &params, bits));
        prop_assert!(token == expected.token || expected.margin < ROUNDING);
    }

    #[test]
    fn penalties_are_what_the_definition_says(
        logits in any_logits(),
        prompt in prop::collection::vec(0_usize..200, 1..20),
        answer in prop::collection::vec(0_usize..200, 0..20),
        penalties in (0.5_f32..2.0, -2.0_f32..2.0, -2.0_f32..2.0),
    ) {
        let params = SamplingParams {
            repetition_penalty: penalties.0,
            frequency_penalty: penalties.1,
            presence_penalty: penalties.2,
            ..SamplingParams::default()
        };
        let within = |ids: Vec<usize>| ids.into_iter().map(|id| id % logits.len()).collect::<Vec<_>>();
        let (prompt, answer) = (within(prompt), within(answer));
        let tokens: Vec<TokenId> = prompt.iter().chain(&answer)
            .map(|&id| TokenId::new(u32::try_from(id).unwrap())).collect();
        let mut adjusted = logits.clone();
        let mut subject = Penalties::new(logits.len());
        subject.apply(&mut adjusted[..], &params, &tokens, prompt.len());
        for (id, (&before, &after)) in logits.iter().zip(&adjusted).enumerate() {
            let count = answer.iter().filter(|&&other| other == id).count();
            let mut expected = before;
            if count > 0 || prompt.contains(&id) {
                expected = if before > 0.0 { before / penalties.0 } else { before * penalties.0 };
            }
            if count > 0 {
                expected -= count as f32 * penalties.1;
                expected -= penalties.2;
            }
            prop_assert_eq!(after.to_bits(), expected.to_bits());
        }
        let mut second = logits.clone();
        subject.apply(&mut second[..], &params, &tokens, prompt.len());
        prop_assert_eq!(second, adjusted);
    }

    #[test]
    fn logprobs_are_the_raw_distribution(logits in any_logits(), count in 0_u32..20) {
        let params = SamplingParams { temperature: 0.3, presence_penalty: 1.0, ..SamplingParams::default() };
        let request = request(params, &[0], Some(count));
        let choice = sampler(logits.len()).choose(&row(&logits, &request, &[TokenId::new(0)]), &mut Alone).unwrap();
        let logprob = choice.logprob.unwrap();
        let total = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
        let expected = |id: usize| f64::from(logits[id]) - total;
        prop_assert!((logprob.chosen - expected(choice.token.index())).abs() < PRECISION);
        let mut order: Vec<usize> = (0..logits.len()).filter(|&id| logits[id] > f32::NEG_INFINITY).collect();
        order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
        order.truncate(count as usize);
        let top: Vec<usize> = logprob.top.iter().map(|(token, _)| token.index()).collect();
        prop_assert_eq!(top, order);
        for (token, value) in logprob.top {
            prop_assert!((value - expected(token.index())).abs() < PRECISION);
        }
    }
}

#[test]
fn selection_in_a_real_vocabulary_equals_a_full_sort() {
    // Steep enough for a small nucleus at 1.0, flat enough for a huge one at 2.0.
    let logits: Vec<f32> = (0..50_000_u64)
        .map(|id| (rng::draw(9, 0, id) >> 40) as f32 / 1e6)
        .collect();
    for (index, temperature) in (0_u64..).zip([0.3, 0.7, 1.0, 2.0]) {
        for (top_k, top_p, min_p) in [
            (0, 1.0, 0.0),
            (40, 1.0, 0.0),
            (0, 0.9, 0.0),
            (0, 0.9, 0.01),
            (0, 0.999, 0.0),
            (0, 1.0, 0.05),
            (1_000, 1.0, 0.0),
            (30_000, 0.95, 0.01),
        ] {
            let params = SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                ..SamplingParams::default()
            };
            for draw in 0..3 {
                let bits = rng::draw(index, top_k, draw);
                let token = pick_at(&logits, &params, bits);
                assert_eq!(token, by_full_sort(&logits, &params, bits), "{params:?}");
            }
        }
    }
}

#[test]
fn a_shared_row_gives_the_same_choice() {
    for (spread, temperature) in [(1e6, 1.0), (1e6, 0.3), (2e5, 1.0)] {
        let logits: Vec<f32> = (0..100_000_u64)
            .map(|id| (rng::draw(5, 0, id) >> 40) as f32 / spread)
            .collect();
        for (top_k, top_p, min_p) in [
            (0, 1.0, 0.0),
            (40, 1.0, 0.0),
            (0, 0.9, 0.0),
            (0, 0.999, 0.0),
            (0, 0.9, 0.01),
            (0, 1.0, 0.05),
        ] {
            let params = SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty: 1.1,
                ..SamplingParams::default()
            };
            let request = request(params, &[1], Some(3));
            let tokens: Vec<TokenId> = (1..50).map(TokenId::new).collect();
            let choose = |crew: &mut dyn Crew| {
                let passes = Arc::new(PlainPasses);
                let mut sampler = Sampler::new(logits.len(), crew.count(), passes);
                sampler.choose(&row(&logits, &request, &tokens), crew)
            };
            let alone = choose(&mut Alone);
            for threads in [2, 3, 40] {
                assert_eq!(choose(&mut Threads(threads)), alone, "{threads} threads");
            }
        }
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_equals() {
    let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, -0.0];
    assert_eq!(choose(&logits, SamplingParams::greedy(), &[0], &[]), 1);
    let top_one = SamplingParams {
        top_k: 1,
        ..SamplingParams::default()
    };
    assert_eq!(choose(&logits, top_one, &[0], &[]), 1);
    assert_eq!(choose(&[0.0, -0.0], SamplingParams::greedy(), &[0], &[]), 0);
    assert_eq!(choose(&[-0.0, 0.0], SamplingParams::greedy(), &[0], &[]), 0);
}

#[test]
fn ties_at_a_border_go_to_the_lower_ids() {
    let logits = [2.0; 10];
    let allowed = |params: &SamplingParams| -> Vec<u32> {
        let mut ids: Vec<u32> = (0..64).map(|i| pick_at(&logits, params, i << 58)).collect();
        ids.dedup();
        ids
    };
    let top_k = SamplingParams {
        top_k: 3,
        ..SamplingParams::default()
    };
    assert_eq!(allowed(&top_k), [0, 1, 2]);
    let half = SamplingParams {
        top_p: 0.5,
        ..SamplingParams::default()
    };
    assert_eq!(allowed(&half), [0, 1, 2, 3, 4]);
    let both = SamplingParams {
        top_k: 4,
        top_p: 0.5,
        ..SamplingParams::default()
    };
    assert_eq!(allowed(&both), [0, 1]);
}

#[test]
fn extremes_leave_the_most_likely_token() {
    let logits = [0.5, 4.0, 3.9, 4.0, f32::NEG_INFINITY];
    for bits in [0, 1 << 62, 1 << 63, u64::MAX] {
        let none = SamplingParams {
            top_p: 0.0,
            ..SamplingParams::default()
        };
        assert_eq!(pick_at(&logits, &none, bits), 1);
        for top_k in [0, 3] {
            let equals_only = SamplingParams {
                min_p: 1.0,
                top_k,
                ..SamplingParams::default()
            };
            assert!([1, 3].contains(&pick_at(&logits, &equals_only, bits)));
        }
        let cold = SamplingParams {
            temperature: 2e-5,
            ..SamplingParams::default()
        };
        assert!([1, 3].contains(&pick_at(&logits, &cold, bits)));
        let impossible = SamplingParams {
            top_k: 5,
            temperature: 2.0,
            ..SamplingParams::default()
        };
        assert_ne!(pick_at(&logits, &impossible, bits), 4);
    }
}

#[test]
fn a_point_on_a_border_belongs_to_the_next_token() {
    let logits = [1.0, 1.0, f32::NEG_INFINITY];
    let listed = SamplingParams {
        top_k: 2,
        ..SamplingParams::default()
    };
    for params in [SamplingParams::default(), listed] {
        assert_eq!(pick_at(&logits, &params, 0), 0);
        assert_eq!(pick_at(&logits, &params, (1 << 63) - 1), 0);
        assert_eq!(pick_at(&logits, &params, 1 << 63), 1);
        assert_eq!(pick_at(&logits, &params, u64::MAX), 1);
    }
}

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = [0.1_f32, 0.2, 0.3, 0.4].iter().map(|p| p.ln()).collect();
    let mut counts = [0_u32; 4];
    let mut answer = Vec::new();
    for _ in 0..4000 {
        let token = choose(&logits, SamplingParams::default(), &[0], &answer);
        counts[token as usize] += 1;
        answer.push(token);
    }
    // Six standard deviations.
    for (count, expected) in counts.iter().zip([400_u32, 800, 1200, 1600]) {
        assert!(count.abs_diff(expected) < 190, "{counts:?}");
    }
}

#[test]
fn the_same_place_gives_the_same_token_and_choices_differ() {
    let logits = [0.0; 1000];
    let with = |seed, choice| SamplingParams {
        seed,
        choice,
        ..SamplingParams::default()
    };
    let token = choose(&logits, with(7, 0), &[1, 2], &[3]);
    assert_eq!(token, choose(&logits, with(7, 0), &[1, 2, 3], &[]));
    assert_ne!(token, choose(&logits, with(7, 1), &[1, 2], &[3]));
    assert_ne!(token, choose(&logits, with(8, 0), &[1, 2], &[3]));
}

#[test]
fn damaged_logits_are_errors() {
    let request = request(SamplingParams::greedy(), &[0], None);
    let choose = |logits: &[f32]| {
        let choice =
            sampler(logits.len()).choose(&row(logits, &request, &[TokenId::new(0)]), &mut Alone);
        choice.unwrap_err().to_string()
    };
    assert!(choose(&[0.0, f32::NAN]).contains("NaN for token 1"));
    assert!(choose(&[f32::INFINITY, 0.0]).contains("inf for token 0"));
    assert!(choose(&[f32::NEG_INFINITY; 3]).contains("no token"));
}

#[test]
fn a_rank_counts_the_more_likely_and_equals_of_a_lower_id() {
    let logits = [1.0, 3.0, f32::NEG_INFINITY, 1.0, 2.0, f32::NEG_INFINITY];
    let ranks: Vec<u32> = (0..6).map(|id| filters::rank(&logits, id)).collect();
    assert_eq!(ranks, [3, 1, 5, 4, 2, 6]);
}
