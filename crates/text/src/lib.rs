//! Text to tokens and back: tokenizer, chat template, detokenizer, stop strings.
//!
//! The way in is [`ChatTemplate::render`] and [`Tokenizer::encode_rendered`] (or
//! [`Tokenizer::encode_prompt`]), the way out is [`TextStream`]. Nothing here knows of models,
//! engines or HTTP. Text written by a user never becomes a control token.
#![forbid(unsafe_code)]

mod stream;
mod template;
mod tokenizer;

pub use stream::{Delta, TextStream};
pub use template::{ChatMessage, ChatTemplate, RenderOptions, RenderedPrompt, TemplateError};
pub use tokenizer::{ControlText, TokenizeError, Tokenizer, TokenizerError};
