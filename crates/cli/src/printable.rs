//! Foreign text on a terminal.

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
