//! From a row of logits to one token.
//!
//! Penalties, edits, what the form allows, then the other stages in the order of the request, draw. The
//! choice depends on the logits, the request, the tokens so far and, for mirostat, the bound that these
//! led to. `docs/design/sampling.md` has the formulas.
//!
//! Requests with the usual stages in the usual order take the fast path: temperature, `top_k`, `top_p`,
//! `min_p`, without a list of all tokens. All others take [`list`].

mod dry;
mod edits;
mod exact;
mod filters;
mod list;
#[cfg(test)]
mod list_tests;
mod mirostat;
mod penalties;
mod rng;
mod scan;
mod shared;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use forthwith_core::constraint::ConstraintError;
use forthwith_core::executor::StepError;
use forthwith_core::request::{GenerationRequest, SamplingParams, Stage};
use forthwith_core::rows::{ONE, RowPasses, Weighing};
use forthwith_core::units::TokenId;

use crate::event::{Failure, TokenLogprob};
use dry::Repetitions;
use exact::ln;
use filters::{Candidate, PIECE, by_likelihood, keep_mass, most_likely, nucleus_mass};
use list::List;
pub(crate) use mirostat::first_bound;
use penalties::{Logits, Penalties};
use scan::{Crew, Scan, logit_of_share, not_negligible};
pub(crate) use shared::{Row, SharedSampler};

/// So many of the most likely tokens are tried for a nucleus before the row is searched for it.
const FEW: usize = 64;

/// A token and what was asked to be known about it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) token: TokenId,
    pub(crate) logprob: Option<TokenLogprob>,
    /// The bound of mirostat for the token after this one.
    pub(crate) bound: Option<f64>,
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
    repetitions: Repetitions,
    adjusted: Vec<f32>,
    scan: Scan,
    candidates: Vec<Candidate>,
    spare: Vec<f32>,
    /// For the first version of mirostat.
    top: Vec<Candidate>,
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

/// A token, and the bound of mirostat for the next one.
type Picked = (u32, Option<f64>);

/// The stages that change something, in the order of the request.
fn stages(params: &SamplingParams) -> impl Iterator<Item = Stage> {
    let order = params.order().iter().copied();
    order.filter(|&stage| params.has(stage))
}

fn penalizes(stage: Stage) -> bool {
    matches!(stage, Stage::Penalties | Stage::Dry)
}

/// The penalties that come before everything else.
fn leading(params: &SamplingParams) -> impl Iterator<Item = Stage> {
    stages(params).take_while(|&stage| penalizes(stage))
}

/// What comes after those.
fn trailing(params: &SamplingParams) -> impl Iterator<Item = Stage> {
    stages(params).skip_while(|&stage| penalizes(stage))
}

/// Whether the fast path serves: nothing but the usual stages, in the usual order.
fn is_usual(params: &SamplingParams) -> bool {
    const USUAL: [Stage; 4] = [Stage::Temperature, Stage::TopK, Stage::TopP, Stage::MinP];
    let mut usual = USUAL.iter();
    let filters = &params.filters;
    let simple = !filters.has_dynamic_temperature() && !filters.has_mirostat();
    simple && trailing(params).all(|stage| usual.any(|&other| other == stage))
}

impl Sampler {
    /// For rows of `vocab` logits, which at most so many threads share.
    fn new(vocab: usize, threads: usize, passes: Arc<dyn RowPasses>) -> Self {
        Self {
            penalties: Penalties::new(vocab),
            repetitions: Repetitions::default(),
            adjusted: Vec::with_capacity(vocab),
            scan: Scan::new(vocab, threads, passes),
            candidates: Vec::with_capacity(vocab),
            spare: Vec::with_capacity(vocab.div_ceil(PIECE)),
            top: Vec::new(),
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
            bound: None,
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
        let generated = tokens.len() - request.prompt().len();
        let changed = leading(params).next().is_some() || request.edits().apply_after(generated);
        let (token, bound) = if changed || guide.is_some() {
            let mut adjusted = std::mem::take(&mut self.adjusted);
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            let picked = self.pick_adjusted(&mut adjusted, row, crew);
            self.adjusted = adjusted;
            picked.map_err(|error| match error {
                SampleError::NothingAllowed => SampleError::AllForbidden(generated),
                other => other,
            })?
        } else {
            self.pick((logits, max), row, crew)?
        };
        Ok(Choice {
            token: TokenId::new(token),
            rank: None,
            logprob: raw.map(|raw| TokenLogprob {
                chosen: raw.logprob(logits[token as usize]),
                top: raw.top,
            }),
            bound,
        })
    }

    /// The token, chosen from logits that are changed before.
    fn pick_adjusted(
        &mut self,
        adjusted: &mut [f32],
        row: &Row<'_>,
        crew: &mut dyn Crew,
    ) -> Result<Picked, SampleError> {
        let (request, tokens) = (row.request, row.tokens);
        for stage in leading(request.sampling()) {
            self.penalize(stage, adjusted, (request, tokens));
        }
        let place = (tokens, request.prompt().len());
        edits::apply(adjusted, (request.edits(), request.stop()), place);
        row.guide.map_or(Ok(()), |guide| guide.apply(adjusted))?;
        let max = self.scan.look(adjusted, crew)?;
        self.pick((adjusted, max), row, crew)
    }

    fn penalize<L: Logits + ?Sized>(
        &mut self,
        stage: Stage,
        logits: &mut L,
        (request, tokens): (&GenerationRequest, &[TokenId]),
    ) {
        let params = request.sampling();
        if stage == Stage::Dry {
            self.repetitions
                .penalize(logits, &params.filters.dry, tokens);
        } else {
            let prompt = request.prompt().len();
            self.penalties.apply(logits, params, tokens, prompt);
        }
    }

    fn pick(
        &mut self,
        (logits, max): (&[f32], f32),
        row: &Row<'_>,
        crew: &mut dyn Crew,
    ) -> Result<Picked, SampleError> {
        let params = row.request.sampling();
        if !is_usual(params) {
            return self.pick_listed(logits, row);
        }
        if params.is_greedy() {
            return Ok((self.scan.first_equal(logits, max), None));
        }
        let bits = rng::draw(params.seed, params.choice, row.tokens.len() as u64);
        Ok((self.pick_at((logits, max), params, bits, crew)?, None))
    }

    /// The token, by way of a list of all that are possible.
    ///
    /// # Cost   per stage a pass or two over the tokens that are left, one of them with exponentials;
    ///   a stage that selects by likelihood sorts what it keeps
    fn pick_listed(&mut self, logits: &[f32], row: &Row<'_>) -> Result<Picked, SampleError> {
        let params = row.request.sampling();
        let mut stages = trailing(params).peekable();
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut list = if stages.peek() == Some(&Stage::TopK) {
            // The maxima of the stretches spare a list of all.
            let count = logits.len().min(params.top_k as usize);
            let maxima = &self.scan.maxima;
            most_likely(logits, maxima, count, &mut self.spare, &mut candidates);
            List::of_some(&mut candidates)
        } else {
            List::of_row(logits, &mut candidates)
        };
        let picked = self
            .shorten(&mut list, stages, row)
            .map(|()| Self::draw(&mut list, row));
        self.candidates = candidates;
        picked
    }

    /// Takes a list through its stages, and what mirostat drops.
    fn shorten(
        &mut self,
        list: &mut List<'_>,
        stages: impl Iterator<Item = Stage>,
        row: &Row<'_>,
    ) -> Result<(), SampleError> {
        let params = row.request.sampling();
        let filters = &params.filters;
        for stage in stages {
            match stage {
                Stage::Penalties | Stage::Dry => {
                    self.penalize(stage, list.logits(), (row.request, row.tokens));
                    if let Some(Candidate { id, logit, .. }) = list.settle() {
                        let (token, value) = (id as usize, logit.to_string());
                        return Err(SampleError::NotFinite { token, value });
                    }
                    if list.len() == 0 {
                        return Err(SampleError::NothingAllowed);
                    }
                }
                Stage::Temperature if filters.has_dynamic_temperature() => {
                    list.set_dynamic_temperature(params.temperature, filters.dynamic);
                }
                Stage::Temperature => list.set_temperature(params.temperature),
                Stage::TopNSigma => list.top_n_sigma(filters.top_n_sigma),
                Stage::TopK => list.top_k(params.top_k),
                Stage::TypicalP => list.typical_p(filters.typical_p),
                Stage::TopP => list.top_p(params.top_p),
                Stage::MinP => list.min_p(params.min_p),
                Stage::Xtc => {
                    let place = row.tokens.len() as u64;
                    list.xtc(filters.xtc, rng::chance(params.seed, params.choice, place));
                }
            }
        }
        if filters.has_mirostat() {
            let known = (row.bound, row.logits.len());
            mirostat::shorten(list, filters.mirostat, known, &mut self.top);
        }
        Ok(())
    }

    /// The token at the point of this place, and the bound of mirostat that it leads to.
    fn draw(list: &mut List<'_>, row: &Row<'_>) -> Picked {
        let params = row.request.sampling();
        let bits = rng::draw(params.seed, params.choice, row.tokens.len() as u64);
        let (token, shares) = list.draw(bits);
        let settings = params.filters.mirostat;
        let next = || mirostat::next_bound(settings, row.bound, list, (&token, &shares));
        (token.id, params.filters.has_mirostat().then(next))
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
