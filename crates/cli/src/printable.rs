//! Foreign text on a terminal, and everything that goes to standard error.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Prints a line on standard error. Who closed it does not want to read it, and the work goes on.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Replaces control characters, so that text from a file cannot steer the terminal.
pub(crate) fn line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// A token's text between quotes, white space and control characters escaped.
pub(crate) fn token(bytes: &[u8]) -> String {
    format!("\"{}\"", String::from_utf8_lossy(bytes).escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(line("a\u{1b}[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
        assert_eq!(token(b"\x1b<\xff>\n"), "\"\\u{1b}<\u{fffd}>\\n\"");
    }
}
