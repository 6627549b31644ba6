//! Log-probabilities of a prompt's tokens, in vLLM's shape: a list with null for the first token, then
//! for each an object from token id to what is known of it.

use forthwith_core::units::TokenId;
use forthwith_engine::PromptLogprob;
use forthwith_text::Tokenizer;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::logprobs::finite;
use super::report::{Report, ids};

/// One entry for each token of the prompt.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct PromptLogprobs(Vec<Option<Place>>);

/// The prompt's own token, then the most likely ones.
#[derive(Clone, Debug)]
struct Place(Vec<(TokenId, Entry)>);

#[derive(Clone, Debug, Serialize)]
struct Entry {
    logprob: f64,
    /// The most likely token is at 1.
    rank: u32,
    decoded_token: String,
}

impl PromptLogprobs {
    /// Of these tokens, with `count` alternatives of each.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        tokens: &[TokenId],
        (rows, count): (&[PromptLogprob], u32),
    ) -> Self {
        let entry = |id: TokenId, logprob: f64, rank: u32| {
            let bytes = tokenizer.token_bytes(id);
            let decoded_token = String::from_utf8_lossy(bytes).into_owned();
            let logprob = finite(logprob);
            let entry = Entry {
                logprob,
                rank,
                decoded_token,
            };
            (id, entry)
        };
        let place = |(&token, row): (&TokenId, &PromptLogprob)| {
            let own = entry(token, row.likelihood.chosen, row.rank);
            let top = (1..=count).zip(&row.likelihood.top);
            let others = top.filter(|(_, (id, _))| *id != token);
            let others = others.map(|(rank, &(id, logprob))| entry(id, logprob, rank));
            Some(Place(std::iter::once(own).chain(others).collect()))
        };
        let known = tokens.iter().skip(1).zip(rows).map(place);
        Self(std::iter::once(None).chain(known).collect())
    }
}

/// What an answer to a conversation tells of the prompt that all its choices have.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ChatPrompt {
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

impl ChatPrompt {
    /// What can be told before anything is computed.
    pub(crate) fn new(report: Report, prompts: &[Vec<TokenId>]) -> Self {
        let tokens = prompts.first().filter(|_| report.token_ids);
        Self {
            prompt_logprobs: None,
            prompt_token_ids: tokens.map(|tokens| ids(tokens)),
        }
    }

    /// Adds what the engine tells, once for all choices.
    pub(crate) fn logprobs_of(
        &mut self,
        report: Report,
        (tokenizer, prompts): (&Tokenizer, &[Vec<TokenId>]),
        rows: &[PromptLogprob],
    ) {
        if let (Some(count), Some(tokens), None) = (
            report.prompt_logprobs,
            prompts.first(),
            &self.prompt_logprobs,
        ) {
            let told = PromptLogprobs::new(tokenizer, tokens, (rows, count));
            self.prompt_logprobs = Some(told);
        }
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (id, entry) in &self.0 {
            map.serialize_entry(&id.get().to_string(), entry)?;
        }
        map.end()
    }
}
