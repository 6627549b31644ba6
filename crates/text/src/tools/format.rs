//! The ways in which models write calls of tools.

use forthwith_core::units::TokenId;
use serde_json::{Value, json};

use crate::tokenizer::{Fragment, Tokenizer};

/// A tool as a request declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Its name: letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// The schema of its arguments, an object.
    pub parameters: Value,
    /// The whole declaration, as templates show it to the model.
    pub declaration: Value,
}

/// How a model writes calls. Texts may hold special tokens, as they are spelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFormat {
    pub(super) name: &'static str,
    /// What calls begin with, where the model decides whether to call.
    pub(super) trigger: &'static str,
    /// Whether that counts only where the answer begins.
    pub(super) at_start: bool,
    /// Before the first call.
    pub(super) begin: &'static str,
    /// Before a call's name.
    pub(super) open: &'static str,
    /// Between name and arguments.
    pub(super) middle: &'static str,
    /// After the arguments.
    pub(super) close: &'static str,
    /// Between calls; without it there is one call at most.
    pub(super) between: Option<&'static str>,
    /// After the last call.
    pub(super) end: &'static str,
}

/// Llama 3.1 to 3.3.
const LLAMA_3: ToolFormat = ToolFormat {
    name: "llama3",
    trigger: "{\"name\": \"",
    at_start: true,
    begin: "",
    open: "{\"name\": \"",
    middle: "\", \"parameters\": ",
    close: "}",
    between: None,
    end: "",
};

/// Mistral with a list of calls.
const MISTRAL: ToolFormat = ToolFormat {
    name: "mistral",
    trigger: "[TOOL_CALLS]",
    at_start: false,
    begin: "[TOOL_CALLS][",
    open: "{\"name\": \"",
    middle: "\", \"arguments\": ",
    close: "}",
    between: Some(", "),
    end: "]",
};

/// Mistral since its eleventh tokenizer.
const MISTRAL_ARGS: ToolFormat = ToolFormat {
    name: "mistral_args",
    trigger: "[TOOL_CALLS]",
    at_start: false,
    begin: "",
    open: "[TOOL_CALLS]",
    middle: "[ARGS]",
    close: "",
    between: Some(""),
    end: "",
};

/// `DeepSeek` V3 and R1.
const DEEPSEEK: ToolFormat = ToolFormat {
    name: "deepseek",
    trigger: "<｜tool▁calls▁begin｜>",
    at_start: false,
    begin: "<｜tool▁calls▁begin｜>",
    open: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    middle: "\n```json\n",
    close: "\n```<｜tool▁call▁end｜>",
    between: Some("\n"),
    end: "<｜tool▁calls▁end｜>",
};

/// `DeepSeek` V3.1.
const DEEPSEEK_31: ToolFormat = ToolFormat {
    name: "deepseek31",
    open: "<｜tool▁call▁begin｜>",
    middle: "<｜tool▁sep｜>",
    close: "<｜tool▁call▁end｜>",
    between: Some(""),
    ..DEEPSEEK
};

/// gpt-oss.
const HARMONY: ToolFormat = ToolFormat {
    name: "harmony",
    trigger: "<|channel|>commentary to=functions.",
    at_start: false,
    begin: "",
    open: "<|channel|>commentary to=functions.",
    middle: " <|constrain|>json<|message|>",
    close: "",
    between: None,
    end: "",
};

impl ToolFormat {
    /// Hermes, Qwen 2.5 and 3, and all that were not trained for another one.
    pub const HERMES: Self = Self {
        name: "hermes",
        trigger: "<tool_call>",
        at_start: false,
        begin: "",
        open: "<tool_call>\n{\"name\": \"",
        middle: "\", \"arguments\": ",
        close: "}\n</tool_call>",
        between: Some("\n"),
        end: "",
    };

    /// The format that a chat template's own text shows.
    pub fn of(template: &str) -> Self {
        let has = |text: &str| template.contains(text);
        if has("<|channel|>") && has("to=functions.") {
            HARMONY
        } else if has("<｜tool▁calls▁begin｜>") {
            if has("function<｜tool▁sep｜>") || has("```json") {
                DEEPSEEK
            } else {
                DEEPSEEK_31
            }
        } else if has("[TOOL_CALLS]") {
            if has("[ARGS]") { MISTRAL_ARGS } else { MISTRAL }
        } else if has("<|python_tag|>") || has("\"parameters\": ") && has("<|eom_id|>") {
            LLAMA_3
        } else {
            Self::HERMES
        }
    }

    /// The format in a word.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether one answer can hold several calls.
    pub fn has_several(&self) -> bool {
        self.between.is_some()
    }

    /// What calls begin with, where the model decides whether to call.
    pub(crate) fn trigger(&self) -> &'static str {
        self.trigger
    }

    /// Whether that counts only where the answer begins.
    pub(crate) fn at_start(&self) -> bool {
        self.at_start
    }

    /// Everything before the first call's name.
    pub(super) fn lead(&self) -> String {
        format!("{}{}", self.begin, self.open)
    }

    /// The special tokens of its texts.
    pub fn special_tokens(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        let texts = [
            self.trigger,
            self.begin,
            self.open,
            self.middle,
            self.close,
            self.end,
        ];
        let pieces = texts.into_iter().chain(self.between);
        let pieces = pieces.flat_map(|text| tokenizer.split_special(text));
        let tokens = pieces.filter_map(|piece| match piece {
            Fragment::Token(id) => Some(id),
            Fragment::Text(_) => None,
        });
        tokens.collect()
    }

    /// What tells a model of tools whose template does not.
    pub fn instructions(&self, tools: &[ToolSpec]) -> String {
        let declarations = tools.iter().map(|tool| format!("{}\n", tool.declaration));
        format!(
            "You can call these tools:\n{}\nTo call one, answer with its name and its arguments, like this:\n{}\
             NAME{}{{\"ARGUMENT\": VALUE}}{}{}",
            declarations.collect::<String>(),
            self.lead(),
            self.middle,
            self.close,
            self.end
        )
    }

    /// Earlier calls as the model would have written them, for templates that do not word calls.
    pub fn worded<'a>(&self, calls: impl Iterator<Item = (&'a str, &'a str)>) -> String {
        let calls = calls.map(|(name, arguments)| {
            format!(
                "{}{name}{}{arguments}{}",
                self.open, self.middle, self.close
            )
        });
        let calls: Vec<String> = calls.collect();
        let calls = calls.join(self.between.unwrap_or("\n"));
        format!("{}{calls}{}", self.begin, self.end)
    }
}

impl ToolSpec {
    /// The schema of a tool that takes nothing.
    pub fn no_parameters() -> Value {
        json!({ "type": "object", "properties": {}, "additionalProperties": false })
    }
}
