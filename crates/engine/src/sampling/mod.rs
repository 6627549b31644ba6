//! From a row of logits to one token.
//!
//! Penalties, temperature, `top_k`, `top_p`, `min_p`, draw, in this order. The choice depends on
//! the logits, the request and the position alone. `docs/design/sampling.md` has the formulas.

mod exact;
mod filters;
mod penalties;
mod rng;
#[cfg(test)]
mod tests;

use forthwith_core::request::{GenerationRequest, SamplingParams};
use forthwith_core::units::TokenId;

use crate::event::TokenLogprob;
use exact::{exp, fixed, ln};
use filters::{Candidate, by_likelihood, keep_mass, keep_nucleus, most_likely, nucleus_mass};
use penalties::Penalties;

/// A token and what was asked to be known about it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) token: TokenId,
    pub(crate) logprob: Option<TokenLogprob>,
}

/// The logits leave nothing to choose from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SampleError {
    #[error("the model returned a logit of {value} for token {token}; its weights may be damaged")]
    NotFinite { token: usize, value: String },
    #[error("the model allows no token here: all logits are minus infinity")]
    NothingAllowed,
}

/// Chooses tokens; keeps its buffers.
pub(crate) struct Sampler {
    penalties: Penalties,
    adjusted: Vec<f32>,
    weights: Vec<u64>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    pub(crate) fn new(vocab: usize) -> Self {
        Self {
            penalties: Penalties::new(vocab),
            adjusted: Vec::new(),
            weights: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Chooses the token that follows `tokens`, prompt and answer so far.
    pub(crate) fn choose(
        &mut self,
        logits: &[f32],
        request: &GenerationRequest,
        tokens: &[TokenId],
    ) -> Result<Choice, SampleError> {
        let params = request.sampling();
        let raw_max = largest(logits)?;
        let token = if Penalties::are_set(params) {
            let mut adjusted = std::mem::take(&mut self.adjusted);
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            self.penalties
                .apply(&mut adjusted, params, tokens, request.prompt().len());
            let token = largest(&adjusted).map(|max| self.pick(&adjusted, max, params, tokens));
            self.adjusted = adjusted;
            token?
        } else {
            self.pick(logits, raw_max, params, tokens)
        };
        let logprob = request
            .logprobs()
            .map(|count| self.logprobs(logits, raw_max, token, count as usize));
        Ok(Choice {
            token: TokenId::new(token),
            logprob,
        })
    }

    fn pick(
        &mut self,
        logits: &[f32],
        max: f32,
        params: &SamplingParams,
        before: &[TokenId],
    ) -> u32 {
        if params.is_greedy() {
            return first_equal(logits, max);
        }
        let bits = rng::draw(params.seed, params.choice, before.len() as u64);
        self.pick_at(logits, max, params, bits)
    }

    /// The token at a point, `bits` of 2⁶⁴ along, of the filtered distribution.
    fn pick_at(&mut self, logits: &[f32], max: f32, params: &SamplingParams, bits: u64) -> u32 {
        let temper = Temper {
            max: f64::from(max),
            factor: 1.0 / f64::from(params.temperature),
        };
        let min_weight = fixed(f64::from(params.min_p)).max(1);
        let top_k = params.top_k as usize;
        if top_k > 0 && top_k < logits.len() {
            most_likely(logits, top_k, &mut self.candidates);
            for candidate in &mut self.candidates {
                candidate.weight = temper.weight(candidate.logit);
            }
            if params.top_p < 1.0 {
                keep_nucleus(&mut self.candidates, params.top_p);
            }
        } else {
            self.weights.clear();
            self.weights
                .extend(logits.iter().map(|&logit| temper.weight(logit)));
            if params.top_p >= 1.0 {
                return draw_plain(&self.weights, min_weight, bits);
            }
            self.gather_nucleus(logits, params.top_p);
        }
        self.candidates
            .retain(|candidate| candidate.weight >= min_weight);
        filters::pick(&mut self.candidates, bits)
    }

    /// Collects the nucleus of the whole vocabulary. Tokens so light that all of them together
    /// could be left out are never looked at.
    fn gather_nucleus(&mut self, logits: &[f32], top_p: f32) {
        let total: u64 = self.weights.iter().sum();
        let need = nucleus_mass(total, top_p);
        let negligible = (total - need) / self.weights.len() as u64;
        let rows = (0_u32..).zip(logits).zip(&self.weights);
        self.candidates.clear();
        self.candidates.extend(
            rows.filter(|&(_, &weight)| weight > negligible)
                .map(|((id, &logit), &weight)| Candidate { logit, id, weight }),
        );
        keep_mass(&mut self.candidates, need);
    }

    fn logprobs(&mut self, logits: &[f32], max: f32, chosen: u32, count: usize) -> TokenLogprob {
        let max = f64::from(max);
        let sum: f64 = logits
            .iter()
            .map(|&logit| exp(f64::from(logit) - max))
            .sum();
        let log_total = max + ln(sum);
        let logprob = |logit: f32| f64::from(logit) - log_total;
        self.candidates.clear();
        if count > 0 {
            most_likely(logits, count.min(logits.len()), &mut self.candidates);
            self.candidates.sort_unstable_by(by_likelihood);
        }
        let possible = self
            .candidates
            .iter()
            .filter(|c| c.logit > f32::NEG_INFINITY);
        TokenLogprob {
            chosen: logprob(logits[chosen as usize]),
            top: possible
                .map(|c| (TokenId::new(c.id), logprob(c.logit)))
                .collect(),
        }
    }
}

/// Turns logits into weights: `e^((logit − max) / temperature)`, the most likely token's being 1.
#[derive(Clone, Copy)]
struct Temper {
    max: f64,
    factor: f64,
}

impl Temper {
    fn weight(self, logit: f32) -> u64 {
        fixed(exp((f64::from(logit) - self.max) * self.factor))
    }
}

/// Draws in order of id among all tokens of at least this weight.
fn draw_plain(weights: &[u64], min_weight: u64, bits: u64) -> u32 {
    let kept = |weight: u64| if weight >= min_weight { weight } else { 0 };
    let total: u64 = weights.iter().map(|&weight| kept(weight)).sum();
    let mut rest = filters::scale(total, bits);
    for (id, &weight) in (0_u32..).zip(weights) {
        if rest < kept(weight) {
            return id;
        }
        rest -= kept(weight);
    }
    unreachable!("the point lies below the total")
}

/// The largest logit; an error if a logit is not a number or infinite, or if none is finite.
fn largest(logits: &[f32]) -> Result<f32, SampleError> {
    let mut max = f32::NEG_INFINITY;
    let mut sound = true;
    for &logit in logits {
        max = if logit > max { logit } else { max };
        sound &= logit < f32::INFINITY;
    }
    if !sound {
        let sound = |logit: &f32| *logit < f32::INFINITY;
        let token = logits.iter().position(|logit| !sound(logit)).unwrap_or(0);
        let value = logits[token].to_string();
        return Err(SampleError::NotFinite { token, value });
    }
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NothingAllowed);
    }
    Ok(max)
}

/// The lowest id that has this logit.
fn first_equal(logits: &[f32], value: f32) -> u32 {
    let matching = (0_u32..).zip(logits).find(|&(_, &logit)| logit >= value);
    matching.map_or(0, |(id, _)| id)
}
