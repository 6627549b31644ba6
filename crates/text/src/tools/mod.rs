//! Calls of tools: how a model writes them, how it is held to that, and how they are read back.
//!
//! The format follows from the model's chat template ([`ToolFormat::of`]). Calls are written under a
//! constraint, so that what is read back is exact; free text before them is not.

mod format;
mod grammar;
mod reader;

pub use format::{ToolFormat, ToolSpec};
pub use reader::{AnswerPart, AnswerReader, ReasoningMarks};
