//! A conversation and how it is worded: what chat, its rendering and its tokenizing share.

use std::collections::BTreeMap;

use forthwith_core::units::TokenId;
use forthwith_text::{
    ChatMessage, ChatTemplate, ReasoningMarks, RenderOptions, RenderedPrompt, TemplateError,
};
use serde::Deserialize;
use serde_json::Value;

use super::messages::{self, Message, Reads};
use super::tools::{WrittenTool, declared};
use crate::error::ApiError;
use crate::limits::RequestLimits;
use crate::loader::ServedModel;

/// The most variables of a template that a request may set.
const MAX_VARIABLES: usize = 64;

/// The fields of a conversation.
#[derive(Debug, Deserialize)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    tools: Option<Vec<WrittenTool>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<BTreeMap<String, Value>>,
    enable_thinking: Option<bool>,
    reasoning_effort: Option<String>,
}

/// A conversation as a prompt.
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<TokenId>,
    /// How the answer marks its reasoning, and whether it begins within it.
    pub(crate) reasoning: Option<(ReasoningMarks, bool)>,
}

impl Conversation {
    /// Does not show the tools to the model.
    pub(crate) fn without_tools(self) -> Self {
        Self {
            tools: None,
            ..self
        }
    }

    /// The prompt that the model's template makes of it.
    pub(crate) fn render(
        self,
        model: &ServedModel,
        limits: &RequestLimits,
    ) -> Result<RenderedPrompt, ApiError> {
        let template = model.template.as_ref().ok_or_else(|| {
            let message = "this model has no chat template; use /v1/completions";
            ApiError::field("messages", message).coded("no_chat_template")
        })?;
        let tools = declared(self.tools.as_deref().unwrap_or_default(), limits.tools)?;
        let mut options = self.options(template, model)?;
        let reads = Reads {
            calls: template.words_calls(),
            format: model.tool_format.clone(),
            objects: template.takes_objects(),
            reasoning: template.source().contains("reasoning_content"),
        };
        let messages = messages::conversation(self.messages, &reads, limits.messages)?;
        if tools.is_empty() || template.reads_tools() {
            let shown = tools.into_iter().map(|tool| tool.declaration);
            options.tools = shown.collect();
            return Ok(template.render(&messages, &options)?);
        }
        with_instructions(
            template,
            messages,
            &model.tool_format.instructions(&tools),
            &options,
        )
    }

    /// That prompt in tokens.
    pub(crate) fn prompt(
        self,
        model: &ServedModel,
        limits: &RequestLimits,
    ) -> Result<Prompt, ApiError> {
        let rendered = self.render(model, limits)?;
        let tokens = model.tokenizer.encode_rendered(&rendered);
        let tokens = tokens.map_err(|error| ApiError::from(error).renamed("prompt", "messages"))?;
        let text = rendered.text();
        let begun = |marks: ReasoningMarks| (marks, text.trim_end().ends_with(marks.open));
        Ok(Prompt {
            tokens,
            reasoning: model.reasoning.map(begun),
        })
    }

    fn options(
        &self,
        template: &ChatTemplate,
        model: &ServedModel,
    ) -> Result<RenderOptions, ApiError> {
        let continues = self.continue_final_message.unwrap_or(false);
        if continues && self.add_generation_prompt == Some(true) {
            let message = "an answer cannot both continue the last message and begin a new one; \
                           leave out `add_generation_prompt` or `continue_final_message`";
            return Err(ApiError::field("continue_final_message", message));
        }
        Ok(RenderOptions {
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!continues),
            continue_final_message: continues,
            tools: Vec::new(),
            variables: self.variables(template, model)?,
        })
    }

    fn variables(
        &self,
        template: &ChatTemplate,
        model: &ServedModel,
    ) -> Result<BTreeMap<String, Value>, ApiError> {
        const THINKS: &str = "enable_thinking";
        const EFFORT: &str = "reasoning_effort";
        let mut variables = self.chat_template_kwargs.clone().unwrap_or_default();
        if variables.len() > MAX_VARIABLES {
            let count = variables.len();
            let message = format!("{count} variables, allowed are {MAX_VARIABLES}");
            return Err(ApiError::field("chat_template_kwargs", message));
        }
        if let Some(thinks) = self.enable_thinking {
            set(&mut variables, (THINKS, THINKS), Value::Bool(thinks))?;
        }
        let Some(effort) = &self.reasoning_effort else {
            return Ok(variables);
        };
        let reads = |name: &str| template.variables().any(|known| known == name);
        if reads(EFFORT) {
            set(
                &mut variables,
                (EFFORT, EFFORT),
                Value::from(effort.as_str()),
            )?;
        } else if effort == "none" && reads(THINKS) {
            set(&mut variables, (EFFORT, THINKS), Value::Bool(false))?;
        } else if effort != "none" || model.reasoning.is_some() {
            let message =
                "this model's chat template does not read `reasoning_effort`; leave it out";
            return Err(ApiError::unsupported(EFFORT, message));
        }
        Ok(variables)
    }
}

/// Sets a template's variable for a field, which must not contradict `chat_template_kwargs`.
fn set(
    variables: &mut BTreeMap<String, Value>,
    (field, name): (&'static str, &str),
    value: Value,
) -> Result<(), ApiError> {
    if variables.get(name).is_some_and(|before| *before != value) {
        let message = format!("`{field}` and `{name}` of the template differ; send one of them");
        return Err(ApiError::field(field, message));
    }
    variables.insert(name.to_owned(), value);
    Ok(())
}

/// Tells a model of tools whose template does not: in the system message, or where the template has none, in
/// the first message.
fn with_instructions(
    template: &ChatTemplate,
    messages: Vec<ChatMessage>,
    instructions: &str,
    options: &RenderOptions,
) -> Result<RenderedPrompt, ApiError> {
    let mut told = messages.clone();
    match told.first_mut() {
        Some(first) if first.role == "system" => {
            first.content = format!("{}\n\n{instructions}", first.content);
        }
        _ => {
            let system = ChatMessage {
                role: "system".to_owned(),
                content: instructions.to_owned(),
                ..ChatMessage::default()
            };
            told.insert(0, system);
        }
    }
    match template.render(&told, options) {
        Err(TemplateError::Raised(_)) => {}
        other => return Ok(other?),
    }
    let mut told = messages;
    if let Some(first) = told.first_mut() {
        first.content = format!("{instructions}\n\n{}", first.content);
    }
    Ok(template.render(&told, options)?)
}
