//! The budgets of forms. What a form may cost is bounded before it is read, while it is compiled, and
//! at every token.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// What a form may cost that is decided by whoever runs the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormLimits {
    /// The longest schema, in bytes.
    pub schema_bytes: usize,
    /// How deep the objects and lists of a schema may nest.
    pub schema_depth: usize,
    /// How long compiling may take.
    pub time: Duration,
}

impl Default for FormLimits {
    fn default() -> Self {
        Self {
            schema_bytes: 256 << 10,
            schema_depth: 32,
            time: Duration::from_secs(2),
        }
    }
}

/// The longest grammar, expression or list of texts, in bytes.
pub(super) const MAX_TEXT: usize = 64 << 10;
/// How deep brackets of a grammar or an expression may nest.
pub(super) const MAX_DEPTH: usize = 100;
/// The most texts to choose from.
pub(super) const MAX_CHOICES: usize = 4096;
/// Forms that are compiled at the same time.
pub(super) const MAX_COMPILING: usize = 4;
/// The stack of a thread that compiles: rules that refer to each other are walked by recursion, one
/// level for each, and there are as many as the text has room for. Pages that are not touched cost
/// nothing.
pub(super) const STACK: usize = 512 << 20;
/// Compiled forms that are kept, in bytes.
pub(super) const CACHE_BYTES: usize = 128 << 20;

/// What the library may spend.
pub(super) fn of_parser() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 1_000_000,
        max_grammar_size: 200_000,
        max_lexer_states: 16_000,
        // About 7 and 1 milliseconds.
        step_lexer_fuel: 100_000,
        step_max_items: 25_000,
        max_items_in_row: 1_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// How deep brackets nest in a text, quoted and escaped ones aside.
pub(super) fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (_, '\\') => {
                chars.next();
            }
            (Some(open), c) if c == open => quote = None,
            (None, '"') => quote = Some('"'),
            (None, '(' | '[' | '{') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_and_escaped_brackets_do_not_nest() {
        assert_eq!(depth("a"), 0);
        assert_eq!(depth("(a[b]{2})(c)"), 2);
        assert_eq!(depth(r#""((((" \( \[ (x)"#), 1);
        assert_eq!(depth(&"(".repeat(500)), 500);
    }
}
