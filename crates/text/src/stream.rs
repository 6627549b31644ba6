//! The out-path of one request: tokens in, text deltas out.

use std::sync::Arc;

use forthwith_core::units::TokenId;

use crate::detokenizer::Detokenizer;
use crate::stop::StopScanner;
use crate::tokenizer::Tokenizer;

/// What one token adds to the answer's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Whole characters, safe to send.
    pub text: String,
    /// Which stop string ended the answer; text after it is dropped.
    pub stop: Option<usize>,
}

/// Detokenizer and stop strings of one request.
///
/// The deltas, joined, are the text of all tokens up to the first stop string. Hidden tokens add no
/// text unless they are spelled. The stop string that is complete first wins, the longest of several complete at once.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stops: StopScanner,
    /// Hidden tokens that are shown all the same.
    spelled: Vec<TokenId>,
}

impl TextStream {
    /// Starts the text of one answer; empty stop strings are ignored.
    pub fn new(tokenizer: Arc<Tokenizer>, stops: Vec<String>) -> Self {
        let stops = StopScanner::new(stops);
        Self {
            tokenizer,
            detokenizer: Detokenizer::default(),
            stops,
            spelled: Vec::new(),
        }
    }

    /// Tells which token came before the answer: after one, the first word of an answer in whole
    /// words begins with a space.
    #[must_use]
    pub fn with_prompt(mut self, last_prompt_token: Option<TokenId>) -> Self {
        self.detokenizer = match last_prompt_token {
            Some(_) => Detokenizer::after_prompt(),
            None => Detokenizer::default(),
        };
        self
    }

    /// The text ends after the stop string that ends it, not before.
    #[must_use]
    pub fn with_stop_shown(mut self, shown: bool) -> Self {
        self.stops.show_stop(shown);
        self
    }

    /// Shows these hidden tokens as they are spelled.
    #[must_use]
    pub fn with_spelled(mut self, tokens: Vec<TokenId>) -> Self {
        self.spelled = tokens;
        self
    }

    /// Takes the next token of the answer.
    pub fn push(&mut self, token: TokenId) -> Delta {
        let mut text = String::new();
        if self.spelled.contains(&token) {
            self.detokenizer
                .push_shown(&self.tokenizer, token, &mut text);
        } else {
            self.detokenizer.push(&self.tokenizer, token, &mut text);
        }
        self.delta(&text)
    }

    /// Takes the next token, spelled out even if it is hidden. Where the tokenizer puts spaces between
    /// tokens, two hidden ones have one between them only if they are `spaced`.
    pub fn spell(&mut self, token: TokenId, spaced: bool) -> Delta {
        let mut text = String::new();
        self.detokenizer
            .spell(&self.tokenizer, (token, spaced), &mut text);
        self.delta(&text)
    }

    /// Ends the answer and hands out what was held back.
    pub fn finish(&mut self) -> Delta {
        let mut text = String::new();
        self.detokenizer.finish(&mut text);
        let mut delta = self.delta(&text);
        delta.text.push_str(&self.stops.finish());
        delta
    }

    fn delta(&mut self, text: &str) -> Delta {
        let text = self.stops.push(text);
        Delta {
            text,
            stop: self.stops.found(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Arc<Tokenizer> {
        let words = ["the", "server", "streams", ".", "<end>"].map(str::to_owned);
        let id = TokenId::new;
        Arc::new(Tokenizer::words(&words, id(4), vec![id(3), id(4)], vec![id(4)]).unwrap())
    }

    fn texts(stream: &mut TextStream, ids: &[u32]) -> Vec<String> {
        ids.iter()
            .map(|&id| stream.push(TokenId::new(id)).text)
            .collect()
    }

    #[test]
    fn words_are_joined_with_single_spaces() {
        let mut stream = TextStream::new(words(), vec![]);
        assert_eq!(
            texts(&mut stream, &[0, 1, 4, 3]),
            ["the", " server", "", " ."]
        );
        let mut stream = TextStream::new(words(), vec![]).with_prompt(Some(TokenId::new(0)));
        assert_eq!(texts(&mut stream, &[1, 2]), [" server", " streams"]);
    }

    #[test]
    fn first_delta_arrives_with_the_first_token() {
        let mut stream = TextStream::new(words(), vec!["\n\nUser:".to_owned()]);
        assert_eq!(stream.push(TokenId::new(0)).text, "the");
    }

    #[test]
    fn hidden_tokens_can_be_spelled_and_stop_strings_see_them() {
        let spelled = |spaced| {
            let mut stream = TextStream::new(words(), vec![]);
            let ids = [0, 4, 4, 1].map(TokenId::new);
            ids.map(|id| stream.spell(id, spaced).text).concat()
        };
        assert_eq!(spelled(true), "the <end> <end> server");
        assert_eq!(spelled(false), "the <end><end> server");
        let mut stream = TextStream::new(words(), vec!["<end>".to_owned()]);
        assert_eq!(stream.spell(TokenId::new(4), true).stop, Some(0));
    }

    #[test]
    fn a_stop_string_across_tokens_drops_what_follows() {
        let mut stream = TextStream::new(words(), vec!["unused".into(), "r str".into()]);
        assert_eq!(
            stream.push(TokenId::new(0)),
            Delta {
                text: "the".into(),
                stop: None
            }
        );
        assert_eq!(
            stream.push(TokenId::new(1)),
            Delta {
                text: " serve".into(),
                stop: None
            }
        );
        assert_eq!(
            stream.push(TokenId::new(2)),
            Delta {
                text: String::new(),
                stop: Some(1)
            }
        );
        assert_eq!(
            stream.finish(),
            Delta {
                text: String::new(),
                stop: Some(1)
            }
        );
    }

    #[test]
    fn an_answer_may_end_within_a_stop_string() {
        let mut stream = TextStream::new(words(), vec!["r stop".into()]);
        assert_eq!(texts(&mut stream, &[1, 2]), ["serve", "r streams"]);
        let mut stream = TextStream::new(words(), vec!["r s".into()]);
        assert_eq!(texts(&mut stream, &[1]), ["serve"]);
        assert_eq!(
            stream.finish(),
            Delta {
                text: "r".into(),
                stop: None
            }
        );
    }
}
