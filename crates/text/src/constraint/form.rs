//! What a request asks for, and why it cannot be had.

use serde_json::Value;

/// A form for an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// A JSON object.
    JsonObject,
    /// JSON that this schema allows.
    JsonSchema(Value),
    /// What a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
    /// A grammar in GBNF, as llama.cpp has it.
    Gbnf(String),
}

/// A form cannot be had; the message tells why, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// The form itself is wrong.
    #[error("{0}")]
    Wrong(String),
    /// It is larger or more complex than the budget allows.
    #[error("{0}")]
    TooLarge(String),
    /// Others are compiled.
    #[error("too many forms are compiled at the moment; try again")]
    Busy,
    /// This model's vocabulary cannot follow forms.
    #[error("the model's vocabulary cannot follow forms: {0}")]
    Vocabulary(String),
}

impl FormError {
    /// Says whose form it is.
    pub(crate) fn of(self, name: &str) -> Self {
        match self {
            Self::Wrong(text) => Self::Wrong(format!("{name}: {text}")),
            Self::TooLarge(text) => Self::TooLarge(format!("{name}: {text}")),
            other => other,
        }
    }

    pub(super) fn wrong(message: impl Into<String>) -> Self {
        Self::Wrong(message.into())
    }
}
