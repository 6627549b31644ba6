//! The list of candidates, alone and through the sampler.
#![expect(clippy::cast_precision_loss, reason = "margins cover it")]

mod draws;
mod llama;
mod plain;

use forthwith_core::request::{Limits, RequestParts};
use forthwith_core::rows::PlainPasses;
use forthwith_core::units::Tokens;

use super::scan::Alone;
use super::*;

#[rustfmt::skip]
const FEW: [f32; 12] = [2.25, -1.5, 3.0, 0.5, 2.875, -4.0, 1.75, 0.0, 2.5, -0.75, 1.0, -8.0];

fn ids(tokens: &[u32]) -> Vec<TokenId> {
    tokens.iter().copied().map(TokenId::new).collect()
}

fn request(params: SamplingParams, prompt: usize) -> GenerationRequest {
    let parts = RequestParts {
        sampling: params,
        ..RequestParts::new(vec![TokenId::new(0); prompt])
    };
    let limits = Limits {
        vocab: 1 << 20,
        context: Tokens::new(1 << 20),
    };
    GenerationRequest::new(parts, limits).unwrap()
}

fn row<'a>(logits: &'a [f32], request: &'a GenerationRequest, tokens: &'a [TokenId]) -> Row<'a> {
    let params = request.sampling();
    Row {
        logits,
        request,
        tokens,
        guide: None,
        bound: first_bound(params.filters.mirostat),
        scored: None,
    }
}

fn sampler(vocab: usize) -> Sampler {
    Sampler::new(vocab, 1, Arc::new(PlainPasses))
}

/// The tokens that all stages leave, with their probabilities.
fn left(row: &Row<'_>) -> Vec<(u32, f64)> {
    let mut sampler = sampler(row.logits.len());
    let mut candidates = Vec::new();
    let mut list = List::of_row(row.logits, &mut candidates);
    let order = stages(row.request.sampling());
    sampler.shorten(&mut list, order, row).unwrap();
    let total = list.weigh().total as f64;
    let share = |c: &Candidate| (c.id, c.weight() as f64 / total);
    list.candidates().iter().map(share).collect()
}

fn close(ours: &[(u32, f64)], expected: &[(u32, f64)], tolerance: f64) -> bool {
    let far = |(a, b): (&(u32, f64), &(u32, f64))| a.0 != b.0 || (a.1 - b.1).abs() > tolerance;
    ours.len() == expected.len() && !ours.iter().zip(expected).any(far)
}

/// The order decides: what is dropped first is not counted later.
#[test]
fn the_order_is_the_requests() {
    let with = |order: &[Stage]| {
        let mut params = SamplingParams {
            temperature: 2.0,
            min_p: 0.1,
            ..SamplingParams::default()
        };
        params.filters.order = Some(order.to_vec());
        let request = request(params, 1);
        left(&row(&FEW, &request, &ids(&[0]))).len()
    };
    assert_eq!(with(&[Stage::MinP, Stage::Temperature]), 6);
    assert_eq!(with(&[Stage::Temperature, Stage::MinP]), 10);
}

#[test]
fn a_window_says_which_tokens_are_repeated() {
    let logits = [2.0, -2.0, 4.0, 1.0];
    let penalized = |last: Option<u32>| {
        let mut params = SamplingParams {
            presence_penalty: 0.5,
            ..SamplingParams::default()
        };
        params.filters.repeat.penalty = 2.0;
        params.filters.repeat.last = last;
        let mut changed = logits;
        let tokens = ids(&[0, 1, 2, 2, 3]);
        Penalties::new(4).apply(&mut changed[..], &params, &tokens, 4);
        changed
    };
    // Prompt and answer count alike, each token once; presence is of the answer alone.
    assert_eq!(penalized(Some(0)), [2.0, -2.0, 4.0, 0.5]);
    assert_eq!(penalized(Some(1)), [2.0, -2.0, 4.0, 0.0]);
    assert_eq!(penalized(Some(3)), [2.0, -2.0, 2.0, 0.0]);
    assert_eq!(penalized(Some(4)), [2.0, -4.0, 2.0, 0.0]);
    assert_eq!(penalized(Some(5)), [1.0, -4.0, 2.0, 0.0]);
    assert_eq!(penalized(None), [1.0, -4.0, 2.0, 0.0]);
}

#[test]
fn logits_that_late_penalties_damage_are_errors() {
    let mut params = SamplingParams {
        top_k: 2,
        repetition_penalty: 0.001,
        ..SamplingParams::default()
    };
    params.filters.order = Some(vec![Stage::TopK, Stage::Penalties]);
    let request = request(params, 1);
    let logits = [3e38, 2.9e38, 1.0];
    let choice = sampler(3).choose(&row(&logits, &request, &ids(&[0])), &mut Alone);
    assert!(choice.unwrap_err().to_string().contains("inf for token 0"));
}
