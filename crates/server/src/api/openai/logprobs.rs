//! Log-probabilities in the two shapes that the protocol has for them.
//!
//! They list the tokens of the answer's text; an end token, which has no text, is left out unless the
//! prompt is listed too.

use forthwith_core::units::TokenId;
use forthwith_engine::{PromptLogprob, TokenEvent, TokenLogprob};
use forthwith_text::Tokenizer;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// What is written for a probability of zero, whose logarithm JSON cannot hold.
const LOWEST: f64 = -9999.0;

/// How tokens are named.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// By their ids, not as they are spelled.
    pub(crate) by_id: bool,
}

impl Names<'_> {
    fn id(self, id: TokenId) -> Option<String> {
        self.by_id.then(|| format!("token_id:{id}", id = id.get()))
    }

    /// The name of a token; one that is no whole character is spelled in bytes, so that two differ.
    fn of(self, id: TokenId) -> String {
        let spelled = || spelled(self.tokenizer.token_bytes(id));
        self.id(id).unwrap_or_else(spelled)
    }
}

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
    pub(crate) fn extend(&mut self, names: Names<'_>, tokens: &[TokenEvent]) {
        let likelihood = |id: TokenId, logprob: f64| {
            let bytes = names.tokenizer.token_bytes(id);
            let spelled = || String::from_utf8_lossy(bytes).into_owned();
            Likelihood {
                token: names.id(id).unwrap_or_else(spelled),
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
    /// Null for the first token of a prompt, which stands after nothing.
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<Ranked>>,
    text_offset: Vec<usize>,
}

/// Tokens and their log-probabilities, most likely first.
#[derive(Clone, Debug)]
struct Ranked(Vec<(String, f64)>);

impl Ranked {
    /// Two tokens may be spelled alike; the more likely one stands for both.
    fn new(names: Names<'_>, tokens: impl Iterator<Item = (TokenId, f64)>) -> Self {
        let mut named: Vec<(String, f64)> = Vec::new();
        for (id, logprob) in tokens {
            let name = names.of(id);
            if named.iter().all(|(known, _)| *known != name) {
                named.push((name, finite(logprob)));
            }
        }
        Self(named)
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
pub(crate) struct Offset {
    next: usize,
    /// Characters of tokens that come first and do not stand in the text.
    lacking: usize,
}

impl Offset {
    /// After a text that stands before the answer.
    pub(crate) fn after(text: &str) -> Self {
        Self {
            next: text.chars().count(),
            lacking: 0,
        }
    }

    /// At the beginning of a prompt that may lack a space which its tokens have.
    fn before(text: &str, tokenizer: &Tokenizer, tokens: &[TokenId]) -> Self {
        let shown = tokens.iter().filter(|id| !tokenizer.is_hidden(**id));
        let width: usize = shown.map(|id| begun(tokenizer.token_bytes(*id))).sum();
        Self {
            next: 0,
            lacking: width.saturating_sub(text.chars().count()),
        }
    }

    /// The place of a token; one that continues a character stands where that character began.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let inside = bytes.first().is_some_and(|&byte| continues(byte));
        let place = self.next.saturating_sub(usize::from(inside));
        let begun = begun(bytes);
        let lacking = begun.min(self.lacking);
        self.lacking -= lacking;
        self.next += begun - lacking;
        place
    }
}

/// Whether a byte is one of a character that began before it.
fn continues(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// How many characters begin in these bytes.
fn begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| !continues(byte)).count()
}

impl CompletionLogprobs {
    /// Lists the tokens of an answer.
    pub(crate) fn extend(&mut self, names: Names<'_>, tokens: &[TokenEvent], offset: &mut Offset) {
        for event in tokens {
            let Some(logprob) = &event.logprob else {
                continue;
            };
            let place = offset.pass(names.tokenizer.token_bytes(event.token));
            self.push(
                names,
                event.token,
                (Some((logprob, logprob.top.len())), place),
            );
        }
    }

    /// Lists the tokens of a prompt, with `count` alternatives of each; `text` is what is shown of it.
    pub(crate) fn of_prompt(
        names: Names<'_>,
        (tokens, text): (&[TokenId], &str),
        (rows, count): (&[PromptLogprob], u32),
    ) -> Self {
        let tokenizer = names.tokenizer;
        let mut all = Self::default();
        let mut offset = Offset::before(text, tokenizer, tokens);
        let known = rows
            .iter()
            .map(|row| Some((&row.likelihood, count as usize)));
        for (&token, known) in tokens.iter().zip(std::iter::once(None).chain(known)) {
            let hidden = tokenizer.is_hidden(token);
            let bytes = tokenizer.token_bytes(token);
            let place = offset.pass(if hidden { &[] } else { bytes });
            all.push(names, token, (known, place));
        }
        all
    }

    fn push(
        &mut self,
        names: Names<'_>,
        token: TokenId,
        (known, place): (Option<(&TokenLogprob, usize)>, usize),
    ) {
        let ranked = |(logprob, count): (&TokenLogprob, usize)| {
            let top = logprob.top.iter().copied().take(count);
            Ranked::new(names, top.chain([(token, logprob.chosen)]))
        };
        self.tokens.push(names.of(token));
        let logprob = known.map(|(logprob, _)| finite(logprob.chosen));
        self.token_logprobs.push(logprob);
        self.top_logprobs.push(known.map(ranked));
        self.text_offset.push(place);
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

pub(super) fn finite(logprob: f64) -> f64 {
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
