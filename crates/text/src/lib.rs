//! Text to tokens and back: tokenizer, chat template, detokenizer, stop strings.
//!
//! The way in is [`ChatTemplate::render`] and [`Tokenizer::encode_rendered`] (or
//! [`Tokenizer::encode_prompt`]), the way out is [`TextStream`]. Nothing here knows of models,
//! engines or HTTP. Text written by a user never becomes a control token.
//!
//! ```
//! use std::sync::Arc;
//! use forthwith_core::units::TokenId;
//! use forthwith_text::{TextStream, Tokenizer};
//!
//! let words = ["<unk>", "the", "gpu", "reads"].map(str::to_owned);
//! let unknown = TokenId::new(0);
//! let tokenizer = Arc::new(Tokenizer::words(&words, unknown, vec![], vec![unknown])?);
//!
//! let prompt = tokenizer.encode_prompt("the gpu")?;
//! let mut stream = TextStream::new(tokenizer, vec![]).with_prompt(prompt.last().copied());
//! assert_eq!(stream.push(TokenId::new(3)).text, " reads");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod constraint;
mod detokenizer;
mod stop;
mod stream;
mod template;
mod tokenizer;
mod tools;

pub use constraint::{Form, FormCompiler, FormError, FormLimits};
pub use stream::{Delta, TextStream};
pub use template::{
    ChatMessage, ChatTemplate, MAX_SOURCE, RenderOptions, RenderedPrompt, TemplateError,
    TemplateLimits,
};
pub use tokenizer::{ControlText, EncodedText, TokenizeError, Tokenizer, TokenizerError};
pub use tools::{AnswerPart, AnswerReader, ReasoningMarks, ToolFormat, ToolSpec};
