//! Token bytes to text, never half a character.
//!
//! Invariant: the texts of all pushes and the finish, joined, equal the lossy decoding of all
//! bytes, joined: each broken run of bytes is one U+FFFD, wherever tokens begin and end.

use forthwith_core::units::TokenId;

use crate::tokenizer::Tokenizer;

/// The bytes of a character of which the rest is still to come.
#[derive(Debug, Default)]
pub(crate) struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Takes bytes, appends the characters that are now whole.
    pub(crate) fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        while let Err(error) = std::str::from_utf8(&self.pending[done..]) {
            let valid = done + error.valid_up_to();
            push_valid(&self.pending[done..valid], text);
            done = valid;
            let Some(broken) = error.error_len() else {
                self.pending.drain(..done);
                return;
            };
            text.push(char::REPLACEMENT_CHARACTER);
            done += broken;
        }
        push_valid(&self.pending[done..], text);
        self.pending.clear();
    }

    /// Ends the text: a character that is not whole becomes one U+FFFD.
    pub(crate) fn finish(&mut self, text: &mut String) {
        if !std::mem::take(&mut self.pending).is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

fn push_valid(bytes: &[u8], text: &mut String) {
    text.push_str(std::str::from_utf8(bytes).expect("the caller checked these bytes"));
}

/// The text of tokens in a row.
#[derive(Debug, Default)]
pub(crate) struct Detokenizer {
    characters: Utf8Stream,
    /// Whether a token stands before the next one.
    follows: bool,
    /// Whether that one is hidden and was shown.
    after_hidden: bool,
}

impl Detokenizer {
    /// Begins after a token that is not part of the text.
    pub(crate) fn after_prompt() -> Self {
        Self {
            follows: true,
            ..Self::default()
        }
    }

    /// Appends what a token adds to the text; hidden tokens add nothing.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: TokenId, text: &mut String) {
        if !tokenizer.is_hidden(token) {
            self.push_shown(tokenizer, token, text);
            self.after_hidden = false;
        }
    }

    /// The same with hidden tokens. Between two of them stands what stands between all tokens only if
    /// they are `spaced`.
    pub(crate) fn spell(
        &mut self,
        tokenizer: &Tokenizer,
        (token, spaced): (TokenId, bool),
        text: &mut String,
    ) {
        let hidden = tokenizer.is_hidden(token);
        if hidden && self.after_hidden && !spaced {
            self.follows = false;
        }
        self.push_shown(tokenizer, token, text);
        self.after_hidden = hidden;
    }

    pub(crate) fn push_shown(&mut self, tokenizer: &Tokenizer, token: TokenId, text: &mut String) {
        if self.follows {
            self.characters.push(tokenizer.separator().as_bytes(), text);
        }
        self.follows = true;
        self.characters.push(tokenizer.token_bytes(token), text);
    }

    /// Appends what an incomplete character at the end becomes.
    pub(crate) fn finish(&mut self, text: &mut String) {
        self.characters.finish(text);
    }
}

/// The text of a whole sequence.
pub(crate) fn decode(tokenizer: &Tokenizer, tokens: &[TokenId]) -> String {
    let mut detokenizer = Detokenizer::default();
    let mut text = String::new();
    for &token in tokens {
        detokenizer.push(tokenizer, token, &mut text);
    }
    detokenizer.finish(&mut text);
    text
}

/// The same with hidden tokens spelled out.
pub(crate) fn spell(tokenizer: &Tokenizer, tokens: &[TokenId]) -> String {
    let mut detokenizer = Detokenizer::default();
    let mut text = String::new();
    for &token in tokens {
        detokenizer.push_shown(tokenizer, token, &mut text);
    }
    detokenizer.finish(&mut text);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(pieces: &[Vec<u8>]) -> Vec<String> {
        let mut stream = Utf8Stream::default();
        let mut texts: Vec<String> = pieces
            .iter()
            .map(|bytes| {
                let mut text = String::new();
                stream.push(bytes, &mut text);
                text
            })
            .collect();
        let mut last = String::new();
        stream.finish(&mut last);
        texts.push(last);
        texts
    }

    #[test]
    fn holds_back_only_the_character_that_is_not_whole() {
        let pieces = [
            "a\u{e9}".as_bytes(),
            &[0xf0, 0x9f],
            &[0x98],
            &[0x80, b'!'],
            &[0xe2, 0x82],
        ];
        let pieces: Vec<_> = pieces.iter().map(|bytes| bytes.to_vec()).collect();
        assert_eq!(
            stream(&pieces),
            ["a\u{e9}", "", "", "\u{1f600}!", "", "\u{fffd}"]
        );
    }

    /// Bytes that often form, break and begin characters.
    fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            any::<u8>(),
            prop::sample::select(vec![
                0xf0, 0x9f, 0x98, 0x80, 0xe2, 0x82, 0xac, 0xc3, 0xed, 0xa0
            ]),
            b'a'..=b'c',
        ];
        prop::collection::vec(byte, 0..6)
    }

    proptest! {
        #[test]
        fn equals_lossy_decoding_of_all_bytes(pieces in prop::collection::vec(any_bytes(), 0..40)) {
            let whole = String::from_utf8_lossy(&pieces.concat()).into_owned();
            prop_assert_eq!(stream(&pieces).concat(), whole);
        }
    }
}
