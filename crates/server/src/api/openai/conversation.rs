//! A conversation and how it is worded: what chat, its rendering and its tokenizing share.

use std::collections::BTreeMap;

use forthwith_core::units::TokenId;
use forthwith_text::{RenderOptions, RenderedPrompt};
use serde::Deserialize;
use serde_json::Value;

use super::messages::{self, Message};
use crate::error::ApiError;
use crate::loader::ServedModel;

/// The most variables of a template that a request may set.
const MAX_VARIABLES: usize = 64;

/// The fields of a conversation.
#[derive(Debug, Deserialize)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<BTreeMap<String, Value>>,
    enable_thinking: Option<bool>,
}

impl Conversation {
    /// The prompt that the model's template makes of it.
    pub(crate) fn render(self, model: &ServedModel) -> Result<RenderedPrompt, ApiError> {
        let options = self.options()?;
        let conversation = messages::conversation(self.messages)?;
        let template = model.template.as_ref().ok_or_else(|| {
            let message = "this model has no chat template; use /v1/completions";
            ApiError::field("messages", message).coded("no_chat_template")
        })?;
        Ok(template.render(&conversation, &options)?)
    }

    /// The tokens of that prompt.
    pub(crate) fn tokens(self, model: &ServedModel) -> Result<Vec<TokenId>, ApiError> {
        let rendered = self.render(model)?;
        let tokens = model.tokenizer.encode_rendered(&rendered);
        tokens.map_err(|error| ApiError::from(error).renamed("prompt", "messages"))
    }

    fn options(&self) -> Result<RenderOptions, ApiError> {
        let continues = self.continue_final_message.unwrap_or(false);
        if continues && self.add_generation_prompt == Some(true) {
            let message = "an answer cannot both continue the last message and begin a new one; \
                           leave out `add_generation_prompt` or `continue_final_message`";
            return Err(ApiError::field("continue_final_message", message));
        }
        Ok(RenderOptions {
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!continues),
            continue_final_message: continues,
            variables: self.variables()?,
        })
    }

    fn variables(&self) -> Result<BTreeMap<String, Value>, ApiError> {
        const NAME: &str = "enable_thinking";
        let mut variables = self.chat_template_kwargs.clone().unwrap_or_default();
        if variables.len() > MAX_VARIABLES {
            let count = variables.len();
            let message = format!("{count} variables, allowed are {MAX_VARIABLES}");
            return Err(ApiError::field("chat_template_kwargs", message));
        }
        if let Some(thinks) = self.enable_thinking {
            let before = variables.insert(NAME.to_owned(), Value::Bool(thinks));
            if before.is_some_and(|before| before != Value::Bool(thinks)) {
                let message =
                    "`enable_thinking` and `chat_template_kwargs` differ; send one of them";
                return Err(ApiError::field(NAME, message));
            }
        }
        Ok(variables)
    }
}
