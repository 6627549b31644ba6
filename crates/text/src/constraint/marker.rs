//! A text that the model writes between two parts of an answer, found byte for byte in its tokens.

use forthwith_core::units::TokenId;

use crate::tokenizer::Tokenizer;

/// A marker, and the tokens that matter for it.
#[derive(Debug)]
pub(super) struct Marker {
    text: Vec<u8>,
    /// The longest part of the marker that ends each of its beginnings and begins the marker.
    borders: Vec<usize>,
    /// Tokens that may end beyond the marker, with their bytes.
    beyond: Vec<(TokenId, Vec<u8>)>,
    /// Tokens that lie within the marker, with their bytes.
    within: Vec<(TokenId, Vec<u8>)>,
}

impl Marker {
    /// The marker among a vocabulary's tokens, as they are spelled.
    pub(super) fn new(text: &str, tokenizer: &Tokenizer) -> Self {
        let text = text.as_bytes().to_vec();
        let mut beyond = Vec::new();
        let mut within = Vec::new();
        let count = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        for id in (0..count).map(TokenId::new) {
            let bytes = tokenizer.token_bytes(id);
            let Some((_, before)) = bytes.split_last() else {
                continue;
            };
            if text.last().is_some_and(|last| before.contains(last)) {
                beyond.push((id, bytes.to_vec()));
            }
            if text.windows(bytes.len()).any(|part| part == bytes) {
                within.push((id, bytes.to_vec()));
            }
        }
        Self {
            borders: borders(&text),
            text,
            beyond,
            within,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// How much of the marker has come after one more byte.
    fn step(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.text[matched] != byte {
            matched = self.borders[matched - 1];
        }
        matched + usize::from(self.text[matched] == byte)
    }

    /// How much of it has come after more bytes, and how many bytes follow it if it is whole.
    pub(super) fn advance(&self, mut matched: usize, bytes: &[u8]) -> (usize, usize) {
        for (index, &byte) in bytes.iter().enumerate() {
            matched = self.step(matched, byte);
            if matched == self.len() {
                return (matched, bytes.len() - index - 1);
            }
        }
        (matched, 0)
    }

    /// The tokens that would end beyond the marker.
    pub(super) fn too_long(&self, matched: usize) -> impl Iterator<Item = TokenId> {
        let ends_beyond = move |bytes: &[u8]| {
            let (after, rest) = self.advance(matched, bytes);
            after == self.len() && rest > 0
        };
        let tokens = self.beyond.iter();
        tokens
            .filter(move |(_, bytes)| ends_beyond(bytes))
            .map(|&(id, _)| id)
    }

    /// The tokens that go on with the marker and stay within it.
    pub(super) fn going_on(&self, matched: usize) -> impl Iterator<Item = TokenId> {
        let rest = &self.text[matched..];
        let tokens = self.within.iter();
        tokens
            .filter(move |(_, bytes)| rest.starts_with(bytes))
            .map(|&(id, _)| id)
    }
}

fn borders(text: &[u8]) -> Vec<usize> {
    let mut borders = vec![0; text.len()];
    for end in 1..text.len() {
        let mut length: usize = borders[end - 1];
        while length > 0 && text[length] != text[end] {
            length = borders[length - 1];
        }
        borders[end] = length + usize::from(text[length] == text[end]);
    }
    borders
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::testing::byte_level;

    #[test]
    fn a_marker_is_found_wherever_it_begins() {
        let tokenizer = byte_level(&["<s>", "<e>"], &["b b", "a b"]);
        let marker = Marker::new("aabaac", &tokenizer);
        let found = |text: &str| marker.advance(0, text.as_bytes());
        assert_eq!(found("xaaba"), (4, 0));
        assert_eq!(found("aabaabaac"), (6, 0));
        assert_eq!(found("aaabaacde"), (6, 2));
        assert_eq!(marker.advance(5, b"c"), (6, 0));
        assert_eq!(marker.advance(5, b"ba"), (4, 0));
    }

    #[test]
    fn tokens_beyond_a_marker_and_within_it_are_known() {
        let tokenizer = byte_level(&["<s>", "<e>"], &["> Ċ", "c >", "c> Ċ"]);
        let marker = Marker::new("<c>", &tokenizer);
        let texts = |ids: Vec<TokenId>| -> Vec<String> {
            let text = |id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
            ids.into_iter().map(text).collect()
        };
        assert_eq!(texts(marker.too_long(2).collect()), [">\n"]);
        assert_eq!(texts(marker.too_long(1).collect()), ["c>\n"]);
        assert_eq!(texts(marker.too_long(0).collect()), [""; 0]);
        assert_eq!(texts(marker.going_on(1).collect()), ["c", "c>"]);
    }
}
