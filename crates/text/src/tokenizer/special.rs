//! Tokens that are found in text by their text, before anything is merged.

use aho_corasick::AhoCorasick;
use forthwith_core::units::TokenId;

use super::error::TokenizerError;

/// A part of a text: still text, or a token already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    Text(&'t str),
    Token(TokenId),
}

/// A set of tokens to be found, the longest first, each from left to right.
///
/// This is llama.cpp's order, which decides where texts overlap: a longer token wins over one that
/// begins further left.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    entries: Vec<(TokenId, Box<str>)>,
    /// Tells which entries occur at all; most do not.
    finder: AhoCorasick,
}

impl SpecialTokens {
    pub(super) fn new<'a>(
        entries: impl IntoIterator<Item = (TokenId, &'a str)>,
    ) -> Result<Self, TokenizerError> {
        let mut entries: Vec<(TokenId, Box<str>)> = entries
            .into_iter()
            .map(|(id, text)| (id, text.into()))
            .collect();
        entries.sort_by_key(|(id, text)| (std::cmp::Reverse(text.len()), *id));
        let finder = finder(entries.iter().map(|(_, text)| &**text))?;
        Ok(Self { entries, finder })
    }

    /// Cuts the tokens out of a text. Empty parts are left out.
    pub(super) fn split<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut occurs = vec![false; self.entries.len()];
        for found in self.finder.find_overlapping_iter(text) {
            occurs[found.pattern().as_usize()] = true;
        }
        let mut fragments = vec![Fragment::Text(text)];
        for ((id, token_text), _) in self
            .entries
            .iter()
            .zip(occurs)
            .filter(|(_, occurs)| *occurs)
        {
            let mut finer = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                match fragment {
                    Fragment::Text(text) => cut(text, token_text, *id, &mut finer),
                    Fragment::Token(_) => finer.push(fragment),
                }
            }
            fragments = finer;
        }
        fragments
    }
}

fn cut<'t>(text: &'t str, token_text: &str, id: TokenId, fragments: &mut Vec<Fragment<'t>>) {
    for (index, part) in text.split(token_text).enumerate() {
        if index > 0 {
            fragments.push(Fragment::Token(id));
        }
        if !part.is_empty() {
            fragments.push(Fragment::Text(part));
        }
    }
}

/// A finder of all occurrences of all texts, in time linear in text and occurrences.
fn finder<'a>(texts: impl Iterator<Item = &'a str>) -> Result<AhoCorasick, TokenizerError> {
    AhoCorasick::new(texts).map_err(|error| TokenizerError::Library(error.to_string()))
}

/// Keeps control-token texts that a user wrote from becoming control tokens.
///
/// A *sentinel*, a character that occurs nowhere in the input, is put inside each such text, so that
/// a rendered prompt can be searched for the template's own control tokens. It is taken out before
/// the text is merged.
#[derive(Debug)]
pub(crate) struct ControlGuard {
    finder: AhoCorasick,
    /// All control texts in order, to find those that begin with a given text.
    sorted: Vec<Box<str>>,
    /// The same, each reversed.
    reversed: Vec<Box<str>>,
    longest: usize,
}

impl ControlGuard {
    pub(super) fn new<'a>(
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, TokenizerError> {
        let mut sorted: Vec<Box<str>> = texts.into_iter().map(Into::into).collect();
        let mut reversed: Vec<Box<str>> = sorted
            .iter()
            .map(|text| text.chars().rev().collect::<String>().into())
            .collect();
        sorted.sort_unstable();
        reversed.sort_unstable();
        let longest = sorted.iter().map(|text| text.chars().count()).max();
        Ok(Self {
            finder: finder(sorted.iter().map(|text| &**text))?,
            longest: longest.unwrap_or(0),
            sorted,
            reversed,
        })
    }

    /// Breaks every control text in `text`, and every part of one at its borders that text put
    /// before or after could complete. White space at the borders is looked through: templates trim.
    pub(crate) fn guard(&self, text: &str, sentinel: char) -> String {
        let mut places: Vec<usize> = self
            .finder
            .find_overlapping_iter(text)
            .map(|found| {
                let first = text[found.start()..]
                    .chars()
                    .next()
                    .map_or(0, char::len_utf8);
                found.start() + first
            })
            .collect();
        let trimmed = text.trim_end();
        places.extend(
            [text, trimmed]
                .iter()
                .filter(|end| self.opens(end))
                .map(|end| end.len()),
        );
        let trimmed = text.trim_start();
        places.extend(
            [text, trimmed]
                .iter()
                .filter(|start| self.closes(start))
                .map(|start| text.len() - start.len()),
        );
        places.sort_unstable();
        places.dedup();
        let mut guarded = String::with_capacity(text.len() + places.len() * sentinel.len_utf8());
        let mut done = 0;
        for place in places {
            guarded.push_str(&text[done..place]);
            guarded.push(sentinel);
            done = place;
        }
        guarded.push_str(&text[done..]);
        guarded
    }

    /// Whether the end of `text` is the beginning of a control text.
    fn opens(&self, text: &str) -> bool {
        text.char_indices()
            .rev()
            .take(self.longest)
            .any(|(start, _)| begins_longer(&self.sorted, &text[start..]))
    }

    /// Whether the beginning of `text` is the end of a control text.
    fn closes(&self, text: &str) -> bool {
        let mut start: Vec<char> = text.chars().take(self.longest).collect();
        start.reverse();
        (0..start.len()).any(|skip| {
            let end: String = start[skip..].iter().collect();
            begins_longer(&self.reversed, &end)
        })
    }
}

/// Whether one of the sorted texts begins with `part` and is longer.
fn begins_longer(sorted: &[Box<str>], part: &str) -> bool {
    let from = sorted.partition_point(|text| **text <= *part);
    sorted.get(from).is_some_and(|text| text.starts_with(part))
}

#[cfg(test)]
mod tests;
