//! Penalties for tokens that occurred before, in the order repetition, repeat, frequency, presence.
//!
//! `repetition`: a positive logit is divided, a negative one multiplied, once for each token that
//! occurs in prompt or answer. `repeat`: the same for the last tokens of these. `frequency`:
//! subtracted once per occurrence in the answer. `presence`: subtracted once for each token that
//! occurs in the answer.

use forthwith_core::request::SamplingParams;
use forthwith_core::units::TokenId;

/// Logits that are found by their tokens.
pub(super) trait Logits {
    /// The logit of a token; none where the token is dropped already.
    fn of(&mut self, token: TokenId) -> Option<&mut f32>;
}

impl Logits for [f32] {
    fn of(&mut self, token: TokenId) -> Option<&mut f32> {
        self.get_mut(token.index())
    }
}

/// As many of the last tokens as count, or all.
pub(super) fn last(tokens: &[TokenId], count: Option<u32>) -> &[TokenId] {
    let count = count.map_or(tokens.len(), |count| count as usize);
    &tokens[tokens.len().saturating_sub(count)..]
}

/// Changes logits by what occurred before. Keeps a counter per token of the vocabulary, all zero
/// between calls.
pub(super) struct Penalties {
    occurrences: Vec<u32>,
}

impl Penalties {
    pub(super) fn new(vocab: usize) -> Self {
        Self {
            occurrences: vec![0; vocab],
        }
    }

    /// `tokens` is prompt and answer, the first `prompt` of them the prompt.
    pub(super) fn apply<L: Logits + ?Sized>(
        &mut self,
        logits: &mut L,
        params: &SamplingParams,
        tokens: &[TokenId],
        prompt: usize,
    ) {
        let repeat = params.filters.repeat;
        let all = (params.repetition_penalty, tokens);
        for (penalty, tokens) in [all, (repeat.penalty, last(tokens, repeat.last))] {
            if penalty.to_bits() == 1.0_f32.to_bits() {
                continue;
            }
            self.once_per_token(tokens, |id, _| {
                let Some(logit) = logits.of(id) else { return };
                if *logit > 0.0 {
                    *logit /= penalty;
                } else {
                    *logit *= penalty;
                }
            });
        }
        self.once_per_token(&tokens[prompt..], |id, count| {
            let Some(logit) = logits.of(id) else { return };
            *logit -= count * params.frequency_penalty;
            *logit -= params.presence_penalty;
        });
    }

    /// Calls `change` once for each token that occurs, with the number of occurrences.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a context is far below 2^24 tokens"
    )]
    fn once_per_token(&mut self, tokens: &[TokenId], mut change: impl FnMut(TokenId, f32)) {
        for id in tokens {
            self.occurrences[id.index()] += 1;
        }
        for id in tokens {
            let count = std::mem::take(&mut self.occurrences[id.index()]);
            if count > 0 {
                change(*id, count as f32);
            }
        }
    }
}
