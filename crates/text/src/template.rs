//! Chat templates: messages to prompt text.

use forthwith_core::metadata::{Metadata, MetadataError};

use crate::tokenizer::Tokenizer;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// How a conversation is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenderOptions {
    /// End with the opening of the assistant's answer.
    pub add_generation_prompt: bool,
}

/// A prompt in which the template's control tokens can be told from a user's text that looks alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
}

impl RenderedPrompt {
    /// The prompt as plain text.
    pub fn text(&self) -> String {
        self.text.clone()
    }
}

/// A chat template cannot be used, or refuses a conversation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template itself refuses the conversation, in its own words.
    #[error("the chat template refuses this conversation: {0}")]
    Raised(String),
    /// The template is wrong, unsupported or exceeds a limit.
    #[error("the chat template cannot be rendered: {0}")]
    Broken(String),
    /// The messages cannot be rendered with any template.
    #[error("the messages cannot be rendered: {0}")]
    Messages(String),
    /// The model file's template has the wrong kind.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
}

impl ChatTemplate {
    /// Compiles a template for a tokenizer.
    pub fn new(source: &str, _tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        Ok(Self {
            source: source.to_owned(),
        })
    }

    /// Compiles the template that a model file carries, if it has one.
    pub fn from_gguf(
        metadata: &Metadata,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, TemplateError> {
        metadata
            .text("tokenizer.chat_template")?
            .map(|source| Self::new(source, tokenizer))
            .transpose()
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation.
    pub fn render(
        &self,
        _messages: &[ChatMessage],
        _options: &RenderOptions,
    ) -> Result<RenderedPrompt, TemplateError> {
        unimplemented!()
    }
}
