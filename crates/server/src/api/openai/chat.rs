//! `POST /v1/chat/completions`: a conversation is continued by the assistant.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use forthwith_core::request::MAX_LOGPROBS;
use forthwith_core::units::TokenId;
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::call::{Call, Closing, Frame, Naming, StreamUsage, Usage, json};
use super::conversation::Conversation;
use super::fields::{CHAT, CONVERSATION, GENERATION};
use super::logprobs::ChatLogprobs;
use super::options::{Options, Written};
use super::prompt_logprobs::ChatPrompt;
use super::report::{WrittenReport, ids};
use super::structure::WrittenForm;
use super::wire::Whole;
use crate::access::Asked;
use crate::answers::{Answers, Matched, Piece, Totals};
use crate::error::ApiError;
use crate::extract::Payload;
use crate::loader::ServedModel;
use crate::reader::Reader;
use crate::sse::{self, Wording};
use crate::state::AppState;

const NAMING: Naming = Naming {
    prefix: "chatcmpl",
    objects: ["chat.completion", "chat.completion.chunk"],
    prompt: "messages",
};

/// The endpoint's own fields.
#[derive(Debug, Deserialize)]
struct Own {
    logprobs: Option<bool>,
    top_logprobs: Option<Whole>,
}

#[derive(Debug, Serialize)]
struct ChatCompletion {
    #[serde(flatten)]
    frame: Frame,
    choices: Vec<Choice>,
    usage: Usage,
    #[serde(flatten)]
    prompt: ChatPrompt,
    #[serde(flatten)]
    closing: Closing,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    message: Said,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Matched>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
struct Said {
    role: &'static str,
    content: String,
    refusal: Option<()>,
}

/// One event of a stream.
#[derive(Debug, Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    frame: &'a Frame,
    choices: Vec<ChunkChoice>,
    /// Absent unless asked for; null before the last event.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<StreamUsage>,
    #[serde(flatten)]
    prompt: Option<ChatPrompt>,
    #[serde(flatten)]
    closing: Option<Closing>,
}

#[derive(Debug, Default, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: ChunkDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Matched>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Default, Serialize)]
struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// Answers a conversation, plain or streamed.
pub(crate) async fn create(
    Asked(state): Asked,
    reader: Reader,
    Payload(bytes): Payload,
) -> Result<Response, ApiError> {
    let arrived = state.clock().now();
    let call = state.work(move |state| prepare(state, &bytes)).await?;
    let logprobs = call.logprobs.is_some();
    let (frame, options, answers) = call.submit(&state, (arrived, reader))?;
    if options.stream {
        let wording = Stream {
            frame,
            logprobs,
            choices: answers.len(),
            prompts: answers.prompts().clone(),
            model: answers.model().clone(),
            options,
        };
        return Ok(sse::respond(answers, wording));
    }
    let whole = collect(frame, &options, logprobs, answers).await?;
    Ok(Json(whole).into_response())
}

pub(super) fn prepare(state: &AppState, bytes: &Bytes) -> Result<Call, ApiError> {
    state.ready()?;
    let body = Body::check(bytes, &[GENERATION, CHAT, CONVERSATION])?;
    let written: Written = body.read()?;
    let own: Own = body.read()?;
    let model = state.model(written.model.as_deref())?;
    let logprobs = own.alternatives()?;
    let mut options = written.understood(&model, state.stamps())?;
    let report = body.read::<WrittenReport>()?;
    options.report = report.understood(&model, logprobs.is_some())?;
    body.read::<WrittenForm>()?.hold(&mut options, &model)?;
    let prompt = body.read::<Conversation>()?.tokens(&model)?;
    let kept = vec![options.kept(prompt, &model)];
    Call::new(state, model, &NAMING, (options, logprobs), kept)
}

impl Own {
    /// How many alternatives to report with each token's log-probability.
    fn alternatives(&self) -> Result<Option<u32>, ApiError> {
        let top = self.top_logprobs.map(|top| top.0);
        match (self.logprobs.unwrap_or(false), top) {
            (_, Some(top)) if top > MAX_LOGPROBS.into() => {
                let message = format!("top_logprobs is {top}, allowed is 0 to {MAX_LOGPROBS}");
                Err(ApiError::field("top_logprobs", message))
            }
            (false, Some(1..)) => {
                let message = "top_logprobs needs `logprobs: true`";
                Err(ApiError::field("top_logprobs", message))
            }
            (false, _) => Ok(None),
            (true, top) => Ok(Some(u32::try_from(top.unwrap_or(0)).expect("at most 20"))),
        }
    }
}

async fn collect(
    frame: Frame,
    options: &Options,
    logprobs: bool,
    mut answers: Answers,
) -> Result<ChatCompletion, ApiError> {
    let mut choices: Vec<Choice> = (0..answers.len())
        .map(|index| Choice::new(index, logprobs, options))
        .collect();
    let mut prompt = ChatPrompt::new(options.report, answers.prompts());
    let mut closing = Closing::new(answers.model(), options.seed);
    while let Some(piece) = answers.next().await {
        let piece = piece?;
        if let Some(rows) = &piece.prompt {
            let told = (&*answers.model().tokenizer, &answers.prompts()[..]);
            prompt.logprobs_of(options.report, told, rows);
        }
        let choice = &mut choices[piece.choice];
        choice.list(&piece);
        choice.message.content.push_str(&piece.text);
        if let Some(logprobs) = &mut choice.logprobs {
            let names = options.report.names(&answers.model().tokenizer);
            logprobs.extend(names, &piece.tokens);
        }
        if let Some(ending) = piece.end {
            choice.finish_reason = ending.reason;
            choice.stop_reason = ending.matched;
            closing.warn(ending.warnings);
        }
    }
    Ok(ChatCompletion {
        frame,
        choices,
        usage: Usage::new(answers.totals(), answers.model(), options.seed),
        prompt,
        closing,
    })
}

impl Choice {
    fn new(index: usize, logprobs: bool, options: &Options) -> Self {
        Self {
            index,
            message: Said {
                role: "assistant",
                content: String::new(),
                refusal: None,
            },
            logprobs: logprobs.then(ChatLogprobs::default),
            finish_reason: "length",
            stop_reason: None,
            token_ids: options.report.token_ids.then(Vec::new),
        }
    }

    /// Lists the tokens of a part by their ids, where they are wanted.
    fn list(&mut self, piece: &Piece) {
        if let Some(list) = &mut self.token_ids {
            list.extend(ids(&piece.ids));
        }
    }
}

/// How this endpoint words its stream.
struct Stream {
    frame: Frame,
    options: Options,
    logprobs: bool,
    choices: usize,
    prompts: Arc<[Vec<TokenId>]>,
    model: Arc<ServedModel>,
}

impl Stream {
    fn chunk(&self, choice: ChunkChoice) -> String {
        self.chunk_with(choice, (None, None))
    }

    fn chunk_with(
        &self,
        choice: ChunkChoice,
        (prompt, closing): (Option<ChatPrompt>, Option<Closing>),
    ) -> String {
        json(&Chunk {
            frame: &self.frame,
            prompt,
            closing,
            choices: vec![choice],
            usage: self.options.include_usage.then_some(StreamUsage::Later(())),
        })
    }
}

impl Wording for Stream {
    fn opening(&mut self) -> Vec<String> {
        let roles = (0..self.choices).map(|index| {
            let delta = ChunkDelta {
                role: Some("assistant"),
                content: Some(String::new()),
            };
            let choice = ChunkChoice {
                index,
                delta,
                ..ChunkChoice::default()
            };
            // All choices have the same prompt.
            let prompt = ChatPrompt::new(self.options.report, &self.prompts);
            self.chunk_with(choice, (Some(prompt).filter(|_| index == 0), None))
        });
        roles.collect()
    }

    fn piece(&mut self, piece: Piece) -> Vec<String> {
        let index = piece.choice;
        let mut chunks = Vec::new();
        if let Some(rows) = piece.prompt.filter(|_| index == 0) {
            let mut prompt = ChatPrompt::default();
            let told = (&*self.model.tokenizer, &self.prompts[..]);
            prompt.logprobs_of(self.options.report, told, &rows);
            let choice = ChunkChoice::default();
            chunks.push(self.chunk_with(choice, (Some(prompt), None)));
        }
        let listed = self.options.report.token_ids && !piece.ids.is_empty();
        if !piece.text.is_empty() || !piece.tokens.is_empty() || listed {
            let mut logprobs = self.logprobs.then(ChatLogprobs::default);
            if let Some(logprobs) = &mut logprobs {
                let names = self.options.report.names(&self.model.tokenizer);
                logprobs.extend(names, &piece.tokens);
            }
            let delta = ChunkDelta {
                role: None,
                content: Some(piece.text),
            };
            chunks.push(self.chunk(ChunkChoice {
                index,
                delta,
                logprobs,
                token_ids: listed.then(|| ids(&piece.ids)),
                ..ChunkChoice::default()
            }));
        }
        if let Some(ending) = piece.end {
            let mut closing = Closing::new(&self.model, self.options.seed);
            closing.warn(ending.warnings);
            let choice = ChunkChoice {
                index,
                finish_reason: Some(ending.reason),
                stop_reason: ending.matched,
                ..ChunkChoice::default()
            };
            chunks.push(self.chunk_with(choice, (None, Some(closing))));
        }
        chunks
    }

    fn usage(&mut self, totals: Totals) -> Option<String> {
        self.options.include_usage.then(|| {
            json(&Chunk {
                frame: &self.frame,
                choices: Vec::new(),
                usage: Some(StreamUsage::Now(Usage::new(
                    totals,
                    &self.model,
                    self.options.seed,
                ))),
                prompt: None,
                closing: None,
            })
        })
    }
}
