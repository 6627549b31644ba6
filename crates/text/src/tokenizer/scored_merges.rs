//! The GGUF `llama` kind: byte-pair merges ordered by the score of what they make.
//!
//! Text starts as characters. Of all neighbours whose joined text is a token, the pair with the
//! best score is joined, the leftmost first among equals, until no pair is left. Characters without
//! a token are spelled in bytes.
//!
//! This is not what the library's byte-pair model does: it ranks *pairs of tokens*, so it cannot
//! join characters that have no token of their own, and it cannot give several ways of making the
//! same token the same rank, which decides which of two overlapping pairs is joined. A list of all
//! ways to split a quarter of a million tokens would also take longer to build than this whole
//! tokenizer.
//!
//! # Cost    at most 3 candidates a character, one look-up each: O(n log n)

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use forthwith_core::units::TokenId;

use super::error::{TokenizeError, TokenizerError};
use super::vocabulary::{Class, Vocabulary};

/// How a space is written in the vocabulary.
pub(super) const SPACE: char = '\u{2581}';

/// A vocabulary whose scores order the merges.
#[derive(Debug)]
pub(super) struct ScoredMerges {
    ids: HashMap<Box<str>, TokenId>,
    scores: Vec<f32>,
    bytes: Vec<Option<TokenId>>,
    longest: usize,
    unknown: Option<TokenId>,
}

/// No neighbour.
const NONE: u32 = u32::MAX;

/// A piece of the text, linked to its neighbours; merged-away pieces have no length. Small, since
/// a long text has many.
struct Symbol {
    start: u32,
    len: u32,
    before: u32,
    after: u32,
}

impl Symbol {
    fn text<'t>(&self, text: &'t str) -> &'t str {
        &text[self.start as usize..(self.start + self.len) as usize]
    }
}

/// A symbol that could be joined with its right neighbour, when both together had this length.
struct Candidate {
    score: f32,
    left: u32,
    len: u32,
}

impl Candidate {
    fn key(&self) -> (f32, Reverse<u32>) {
        (self.score, Reverse(self.left))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((score, left), (other_score, other_left)) = (self.key(), other.key());
        score.total_cmp(&other_score).then(left.cmp(&other_left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// The byte that a token text like `<0x0A>` names: exactly two hexadecimal digits.
pub(super) fn named_byte(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let [high, low] = <[u8; 2]>::try_from(digits).ok()?;
    let value = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from(value(high)? * 16 + value(low)?).ok()
}

impl ScoredMerges {
    pub(super) fn new(
        vocabulary: &Vocabulary<'_>,
        unknown: Option<TokenId>,
    ) -> Result<Self, TokenizerError> {
        let mut ids: HashMap<Box<str>, TokenId> = HashMap::with_capacity(vocabulary.len());
        let mut bytes = vec![None; 256];
        let mut longest = 0;
        for (id, text, class) in vocabulary.entries() {
            if class == Class::Byte {
                let byte = named_byte(text.as_bytes()).ok_or_else(|| TokenizerError::Token {
                    id: id.index(),
                    problem: format!("byte token {text:?} is not of the form <0x0A>"),
                })?;
                bytes[usize::from(byte)].get_or_insert(id);
            } else if class.is_text() {
                longest = longest.max(text.len());
                let first = ids.insert(text.into(), id);
                first.map_or(Ok(()), |first| Err(Vocabulary::duplicate(id, text, first)))?;
            }
        }
        // Adding zero turns a negative zero into a positive one: both are the same score.
        let scores = vocabulary.scores.map_or_else(
            || vec![0.0; vocabulary.len()],
            |scores| scores.iter().map(|score| score + 0.0).collect(),
        );
        Ok(Self {
            ids,
            scores,
            bytes,
            longest,
            unknown,
        })
    }

    /// Appends the tokens of one fragment of text.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) -> Result<(), TokenizeError> {
        let text = text.replace(' ', SPACE.encode_utf8(&mut [0; 4]));
        if u32::try_from(text.len()).is_err() {
            return Err(TokenizeError::TooLong);
        }
        let (symbols, _) = self.merge(&text);
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            self.emit(symbol.text(&text), out)?;
        }
        Ok(())
    }

    fn emit(&self, piece: &str, out: &mut Vec<TokenId>) -> Result<(), TokenizeError> {
        if let Some(&id) = self.ids.get(piece) {
            out.push(id);
            return Ok(());
        }
        for character in piece.chars() {
            let spelled: Option<Vec<TokenId>> = character
                .encode_utf8(&mut [0; 4])
                .bytes()
                .map(|byte| self.bytes[usize::from(byte)])
                .collect();
            match (spelled, self.unknown) {
                (Some(bytes), _) => out.extend(bytes),
                (None, Some(unknown)) => out.push(unknown),
                (None, None) => return Err(TokenizeError::NoToken(character)),
            }
        }
        Ok(())
    }

    /// Joins until nothing can be joined; also returns how many candidates were looked at.
    fn merge(&self, text: &str) -> (Vec<Symbol>, usize) {
        let mut symbols = characters(text);
        let mut queue: BinaryHeap<Candidate> = (0..)
            .take(symbols.len())
            .filter_map(|left| self.candidate(text, &symbols, left))
            .collect();
        let mut work = 0;
        while let Some(best) = queue.pop() {
            work += 1;
            let left = &symbols[best.left as usize];
            let (before, right) = (left.before, left.after);
            let joined = |right: &Symbol| left.len > 0 && left.len + right.len == best.len;
            let Some(right) = symbols.get(right as usize).filter(|right| joined(right)) else {
                continue;
            };
            let (after, merged) = (right.after, left.after);
            symbols[merged as usize].len = 0;
            symbols[best.left as usize].len = best.len;
            symbols[best.left as usize].after = after;
            if let Some(after) = symbols.get_mut(after as usize) {
                after.before = best.left;
            }
            queue.extend(self.candidate(text, &symbols, before));
            queue.extend(self.candidate(text, &symbols, best.left));
        }
        (symbols, work)
    }

    fn candidate(&self, text: &str, symbols: &[Symbol], left: u32) -> Option<Candidate> {
        let symbol = symbols.get(left as usize)?;
        let len = symbol.len + symbols.get(symbol.after as usize)?.len;
        if len as usize > self.longest {
            return None;
        }
        let joined = Symbol { len, ..*symbol };
        let id = self.ids.get(joined.text(text))?;
        Some(Candidate {
            score: self.scores[id.index()],
            left,
            len,
        })
    }
}

fn characters(text: &str) -> Vec<Symbol> {
    let small = |size: usize| u32::try_from(size).expect("the text is shorter than 4 GiB");
    let mut symbols: Vec<Symbol> = text
        .char_indices()
        .zip(0..)
        .map(|((start, character), index): (_, u32)| Symbol {
            start: small(start),
            len: small(character.len_utf8()),
            before: index.checked_sub(1).unwrap_or(NONE),
            after: index + 1,
        })
        .collect();
    if let Some(last) = symbols.last_mut() {
        last.after = NONE;
    }
    symbols
}

#[cfg(test)]
mod tests;
