//! `POST /tokenize`, `/detokenize` and `/apply-template`: text to tokens and back, and messages to the
//! prompt that they become, as vLLM's and llama.cpp's servers offer them.
//!
//! Of the two names for a text, `prompt` (vLLM) is treated as `/v1/completions` treats it: after the
//! tokens that the model wants before a text, control-token text staying text. `content` (llama.cpp)
//! has that server's defaults: nothing before it, control tokens found. Both can be asked for.

use axum::Json;
use axum::extract::State;
use forthwith_core::request::RequestError;
use forthwith_core::units::TokenId;
use forthwith_text::{ControlText, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::api::openai::body::Body;
use crate::api::openai::conversation::Conversation;
use crate::api::openai::fields::{APPLY_TEMPLATE, CONVERSATION, DETOKENIZE, TOKENIZE};
use crate::error::ApiError;
use crate::extract::Payload;
use crate::loader::ServedModel;
use crate::state::AppState;

/// A text and what to make of it.
#[derive(Debug, Deserialize)]
struct Text {
    model: Option<String>,
    prompt: Option<String>,
    content: Option<String>,
    add_special_tokens: Option<bool>,
    add_special: Option<bool>,
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
    return_token_strs: Option<bool>,
}

/// Which fields a body has, to tell a text from a conversation.
#[derive(Debug, Deserialize)]
struct Kinds {
    messages: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Tokenized {
    tokens: Tokens,
    count: usize,
    /// Tokens of prompt and answer together.
    max_model_len: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
    /// What the reader should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Tokens {
    Ids(Vec<u32>),
    Pieces(Vec<Piece>),
}

#[derive(Debug, Serialize)]
struct Piece {
    id: u32,
    piece: Spelling,
}

/// What a token stands for; bytes where these are no text by themselves.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Spelling {
    Text(String),
    Bytes(Vec<u8>),
}

pub(crate) async fn tokenize(
    State(state): State<AppState>,
    Payload(bytes): Payload,
) -> Result<Json<Tokenized>, ApiError> {
    let job = move |state: &AppState| {
        state.ready()?;
        let body = Body::check(&bytes, &[TOKENIZE, CONVERSATION], state)?;
        let (text, kinds): (Text, Kinds) = (body.read()?, body.read()?);
        let model = state.model(text.model.as_deref())?;
        let tokens = if kinds.messages.is_some() {
            text.refuse_beside_messages()?;
            body.read::<Conversation>()?
                .prompt(&model, state.limits())?
                .tokens
        } else {
            text.tokens(&model.tokenizer)?
        };
        Ok(Tokenized {
            warnings: body.warnings,
            ..text.answer(&model, &tokens)
        })
    };
    state.work(job).await.map(Json)
}

impl Text {
    fn refuse_beside_messages(&self) -> Result<(), ApiError> {
        let given = [
            ("prompt", self.prompt.is_some()),
            ("content", self.content.is_some()),
            ("add_special", self.add_special.is_some()),
            ("add_special_tokens", self.add_special_tokens == Some(true)),
            ("parse_special", self.parse_special.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((name, _)) => {
                let message = format!("`{name}` is for a text; leave it out beside `messages`");
                Err(ApiError::field(name, message))
            }
            None => Ok(()),
        }
    }

    fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, ApiError> {
        let (text, name, as_llama) = match (&self.prompt, &self.content) {
            (Some(text), None) => (text, "prompt", false),
            (None, Some(text)) => (text, "content", true),
            _ => {
                let message = "send one of `prompt`, `content` and `messages`";
                return Err(ApiError::field("prompt", message));
            }
        };
        let special = match (self.add_special_tokens, self.add_special) {
            (Some(a), Some(b)) if a != b => {
                let message = "`add_special` and `add_special_tokens` differ; send one of them";
                return Err(ApiError::field("add_special", message));
            }
            (a, b) => a.or(b).unwrap_or(!as_llama),
        };
        let control = if self.parse_special.unwrap_or(as_llama) {
            ControlText::Parse
        } else {
            ControlText::AsText
        };
        let encoded = if special {
            tokenizer.encode_prompt_with(text, control)
        } else {
            tokenizer.encode(text, control)
        };
        encoded.map_err(|error| ApiError::from(error).renamed("prompt", name))
    }

    fn answer(&self, model: &ServedModel, tokens: &[TokenId]) -> Tokenized {
        let tokenizer = &model.tokenizer;
        let lossy = |&id: &TokenId| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
        let strings = self.return_token_strs.unwrap_or(false);
        Tokenized {
            warnings: Vec::new(),
            count: tokens.len(),
            max_model_len: model.limits.context.get(),
            token_strs: strings.then(|| tokens.iter().map(lossy).collect()),
            tokens: if self.with_pieces.unwrap_or(false) {
                Tokens::Pieces(tokens.iter().map(|&id| Piece::of(tokenizer, id)).collect())
            } else {
                Tokens::Ids(tokens.iter().map(|id| id.get()).collect())
            },
        }
    }
}

impl Piece {
    fn of(tokenizer: &Tokenizer, id: TokenId) -> Self {
        let bytes = tokenizer.token_bytes(id).to_vec();
        Self {
            id: id.get(),
            piece: String::from_utf8(bytes)
                .map_or_else(|error| Spelling::Bytes(error.into_bytes()), Spelling::Text),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Ids {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// The text, by both servers' names for it.
#[derive(Debug, Serialize)]
pub(crate) struct Detokenized {
    prompt: String,
    content: String,
    /// What the reader should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

pub(crate) async fn detokenize(
    State(state): State<AppState>,
    Payload(bytes): Payload,
) -> Result<Json<Detokenized>, ApiError> {
    let job = move |state: &AppState| {
        state.ready()?;
        let body = Body::check(&bytes, &[DETOKENIZE], state)?;
        let ids: Ids = body.read()?;
        let model = state.model(ids.model.as_deref())?;
        let vocab = model.tokenizer.vocab_size();
        let tokens: Vec<TokenId> = ids.tokens.into_iter().map(TokenId::new).collect();
        if let Some(&id) = tokens.iter().find(|id| id.index() >= vocab) {
            let field = "tokens";
            return Err(RequestError::UnknownToken { field, id, vocab }.into());
        }
        let text = model.tokenizer.spell(&tokens);
        Ok(Detokenized {
            prompt: text.clone(),
            content: text,
            warnings: body.warnings,
        })
    };
    state.work(job).await.map(Json)
}

#[derive(Debug, Deserialize)]
struct Named {
    model: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Applied {
    prompt: String,
    /// What the reader should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

pub(crate) async fn apply_template(
    State(state): State<AppState>,
    Payload(bytes): Payload,
) -> Result<Json<Applied>, ApiError> {
    let job = move |state: &AppState| {
        state.ready()?;
        let body = Body::check(&bytes, &[APPLY_TEMPLATE, CONVERSATION], state)?;
        let named: Named = body.read()?;
        let model = state.model(named.model.as_deref())?;
        let rendered = body
            .read::<Conversation>()?
            .render(&model, state.limits())?;
        Ok(Applied {
            prompt: rendered.text(),
            warnings: body.warnings,
        })
    };
    state.work(job).await.map(Json)
}
