//! Penalties for tokens that occurred before, in the order repetition, frequency, presence.
//!
//! `repetition`: a positive logit is divided, a negative one multiplied, once for each token that
//! occurs in prompt or answer. `frequency`: subtracted once per occurrence in the answer.
//! `presence`: subtracted once for each token that occurs in the answer.

use forthwith_core::request::SamplingParams;
use forthwith_core::units::TokenId;

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

    pub(super) fn are_set(params: &SamplingParams) -> bool {
        let SamplingParams {
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            ..
        } = *params;
        // Neutral values are exact; anything else, however close, is a penalty.
        repetition_penalty.to_bits() != 1.0_f32.to_bits()
            || frequency_penalty != 0.0
            || presence_penalty != 0.0
    }

    /// `tokens` is prompt and answer, the first `prompt` of them the prompt.
    pub(super) fn apply(
        &mut self,
        logits: &mut [f32],
        params: &SamplingParams,
        tokens: &[TokenId],
        prompt: usize,
    ) {
        self.once_per_token(tokens, |id, _| {
            let logit = &mut logits[id];
            if *logit > 0.0 {
                *logit /= params.repetition_penalty;
            } else {
                *logit *= params.repetition_penalty;
            }
        });
        self.once_per_token(&tokens[prompt..], |id, count| {
            logits[id] -= count * params.frequency_penalty;
            logits[id] -= params.presence_penalty;
        });
    }

    /// Calls `change` once for each token that occurs, with the number of occurrences.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a context is far below 2^24 tokens"
    )]
    fn once_per_token(&mut self, tokens: &[TokenId], mut change: impl FnMut(usize, f32)) {
        for id in tokens {
            self.occurrences[id.index()] += 1;
        }
        for id in tokens {
            let count = std::mem::take(&mut self.occurrences[id.index()]);
            if count > 0 {
                change(id.index(), count as f32);
            }
        }
    }
}
