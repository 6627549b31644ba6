//! From a row of logits to one token.
//!
//! Penalties, temperature, `top_k`, `top_p`, `min_p`, draw, in this order. The choice depends on
//! the logits, the request and the position alone. `docs/design/sampling.md` has the formulas.

mod exact;
mod filters;
mod penalties;
mod rng;
mod shared;
#[cfg(test)]
mod tests;

use forthwith_core::request::{GenerationRequest, SamplingParams};
use forthwith_core::units::TokenId;

use crate::event::TokenLogprob;
use exact::{exp, exp_quick, ln, weight};
use filters::{Candidate, by_likelihood, keep_mass, keep_nucleus, most_likely, nucleus_mass};
use penalties::Penalties;
pub(crate) use shared::{Row, SharedSampler};

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
    shares: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    pub(crate) fn new(vocab: usize) -> Self {
        Self {
            penalties: Penalties::new(vocab),
            adjusted: Vec::with_capacity(vocab),
            shares: Vec::with_capacity(vocab),
            candidates: Vec::with_capacity(vocab),
        }
    }

    /// The bytes of its buffers at most.
    pub(crate) fn bytes(vocab: usize) -> usize {
        let counters = size_of::<u32>();
        let (adjusted, share) = (size_of::<f32>(), size_of::<f32>());
        vocab.saturating_mul(counters + adjusted + share + size_of::<Candidate>())
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
            max,
            factor: 1.0 / params.temperature,
        };
        let top_k = params.top_k as usize;
        if top_k > 0 && top_k < logits.len() {
            most_likely(logits, top_k, &mut self.candidates);
            for candidate in &mut self.candidates {
                candidate.share = temper.share(candidate.logit);
            }
            if params.top_p < 1.0 {
                keep_nucleus(&mut self.candidates, params.top_p);
            }
        } else {
            self.shares.clear();
            self.shares
                .extend(logits.iter().map(|&logit| temper.share(logit)));
            if params.top_p >= 1.0 {
                return draw_plain(&self.shares, params.min_p, bits);
            }
            self.gather_nucleus(logits, params.top_p);
        }
        self.candidates
            .retain(|candidate| candidate.share >= params.min_p);
        filters::pick(&mut self.candidates, bits)
    }

    /// Collects the nucleus of the whole vocabulary. Tokens so light that all of them together
    /// could be left out are never looked at.
    fn gather_nucleus(&mut self, logits: &[f32], top_p: f32) {
        let total: u64 = self.shares.iter().copied().map(weight).sum();
        let need = nucleus_mass(total, top_p);
        let negligible = (total - need) / logits.len() as u64;
        let candidates = (0_u32..).zip(logits).zip(&self.shares);
        self.candidates.clear();
        self.candidates.extend(
            candidates
                .filter(|&(_, &share)| weight(share) > negligible)
                .map(|((id, &logit), &share)| Candidate { logit, id, share }),
        );
        keep_mass(&mut self.candidates, need);
    }

    fn logprobs(&mut self, logits: &[f32], max: f32, chosen: u32, count: usize) -> TokenLogprob {
        let max = f64::from(max);
        let mut sums = [0.0; 8];
        let (chunks, rest) = logits.as_chunks::<8>();
        for chunk in chunks {
            for (sum, &logit) in sums.iter_mut().zip(chunk) {
                *sum += exp(f64::from(logit) - max);
            }
        }
        let rest = rest.iter().map(|&logit| exp(f64::from(logit) - max));
        let sum: f64 = sums.into_iter().chain(rest).sum();
        let log_total = max + ln(sum);
        let logprob = |logit: f32| f64::from(logit) - log_total;
        self.candidates.clear();
        if count > 0 {
            most_likely(logits, count.min(logits.len()), &mut self.candidates);
            self.candidates.retain(|c| c.logit > f32::NEG_INFINITY);
            self.candidates.sort_unstable_by(by_likelihood);
        }
        let possible = self.candidates.iter();
        TokenLogprob {
            chosen: logprob(logits[chosen as usize]),
            top: possible
                .map(|c| (TokenId::new(c.id), logprob(c.logit)))
                .collect(),
        }
    }
}

/// Turns logits into shares of the most likely token: `e^((logit − max) / temperature)`.
#[derive(Clone, Copy)]
struct Temper {
    max: f32,
    factor: f32,
}

impl Temper {
    fn share(self, logit: f32) -> f32 {
        exp_quick((logit - self.max) * self.factor)
    }
}

/// Draws in order of id among all tokens of at least the share `min_p`.
fn draw_plain(shares: &[f32], min_p: f32, bits: u64) -> u32 {
    let kept = |share: &f32| weight(if *share >= min_p { *share } else { 0.0 });
    let mass = |shares: &[f32]| -> u64 { shares.iter().map(kept).sum() };
    let mut rest = filters::scale(mass(shares), bits);
    // Whole stretches are passed over faster than single tokens.
    let mut start = 0;
    for stretch in shares.chunks(256) {
        let below = mass(stretch);
        if rest < below {
            break;
        }
        rest -= below;
        start += stretch.len();
    }
    for (id, share) in (0_u32..).zip(shares).skip(start) {
        if rest < kept(share) {
            return id;
        }
        rest -= kept(share);
    }
    unreachable!("the point lies below the total")
}

/// The largest logit; an error if a logit is not a number or infinite, or if none is finite.
fn largest(logits: &[f32]) -> Result<f32, SampleError> {
    let is_sound = |logit: f32| logit < f32::INFINITY;
    // Side by side in arrays of fixed length, so that the compiler can use wide registers.
    let mut largest = [f32::NEG_INFINITY; 16];
    let mut unsound = [0_u32; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for lane in 0..16 {
            let logit = chunk[lane];
            largest[lane] = if logit > largest[lane] {
                logit
            } else {
                largest[lane]
            };
            unsound[lane] |= u32::from(!is_sound(logit));
        }
    }
    for &logit in rest {
        largest[0] = largest[0].max(logit);
        unsound[0] |= u32::from(!is_sound(logit));
    }
    if unsound != [0; 16] {
        let token = logits.iter().position(|&logit| !is_sound(logit));
        let token = token.unwrap_or_default();
        let value = logits[token].to_string();
        return Err(SampleError::NotFinite { token, value });
    }
    let max = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NothingAllowed);
    }
    Ok(max)
}

/// The lowest id that has this logit, which is the largest.
fn first_equal(logits: &[f32], value: f32) -> u32 {
    let matching = (0_u32..).zip(logits).find(|&(_, &logit)| logit >= value);
    matching.map_or(0, |(id, _)| id)
}
