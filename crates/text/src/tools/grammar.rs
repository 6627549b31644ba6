//! The grammar that calls are held to.

use std::fmt::Write as _;

use super::format::{ToolFormat, ToolSpec};
use crate::constraint::{FormError, FormLimits, checked_schema};
use crate::tokenizer::{Fragment, Tokenizer};

impl ToolFormat {
    /// Calls of these tools as a Lark grammar, from what follows `written` on.
    ///
    /// # Errors     [`FormError`] if a tool's schema cannot be followed; its text begins with the name
    pub(crate) fn grammar(
        &self,
        tools: &[ToolSpec],
        (several, written): (bool, &str),
        tokenizer: &Tokenizer,
        limits: FormLimits,
    ) -> Result<String, FormError> {
        let text = |text: &str| lark(text, tokenizer);
        let lead = self.lead();
        let lead = lead.strip_prefix(written).unwrap_or(&lead);
        let mut grammar = format!("start: {} call", text(lead));
        if let Some(between) = self.between.filter(|_| several) {
            let next = format!("{between}{}", self.open);
            write!(grammar, " ({} call)*", text(&next)).expect("a string takes all");
        }
        let calls: Vec<String> = (0..tools.len())
            .map(|index| format!("call_{index}"))
            .collect();
        writeln!(grammar, " {}\ncall: {}", text(self.end), calls.join(" | ")).expect("as above");
        for (index, tool) in tools.iter().enumerate() {
            let schema =
                checked_schema(&tool.parameters, limits).map_err(|error| error.of(&tool.name))?;
            let middle = text(&format!("{}{}", tool.name, self.middle));
            let close = text(self.close);
            writeln!(grammar, "call_{index}: {middle} arguments_{index} {close}")
                .expect("as above");
            writeln!(grammar, "arguments_{index}: %json {schema}").expect("as above");
        }
        Ok(grammar)
    }
}

/// A text as Lark: hidden tokens by their ids, the rest quoted.
fn lark(text: &str, tokenizer: &Tokenizer) -> String {
    let pieces = tokenizer.split_special(text).into_iter();
    let mut parts: Vec<String> = Vec::new();
    let mut plain = String::new();
    let flush = |plain: &mut String, parts: &mut Vec<String>| {
        if !plain.is_empty() {
            parts.push(serde_json::Value::from(std::mem::take(plain)).to_string());
        }
    };
    for piece in pieces {
        match piece {
            Fragment::Token(id) if tokenizer.is_hidden(id) => {
                flush(&mut plain, &mut parts);
                parts.push(format!("<[{}]>", id.get()));
            }
            Fragment::Token(id) => {
                plain.push_str(&String::from_utf8_lossy(tokenizer.token_bytes(id)));
            }
            Fragment::Text(text) => plain.push_str(text),
        }
    }
    flush(&mut plain, &mut parts);
    parts.join(" ")
}
