//! Chat templates: messages to prompt text.
//!
//! A template comes with a model file and is not trusted: it has no files, no other templates, a
//! budget of steps and bytes, and its errors reach a client only as the sentence that the template
//! itself raises. What a user wrote goes through it guarded, so that it cannot become a control
//! token (see [`crate::Tokenizer::encode_rendered`]).

mod environment;
mod folder;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use forthwith_core::metadata::{Metadata, MetadataError};
use forthwith_core::units::TokenId;
use minijinja::{Value, context};

use environment::Engine;

use crate::tokenizer::{ControlGuard, Tokenizer};

/// The longest template source.
pub const MAX_SOURCE: usize = 128 * 1024;
/// The most characters of a template's own message that are passed on.
const MAX_RAISED: usize = 300;
/// The longest role.
const MAX_ROLE: usize = 64;
/// What every template is given; no variable may take these names.
const GIVEN: [&str; 7] = [
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
    "tools",
    "documents",
];

/// What a rendering may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateLimits {
    /// Steps; each 64 bytes of data count as one.
    pub steps: u64,
    /// The longest prompt, in bytes.
    pub output: usize,
}

impl Default for TemplateLimits {
    fn default() -> Self {
        Self {
            steps: 1_000_000,
            output: 4 << 20,
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// What is said.
    pub content: String,
    /// What templates read besides: `tool_calls`, `tool_call_id`, `name`, `reasoning_content`.
    pub fields: BTreeMap<&'static str, serde_json::Value>,
}

/// How a conversation is rendered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderOptions {
    /// End with the opening of the assistant's answer.
    pub add_generation_prompt: bool,
    /// End with the last character of the last message, so that an answer goes on from there.
    pub continue_final_message: bool,
    /// Declarations of the tools that the model may call.
    pub tools: Vec<serde_json::Value>,
    /// What the template reads besides, by name.
    pub variables: BTreeMap<String, serde_json::Value>,
}

impl RenderOptions {
    /// For an answer of the assistant's.
    pub const fn for_answer() -> Self {
        Self {
            add_generation_prompt: true,
            continue_final_message: false,
            tools: Vec::new(),
            variables: BTreeMap::new(),
        }
    }
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
    /// A variable would have no effect.
    #[error("{problem}")]
    Variable {
        /// Its name.
        name: String,
        /// What is wrong and what would work.
        problem: String,
    },
    /// The model file's template has the wrong kind.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    limits: TemplateLimits,
    engine: Engine,
    /// Whether it shows tools to the model.
    reads_tools: bool,
    /// The variables that the template reads beyond those that are given.
    reads: BTreeSet<String>,
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
        let limits = TemplateLimits::default();
        let engine = Engine::compile(source, limits)?;
        let mut reads = engine.variables()?;
        let reads_tools = reads.contains("tools");
        reads.retain(|name| !GIVEN.contains(&name.as_str()));
        Ok(Self {
            source: source.to_owned(),
            limits,
            engine,
            reads_tools,
            reads,
            guard: tokenizer.guard(),
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
        })
    }

    /// The same template with other limits.
    ///
    /// # Errors    [`TemplateError::Broken`] if it takes too long to compile
    pub fn limited(self, limits: TemplateLimits) -> Result<Self, TemplateError> {
        Ok(Self {
            engine: Engine::compile(&self.source, limits)?,
            limits,
            ..self
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

    /// Whether it shows tools to the model.
    pub fn reads_tools(&self) -> bool {
        self.reads_tools
    }

    /// Whether it words an assistant's earlier calls itself.
    pub fn words_calls(&self) -> bool {
        self.source.contains("tool_calls")
    }

    /// Whether it takes the arguments of earlier calls as an object, which it writes as JSON; others take
    /// the text.
    pub fn takes_objects(&self) -> bool {
        let words: String = self.source.split_whitespace().collect();
        let written = [
            "arguments|tojson",
            "arguments']|tojson",
            "arguments\"]|tojson",
            "function|tojson",
        ];
        written.iter().any(|written| words.contains(written))
    }

    /// The variables that change what the template writes, as far as their names tell.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.reads.iter().map(String::as_str)
    }

    /// What is longer than any prompt is refused before a template is blamed for it.
    fn check_length(
        &self,
        messages: &[ChatMessage],
        values: &[String],
    ) -> Result<(), TemplateError> {
        let contents = messages.iter().map(|message| message.content.len());
        let length: usize = contents.chain(values.iter().map(String::len)).sum();
        let most = self.limits.output;
        if length <= most {
            return Ok(());
        }
        Err(TemplateError::Messages(format!(
            "the conversation has {length} bytes, allowed are {most}; shorten it"
        )))
    }

    /// Renders a conversation.
    ///
    /// # Errors    [`TemplateError::Raised`] if the template refuses it, [`TemplateError::Messages`]
    /// if a role is not a plain word, there is too much text or the last message cannot be continued,
    /// [`TemplateError::Variable`] if the template does not read a variable,
    /// [`TemplateError::Broken`] if a limit is exceeded
    pub fn render(
        &self,
        messages: &[ChatMessage],
        options: &RenderOptions,
    ) -> Result<RenderedPrompt, TemplateError> {
        self.check_variables(&options.variables)?;
        let values = values(messages, options);
        self.check_length(messages, &values)?;
        let sentinel = self.sentinel(messages, &values)?;
        let last = messages.last();
        let messages: Vec<Value> = messages
            .iter()
            .enumerate()
            .map(|(index, message)| {
                check_role(index, &message.role)?;
                let content = self.guard.guard(&message.content, sentinel);
                let fields = message.fields.iter();
                let fields = fields.map(|(&name, value)| (name, self.guarded(value, sentinel)));
                Ok(context! {
                    role => message.role.as_str(),
                    content => content,
                    ..Value::from_pairs(fields)
                })
            })
            .collect::<Result<_, TemplateError>>()?;
        let variables = options.variables.iter();
        let variables =
            variables.map(|(name, value)| (name.as_str(), self.guarded(value, sentinel)));
        let mut text = self.engine.render(context! {
            messages => messages,
            add_generation_prompt => options.add_generation_prompt,
            continue_final_message => options.continue_final_message,
            bos_token => self.bos.clone(),
            eos_token => self.eos.clone(),
            tools => self.tools(&options.tools, sentinel),
            documents => (),
            ..Value::from_pairs(variables)
        })?;
        if let Some(last) = last.filter(|_| options.continue_final_message) {
            let content = self.guard.guard(&last.content, sentinel);
            text.truncate(end_of(&content, &text)?);
        }
        Ok(RenderedPrompt { text, sentinel })
    }

    /// Templates ask whether there are tools by asking for the list.
    fn tools(&self, tools: &[serde_json::Value], sentinel: char) -> Value {
        if tools.is_empty() {
            return Value::from(());
        }
        tools
            .iter()
            .map(|tool| self.guarded(tool, sentinel))
            .collect()
    }

    /// A value whose texts cannot become control tokens.
    fn guarded(&self, value: &serde_json::Value, sentinel: char) -> Value {
        use serde_json::Value as Json;
        match value {
            Json::Null => Value::from(()),
            Json::Bool(value) => Value::from(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Value::from(value),
                (_, Some(value)) => Value::from(value),
                _ => Value::from(number.as_f64()),
            },
            Json::String(text) => Value::from(self.guard.guard(text, sentinel)),
            Json::Array(items) => items
                .iter()
                .map(|item| self.guarded(item, sentinel))
                .collect(),
            Json::Object(entries) => Value::from_pairs(entries.iter().map(|(name, value)| {
                let name = self.guard.guard(name, sentinel);
                (name, self.guarded(value, sentinel))
            })),
        }
    }

    fn check_variables(
        &self,
        variables: &BTreeMap<String, serde_json::Value>,
    ) -> Result<(), TemplateError> {
        let Some(name) = variables.keys().find(|name| !self.reads.contains(*name)) else {
            return Ok(());
        };
        let shown: String = name.chars().take(MAX_ROLE).collect();
        let problem = if GIVEN.contains(&name.as_str()) {
            format!("`{shown}` is given by the server; send it as a field of its own")
        } else if self.reads.is_empty() {
            format!("this model's chat template does not read `{shown}`, nor any other variable")
        } else {
            let known: Vec<&str> = self.variables().collect();
            let known = known.join(", ");
            format!("this model's chat template does not read `{shown}`; it reads {known}")
        };
        Err(TemplateError::Variable {
            name: shown,
            problem,
        })
    }

    /// A character that occurs nowhere in the input: one of those that Unicode sets aside.
    fn sentinel(&self, messages: &[ChatMessage], values: &[String]) -> Result<char, TemplateError> {
        ('\u{fdd0}'..='\u{fdef}')
            .find(|&candidate| {
                !self.source.contains(candidate)
                    && !values.iter().any(|value| value.contains(candidate))
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

/// All values beside the contents, as text.
fn values(messages: &[ChatMessage], options: &RenderOptions) -> Vec<String> {
    let fields = messages.iter().flat_map(|message| message.fields.values());
    let values = fields
        .chain(&options.tools)
        .chain(options.variables.values());
    values.map(ToString::to_string).collect()
}

/// Where a message's content, which templates may trim, ends in what they wrote.
fn end_of(content: &str, text: &str) -> Result<usize, TemplateError> {
    let trimmed = content.trim();
    let found = text.rfind(trimmed).filter(|_| !trimmed.is_empty());
    let start = found.ok_or_else(|| {
        let problem = if trimmed.is_empty() {
            "the last message is empty; there is nothing to continue"
        } else {
            "the model's chat template changes the last message; it cannot be continued"
        };
        TemplateError::Messages(problem.to_owned())
    })?;
    let whole = content.trim_start();
    let kept = if text[start..].starts_with(whole) {
        whole
    } else {
        trimmed
    };
    Ok(start + kept.len())
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
