//! Foreign text on a terminal, and everything that goes to standard error.

use crate::error::Failure;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

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

/// Standard output as a place for foreign text: byte for byte into a file or a pipe, without
/// what would steer it onto a terminal.
pub(crate) struct Page<'a> {
    out: io::StdoutLock<'a>,
    terminal: bool,
}

impl Page<'_> {
    pub(crate) fn open() -> Self {
        let out = io::stdout().lock();
        let terminal = out.is_terminal();
        Self { out, terminal }
    }

    /// Writes a piece of text at once.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = if self.terminal {
            self.out.write_all(lines(text).as_bytes())
        } else {
            self.out.write_all(text.as_bytes())
        };
        written
            .and_then(|()| self.out.flush())
            .map_err(|error| Failure::output(&error))
    }
}

/// Replaces control characters but those that make lines and columns.
fn lines(text: &str) -> String {
    let plain = |c: &char| *c != '\r';
    let shown = text.chars().filter(plain).map(|c| match c {
        '\n' | '\t' => c,
        c if c.is_control() => '\u{fffd}',
        c => c,
    });
    shown.collect()
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
        assert_eq!(
            lines("a\r\n\tb\u{1b}[31m\u{9b}c"),
            "a\n\tb\u{fffd}[31m\u{fffd}c"
        );
        assert_eq!(token(b"\x1b<\xff>\n"), "\"\\u{1b}<\u{fffd}>\\n\"");
    }
}
