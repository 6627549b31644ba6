//! From a row of logits to one token.
//!
//! Penalties, edits, what the form allows, temperature, `top_k`, `top_p`, `min_p`, draw, in this order. The choice depends on
//! the logits, the request and the position alone. `docs/design/sampling.md` has the formulas.

mod edits;
mod exact;
mod filters;
mod penalties;
mod rng;
mod scan;
mod shared;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use forthwith_core::constraint::ConstraintError;
use forthwith_core::executor::StepError;
use forthwith_core::request::SamplingParams;
use forthwith_core::rows::{ONE, RowPasses, Weighing};
use forthwith_core::units::TokenId;

use crate::event::{Failure, TokenLogprob};
use exact::ln;
use filters::{Candidate, PIECE, by_likelihood, keep_mass, most_likely, nucleus_mass};
use penalties::Penalties;
use scan::{Crew, Scan, logit_of_share, not_negligible};
pub(crate) use shared::{Row, SharedSampler};

/// So many of the most likely tokens are tried for a nucleus before the row is searched for it.
const FEW: usize = 64;

/// A token and what was asked to be known about it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) token: TokenId,
    pub(crate) logprob: Option<TokenLogprob>,
    /// Its place among all tokens, for a token of the prompt.
    pub(crate) rank: Option<u32>,
}

/// The logits leave nothing to choose from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SampleError {
    #[error("the model returned a logit of {value} for token {token}; its weights may be damaged")]
    NotFinite { token: usize, value: String },
    #[error("the model allows no token here: all logits are minus infinity")]
    NothingAllowed,
    #[error(
        "the request leaves no token to choose from after {0} tokens of the answer: what it forbids, \
         allows and asks for as a form exclude each other; loosen one of them"
    )]
    AllForbidden(usize),
    #[error(transparent)]
    Form(#[from] ConstraintError),
    #[error(transparent)]
    Step(#[from] StepError),
}

impl From<SampleError> for Failure {
    fn from(error: SampleError) -> Self {
        match error {
            SampleError::AllForbidden(_) | SampleError::Form(_) => {
                Self::of_request(error.to_string())
            }
            SampleError::NotFinite { .. } | SampleError::NothingAllowed | SampleError::Step(_) => {
                Self::of_engine(error.to_string())
            }
        }
    }
}

/// Chooses tokens; keeps its buffers.
pub(crate) struct Sampler {
    penalties: Penalties,
    adjusted: Vec<f32>,
    scan: Scan,
    candidates: Vec<Candidate>,
    spare: Vec<f32>,
}

/// The distribution of the unchanged logits.
struct Raw {
    /// The largest logit.
    max: f32,
    /// `ln Σ e^(logit − max)`
    log_total: f64,
    /// The most likely tokens, the first first.
    top: Vec<(TokenId, f64)>,
}

impl Raw {
    fn logprob(&self, logit: f32) -> f64 {
        f64::from(logit) - f64::from(self.max) - self.log_total
    }
}

impl Sampler {
    /// For rows of `vocab` logits, which at most so many threads share.
    fn new(vocab: usize, threads: usize, passes: Arc<dyn RowPasses>) -> Self {
        Self {
            penalties: Penalties::new(vocab),
            adjusted: Vec::with_capacity(vocab),
            scan: Scan::new(vocab, threads, passes),
            candidates: Vec::with_capacity(vocab),
            spare: Vec::with_capacity(vocab.div_ceil(PIECE)),
        }
    }

    /// The bytes of its buffers at most, and of one more thread that shares its rows.
    pub(crate) fn bytes(vocab: usize) -> usize {
        let (counter, adjusted, spare) = (size_of::<u32>(), size_of::<f32>(), size_of::<f32>());
        vocab
            .saturating_mul(counter + adjusted + size_of::<Candidate>())
            .saturating_add(vocab.div_ceil(PIECE) * spare + Scan::bytes(vocab))
    }

    /// Chooses a token, or tells how likely the one that is asked about is.
    fn answer(&mut self, row: &Row<'_>, crew: &mut dyn Crew) -> Result<Choice, SampleError> {
        let Some(token) = row.scored else {
            return self.choose(row, crew);
        };
        let max = self.scan.look(row.logits, crew)?;
        let wanted = row.request.prompt_logprobs();
        let count = wanted.unwrap_or(0) as usize;
        let raw = self.raw(row.logits, max, count, crew)?;
        Ok(Choice {
            token,
            rank: wanted.map(|_| filters::rank(row.logits, token.index())),
            logprob: Some(TokenLogprob {
                chosen: raw.logprob(row.logits[token.index()]),
                top: raw.top,
            }),
        })
    }

    /// Chooses the token that follows `tokens`, prompt and answer so far.
    fn choose(&mut self, row: &Row<'_>, crew: &mut dyn Crew) -> Result<Choice, SampleError> {
        let Row {
            logits,
            request,
            tokens,
            guide,
            ..
        } = *row;
        let params = request.sampling();
        let max = self.scan.look(logits, crew)?;
        let raw = request.logprobs();
        let raw = raw.map(|count| self.raw(logits, max, count as usize, crew));
        let raw = raw.transpose()?;
        let (edits, generated) = (request.edits(), tokens.len() - request.prompt().len());
        let changed = Penalties::are_set(params) || edits.apply_after(generated);
        let token = if changed || guide.is_some() {
            let mut adjusted = std::mem::take(&mut self.adjusted);
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            self.penalties
                .apply(&mut adjusted, params, tokens, request.prompt().len());
            let prompt = request.prompt().len();
            edits::apply(&mut adjusted, (edits, request.stop()), (tokens, prompt));
            let formed = guide.map_or(Ok(()), |guide| guide.apply(&mut adjusted));
            let max = formed.map_err(SampleError::from);
            let max = max.and_then(|()| self.scan.look(&adjusted, crew));
            let token = max.and_then(|max| self.pick((&adjusted, max), params, tokens, crew));
            self.adjusted = adjusted;
            token.map_err(|error| match error {
                SampleError::NothingAllowed => SampleError::AllForbidden(generated),
                other => other,
            })?
        } else {
            self.pick((logits, max), params, tokens, crew)?
        };
        Ok(Choice {
            token: TokenId::new(token),
            rank: None,
            logprob: raw.map(|raw| TokenLogprob {
                chosen: raw.logprob(logits[token as usize]),
                top: raw.top,
            }),
        })
    }

    fn pick(
        &mut self,
        (logits, max): (&[f32], f32),
        params: &SamplingParams,
        before: &[TokenId],
        crew: &mut dyn Crew,
    ) -> Result<u32, SampleError> {
        if params.is_greedy() {
            return Ok(self.scan.first_equal(logits, max));
        }
        let bits = rng::draw(params.seed, params.choice, before.len() as u64);
        Ok(self.pick_at((logits, max), params, bits, crew)?)
    }

    /// The token at a point, `bits` of 2⁶⁴ along, of the filtered distribution.
    fn pick_at(
        &mut self,
        (logits, max): (&[f32], f32),
        params: &SamplingParams,
        bits: u64,
        crew: &mut dyn Crew,
    ) -> Result<u32, StepError> {
        let all = Weighing::new(max, params.temperature);
        let top_k = params.top_k as usize;
        if top_k > 0 && top_k < logits.len() {
            self.gather(logits, top_k, &all);
            if params.top_p < 1.0 {
                let need = nucleus_mass(filters::mass(&self.candidates), params.top_p);
                keep_mass(&mut self.candidates, need);
            }
            return Ok(self.pick_candidate(params.min_p, bits));
        }
        let mut allowed = Weighing {
            least_logit: logit_of_share(&all, f64::from(params.min_p)),
            least_share: params.min_p,
            ..all
        };
        if params.top_p >= 1.0 {
            return self.scan.draw(logits, (allowed, bits), None, crew);
        }
        let total = self.scan.weigh(logits, all, crew)?;
        let need = nucleus_mass(total, params.top_p);
        self.gather(logits, FEW.min(logits.len()), &all);
        if filters::mass(&self.candidates) >= need {
            keep_mass(&mut self.candidates, need);
            return Ok(self.pick_candidate(params.min_p, bits));
        }
        let counting = not_negligible(all, (total, need), logits.len());
        let near = &mut self.candidates;
        let border = self.scan.border(logits, (counting, need), near, crew)?;
        allowed.least_logit = allowed.least_logit.max(border.logit);
        let border = Some((border, &*self.candidates));
        self.scan.draw(logits, (allowed, bits), border, crew)
    }

    /// Fills the candidates with the most likely tokens and their shares.
    fn gather(&mut self, logits: &[f32], count: usize, weighing: &Weighing) {
        self.most_likely(logits, count);
        for candidate in &mut self.candidates {
            candidate.share = weighing.share(candidate.logit);
        }
    }

    /// The token at a point among the candidates of at least the share `min_p`.
    fn pick_candidate(&mut self, min_p: f32, bits: u64) -> u32 {
        self.candidates.retain(|candidate| candidate.share >= min_p);
        filters::pick(&mut self.candidates, bits)
    }

    /// What log-probabilities are told from, with the `count` most likely tokens.
    fn raw(
        &mut self,
        logits: &[f32],
        max: f32,
        count: usize,
        crew: &mut dyn Crew,
    ) -> Result<Raw, StepError> {
        let total = self.scan.weigh(logits, Weighing::new(max, 1.0), crew)?;
        #[expect(clippy::cast_precision_loss, reason = "to a part in 2^53")]
        let log_total = ln(total as f64 / ONE as f64);
        let mut raw = Raw {
            max,
            log_total,
            top: Vec::new(),
        };
        if count > 0 {
            self.most_likely(logits, count.min(logits.len()));
            self.candidates.retain(|c| c.logit > f32::NEG_INFINITY);
            self.candidates.sort_unstable_by(by_likelihood);
            let possible = self.candidates.iter();
            let top = possible.map(|c| (TokenId::new(c.id), raw.logprob(c.logit)));
            raw.top = top.collect();
        }
        Ok(raw)
    }

    /// Fills the candidates with the most likely tokens.
    fn most_likely(&mut self, logits: &[f32], count: usize) {
        let maxima = &self.scan.maxima;
        most_likely(logits, maxima, count, &mut self.spare, &mut self.candidates);
    }
}
