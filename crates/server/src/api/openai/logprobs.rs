//! Log-probabilities in the two shapes that the protocol has for them.
//!
//! They list the tokens of the answer's text; an end token, which has no text, is left out.

use forthwith_core::units::TokenId;
use forthwith_engine::TokenEvent;
use forthwith_text::Tokenizer;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// What is written for a probability of zero, whose logarithm JSON cannot hold.
const LOWEST: f64 = -9999.0;

/// The chat endpoint's shape.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatToken>,
    refusal: Option<()>,
}

#[derive(Clone, Debug, Serialize)]
struct ChatToken {
    #[serde(flatten)]
    chosen: Likelihood,
    top_logprobs: Vec<Likelihood>,
}

#[derive(Clone, Debug, Serialize)]
struct Likelihood {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    pub(crate) fn extend(&mut self, tokenizer: &Tokenizer, tokens: &[TokenEvent]) {
        let likelihood = |id: TokenId, logprob: f64| {
            let bytes = tokenizer.token_bytes(id);
            Likelihood {
                token: String::from_utf8_lossy(bytes).into_owned(),
                logprob: finite(logprob),
                bytes: bytes.to_vec(),
            }
        };
        for event in tokens {
            let Some(logprob) = &event.logprob else {
                continue;
            };
            let top = logprob.top.iter();
            self.content.push(ChatToken {
                chosen: likelihood(event.token, logprob.chosen),
                top_logprobs: top.map(|&(id, value)| likelihood(id, value)).collect(),
            });
        }
    }
}

/// The completion endpoint's shape: parallel lists.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    top_logprobs: Vec<Ranked>,
    text_offset: Vec<usize>,
}

/// Tokens and their log-probabilities, most likely first.
#[derive(Clone, Debug)]
struct Ranked(Vec<(String, f64)>);

impl Ranked {
    /// Two tokens may be spelled alike; the more likely one stands for both.
    fn new(tokenizer: &Tokenizer, tokens: impl Iterator<Item = (TokenId, f64)>) -> Self {
        let mut names: Vec<(String, f64)> = Vec::new();
        for (id, logprob) in tokens {
            let name = spelled(tokenizer.token_bytes(id));
            if names.iter().all(|(known, _)| *known != name) {
                names.push((name, finite(logprob)));
            }
        }
        Self(names)
    }
}

impl Serialize for Ranked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (token, logprob) in &self.0 {
            map.serialize_entry(token, logprob)?;
        }
        map.end()
    }
}

/// Where in a choice's text the next token begins, in characters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offset(usize);

impl Offset {
    /// After a text that stands before the answer.
    pub(crate) fn after(text: &str) -> Self {
        Self(text.chars().count())
    }

    /// The place of a token; one that continues a character stands where that character began.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let continues = |byte: &u8| byte & 0xC0 == 0x80;
        let begun = bytes.iter().filter(|byte| !continues(byte)).count();
        let inside = bytes.first().is_some_and(continues);
        let place = self.0.saturating_sub(usize::from(inside));
        self.0 += begun;
        place
    }
}

impl CompletionLogprobs {
    pub(crate) fn extend(
        &mut self,
        tokenizer: &Tokenizer,
        tokens: &[TokenEvent],
        offset: &mut Offset,
    ) {
        for event in tokens {
            let Some(logprob) = &event.logprob else {
                continue;
            };
            let bytes = tokenizer.token_bytes(event.token);
            let token = spelled(bytes);
            let chosen = (event.token, logprob.chosen);
            let ranked = Ranked::new(tokenizer, logprob.top.iter().copied().chain([chosen]));
            self.tokens.push(token);
            self.token_logprobs.push(finite(logprob.chosen));
            self.top_logprobs.push(ranked);
            self.text_offset.push(offset.pass(bytes));
        }
    }
}

/// A token as text; one that is no whole character is spelled in bytes, so that two differ.
fn spelled(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let hex: Vec<String> = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    format!("bytes:{}", hex.concat())
}

fn finite(logprob: f64) -> f64 {
    logprob.max(LOWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_count_characters_over_split_tokens() {
        let mut offset = Offset::after("né");
        let fox = "🦊".as_bytes();
        let places = [&fox[..1], &fox[1..3], &fox[3..], b" a", b"b"].map(|part| offset.pass(part));
        assert_eq!(places, [2, 2, 2, 3, 5]);
    }

    #[test]
    fn half_a_character_is_spelled_in_bytes() {
        assert_eq!(spelled(&[0xF0, 0x9F]), "bytes:\\xf0\\x9f");
        assert_eq!(spelled("é".as_bytes()), "é");
    }

    #[test]
    fn an_impossible_token_has_a_number() {
        assert!((finite(f64::NEG_INFINITY) - LOWEST).abs() < f64::EPSILON);
        assert!((finite(-2.5) + 2.5).abs() < f64::EPSILON);
    }
}
