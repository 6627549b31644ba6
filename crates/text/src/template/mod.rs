//! Chat templates: messages to prompt text.
//!
//! A template comes with a model file and is not trusted: it has no files, no other templates, a
//! budget of steps and bytes, and its errors reach a client only as the sentence that the template
//! itself raises. What a user wrote goes through it guarded, so that it cannot become a control
//! token (see [`crate::Tokenizer::encode_rendered`]).

mod environment;
mod folder;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use forthwith_core::metadata::{Metadata, MetadataError};
use forthwith_core::units::TokenId;
use minijinja::{Value, context};

use environment::Engine;

use crate::tokenizer::{ControlGuard, Tokenizer};

/// The longest template source.
pub const MAX_SOURCE: usize = 128 * 1024;
/// The longest prompt that a template may write, in bytes.
pub const MAX_OUTPUT: usize = 4 * 1024 * 1024;
/// The most characters of a template's own message that are passed on.
const MAX_RAISED: usize = 300;
/// The longest role.
const MAX_ROLE: usize = 64;

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
    sentinel: char,
}

impl RenderedPrompt {
    /// The prompt as plain text.
    pub fn text(&self) -> String {
        self.text.replace(self.sentinel, "")
    }

    /// The prompt in which only the template's own control tokens can be found.
    pub(crate) fn guarded_text(&self) -> &str {
        &self.text
    }

    /// Whether something in the prompt had to be kept from looking like a control token.
    pub(crate) fn is_guarded(&self) -> bool {
        self.text.contains(self.sentinel)
    }

    /// A part of the guarded text as plain text.
    pub(crate) fn unguard<'t>(&self, part: &'t str) -> Cow<'t, str> {
        if part.contains(self.sentinel) {
            part.replace(self.sentinel, "").into()
        } else {
            part.into()
        }
    }
}

/// A chat template cannot be used, or refuses a conversation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template itself refuses the conversation, in its own words.
    #[error("the model's chat template refuses this conversation: {0}")]
    Raised(String),
    /// The template is wrong, unsupported or exceeds a limit.
    #[error("the model's chat template cannot be used: {0}")]
    Broken(String),
    /// The messages cannot be rendered with any template.
    #[error("{0}")]
    Messages(String),
    /// The model file's template has the wrong kind.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    engine: Engine,
    guard: Arc<ControlGuard>,
    bos: Value,
    eos: Value,
}

impl ChatTemplate {
    /// Compiles a template for a tokenizer.
    ///
    /// # Errors    [`TemplateError::Broken`] if it is too long or has a syntax error
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::Broken(format!(
                "its source has {} bytes, allowed are {MAX_SOURCE}",
                source.len()
            )));
        }
        let text = |id: Option<TokenId>| {
            id.map_or(Value::UNDEFINED, |id| {
                Value::from(String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned())
            })
        };
        Ok(Self {
            source: source.to_owned(),
            engine: Engine::compile(source)?,
            guard: tokenizer.guard(),
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
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

    /// Compiles the template of a model folder, if it has one: `chat_template.jinja`, or else
    /// `chat_template` in `tokenizer_config.json`, of several the one named `default`.
    pub fn from_folder(
        folder: &Path,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, TemplateError> {
        folder::source(folder)?
            .map(|source| Self::new(&source, tokenizer))
            .transpose()
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation.
    ///
    /// # Errors    [`TemplateError::Raised`] if the template refuses it, [`TemplateError::Messages`]
    /// if a role is not a plain word or there is too much text, [`TemplateError::Broken`] if a limit is exceeded
    pub fn render(
        &self,
        messages: &[ChatMessage],
        options: &RenderOptions,
    ) -> Result<RenderedPrompt, TemplateError> {
        check_length(messages)?;
        let sentinel = self.sentinel(messages)?;
        let messages: Vec<Value> = messages
            .iter()
            .enumerate()
            .map(|(index, message)| {
                check_role(index, &message.role)?;
                let content = self.guard.guard(&message.content, sentinel);
                Ok(context! { role => message.role.as_str(), content => content })
            })
            .collect::<Result<_, TemplateError>>()?;
        let text = self.engine.render(context! {
            messages => messages,
            add_generation_prompt => options.add_generation_prompt,
            bos_token => self.bos.clone(),
            eos_token => self.eos.clone(),
            tools => (),
            documents => (),
        })?;
        Ok(RenderedPrompt { text, sentinel })
    }

    /// A character that occurs nowhere in the input: one of those that Unicode sets aside.
    fn sentinel(&self, messages: &[ChatMessage]) -> Result<char, TemplateError> {
        ('\u{fdd0}'..='\u{fdef}')
            .find(|&candidate| {
                !self.source.contains(candidate)
                    && !messages
                        .iter()
                        .any(|message| message.content.contains(candidate))
            })
            .ok_or_else(|| {
                TemplateError::Messages(
                    "the messages use all 32 Unicode noncharacters U+FDD0 to U+FDEF; remove one"
                        .to_owned(),
                )
            })
    }
}

/// What is longer than any prompt is refused before a template is blamed for it.
fn check_length(messages: &[ChatMessage]) -> Result<(), TemplateError> {
    let length: usize = messages.iter().map(|message| message.content.len()).sum();
    if length <= MAX_OUTPUT {
        return Ok(());
    }
    Err(TemplateError::Messages(format!(
        "the conversation has {length} bytes, allowed are {MAX_OUTPUT}; shorten it"
    )))
}

/// Templates put roles next to control-token text; only plain words cannot complete one.
fn check_role(index: usize, role: &str) -> Result<(), TemplateError> {
    let plain = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    if (1..=MAX_ROLE).contains(&role.len()) && role.chars().all(plain) {
        return Ok(());
    }
    let shown: String = role.chars().take(MAX_ROLE).collect();
    Err(TemplateError::Messages(format!(
        "messages[{index}].role is {shown:?}; allowed are letters, digits, `_` and `-`, at most \
         {MAX_ROLE}"
    )))
}

#[cfg(test)]
mod tests;
