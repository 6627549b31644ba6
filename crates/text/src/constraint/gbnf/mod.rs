//! Turns a grammar of llama.cpp (GBNF) into one of llguidance that accepts exactly the same texts.
//!
//! The text is parsed, made smaller, cut into terminals and written as Lark. Nothing here knows
//! the vocabulary: tokens go through as they are written. No function calls itself once for each
//! rule, so a chain of rules may be as long as the text allows.

mod automaton;
mod charset;
mod emit;
mod expression;
mod lexemes;
mod parse;
mod reduce;
mod relations;
mod source;

/// The most bytes of a grammar.
const MAX_TEXT: usize = 64 * 1024;

/// Turns a grammar of llama.cpp into one of llguidance.
///
/// # Errors     a text for the user that says what is wrong with the grammar and where
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    if text.len() > MAX_TEXT {
        let length = text.len();
        return Err(format!(
            "the grammar is {length} bytes long, at most {MAX_TEXT} can be"
        ));
    }
    convert(text, lexemes::BUDGET)
}

/// Turns a grammar into one of llguidance, with no more work than `budget` to make it fast.
fn convert(text: &str, budget: usize) -> Result<String, String> {
    let grammar = reduce::inline(&reduce::prune(parse::parse(text)?)?);
    let plan = lexemes::choose(&grammar, budget);
    emit::write(&grammar, &plan)
}

#[cfg(test)]
mod exactness;
#[cfg(test)]
mod samples;
