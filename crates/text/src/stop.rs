//! Stop strings, found across the borders of text deltas.
//!
//! Text is searched as if it came byte by byte: the stop string that is complete first wins; of
//! several complete at once the longest, then the one listed first. So the outcome does not depend
//! on how the text was cut, and an answer ends as soon as any stop string is there.
//!
//! Held back is exactly the longest end of the text that is the beginning of a stop string.

/// One stop string and how much of it the text ends with.
#[derive(Debug)]
struct Stop {
    index: usize,
    bytes: Vec<u8>,
    /// `borders[n]`: the length of the longest beginning of the first `n` bytes, shorter than `n`,
    /// with which these bytes end.
    borders: Vec<usize>,
    matched: usize,
}

impl Stop {
    fn new(index: usize, text: String) -> Self {
        let bytes = text.into_bytes();
        let mut borders = vec![0; bytes.len() + 1];
        let mut length = 0;
        for end in 1..bytes.len() {
            while length > 0 && bytes[length] != bytes[end] {
                length = borders[length];
            }
            length += usize::from(bytes[length] == bytes[end]);
            borders[end + 1] = length;
        }
        Self {
            index,
            bytes,
            borders,
            matched: 0,
        }
    }

    /// Takes the next byte; tells whether the stop string is complete.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.borders[self.matched];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

/// Searches a growing text for stop strings.
#[derive(Debug)]
pub(crate) struct StopScanner {
    stops: Vec<Stop>,
    held: String,
    found: Option<usize>,
    /// Whether the stop string that is found is shown.
    shows_stop: bool,
}

impl StopScanner {
    /// Empty stop strings are ignored; the others keep their index.
    pub(crate) fn new(stops: Vec<String>) -> Self {
        let stops = stops
            .into_iter()
            .enumerate()
            .filter(|(_, text)| !text.is_empty())
            .map(|(index, text)| Stop::new(index, text))
            .collect();
        Self {
            stops,
            held: String::new(),
            found: None,
            shows_stop: false,
        }
    }

    /// Shows the stop string that is found, or not.
    pub(crate) fn show_stop(&mut self, shows: bool) {
        self.shows_stop = shows;
    }

    /// Which stop string was found.
    pub(crate) fn found(&self) -> Option<usize> {
        self.found
    }

    /// Takes more text; returns what can be shown.
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (offset, byte) in text.bytes().enumerate() {
            if let Some((length, index)) = self.advance(byte) {
                self.found = Some(index);
                let mut shown = std::mem::take(&mut self.held);
                let hidden = if self.shows_stop { 0 } else { length };
                shown.truncate(before + offset + 1 - hidden);
                return shown;
            }
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| stop.matched)
            .max()
            .unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, kept)
    }

    /// Ends the text; returns what was held back.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The longest stop string that is complete with this byte.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut complete: Option<(usize, usize)> = None;
        for stop in &mut self.stops {
            let longer = complete.is_none_or(|(length, _)| stop.bytes.len() > length);
            if stop.advance(byte) && longer {
                complete = Some((stop.bytes.len(), stop.index));
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scanner(stops: &[&str]) -> StopScanner {
        StopScanner::new(stops.iter().map(|&stop| stop.to_owned()).collect())
    }

    #[test]
    fn holds_back_no_more_than_the_beginning_of_a_stop() {
        let mut scanner = scanner(&["\n\nUser:", "\u{1f600}!"]);
        assert_eq!(scanner.push("Hello"), "Hello");
        assert_eq!(scanner.push(" you\n"), " you");
        assert_eq!(scanner.push("x\n\n"), "\nx");
        assert_eq!(scanner.push("Use\u{1f600}"), "\n\nUse");
        assert_eq!(scanner.push("!rest"), "");
        assert_eq!(scanner.found(), Some(1));
        assert_eq!(scanner.push("more"), "");
        assert_eq!(scanner.finish(), "");
    }

    #[test]
    fn a_stop_string_is_shown_where_that_is_asked_for() {
        for (pieces, whole) in [
            (&["a boat", " then"][..], "a boat t"),
            (&["a b", "oat ", "tx"], "a boat t"),
        ] {
            let mut scanner = scanner(&["oat t"]);
            scanner.show_stop(true);
            let shown: String = pieces.iter().map(|piece| scanner.push(piece)).collect();
            assert_eq!((shown.as_str(), scanner.found()), (whole, Some(0)));
        }
    }

    #[test]
    fn finish_returns_what_was_held_back() {
        let mut scanner = scanner(&["", "STOP"]);
        assert_eq!(scanner.push("an ST"), "an ");
        assert_eq!(scanner.finish(), "ST");
        assert_eq!(scanner.found(), None);
    }

    #[test]
    fn first_complete_stop_wins_then_the_longest() {
        for (stops, text, shown, found) in [
            (&["bcd", "abcde"][..], "xabcde", "xa", 0),
            (&["cd", "abcd"], "xabcd", "x", 1),
            (&["ab", "abc"], "abc", "", 0),
            (&["a", "a"], "ba", "b", 0),
        ] {
            let mut scanner = scanner(stops);
            assert_eq!(
                (scanner.push(text).as_str(), scanner.found()),
                (shown, Some(found))
            );
        }
    }

    /// The definition, on the whole text.
    fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let complete = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| {
                    !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes())
                })
                .max_by_key(|(index, stop)| (stop.len(), std::cmp::Reverse(*index)));
            if let Some((index, stop)) = complete {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    /// The longest end of `text` that is the beginning of a stop, shorter than it.
    fn must_hold(text: &str, stops: &[String]) -> usize {
        let held = |length: &usize| {
            let end = &text.as_bytes()[text.len() - length..];
            stops
                .iter()
                .any(|stop| stop.len() > *length && stop.as_bytes().starts_with(end))
        };
        (0..=text.len()).rev().find(held).unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn equals_a_search_of_the_whole_text(
            pieces in prop::collection::vec("[ab\u{e9}\u{1f600}]{0,4}", 0..12),
            stops in prop::collection::vec("[ab\u{e9}\u{1f600}]{0,5}", 0..4),
        ) {
            let (expected, expected_stop) = naive(&pieces.concat(), &stops);
            let mut scanner = StopScanner::new(stops.clone());
            let (mut shown, mut fed) = (String::new(), String::new());
            for piece in &pieces {
                fed.push_str(piece);
                shown.push_str(&scanner.push(piece));
                if scanner.found().is_none() {
                    prop_assert_eq!(shown.len(), fed.len() - must_hold(&fed, &stops));
                }
            }
            shown.push_str(&scanner.finish());
            prop_assert_eq!((shown, scanner.found()), (expected, expected_stop));
        }
    }
}
