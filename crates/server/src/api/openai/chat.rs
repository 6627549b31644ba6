//! `POST /v1/chat/completions`: a conversation is continued by the assistant.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use forthwith_core::units::TokenId;
use forthwith_text::{AnswerPart, ReasoningMarks, ToolFormat};
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::call::{Call, Closing, Frame, Naming, StreamUsage, Usage, json};
use super::conversation::Conversation;
use super::fields::{CHAT, CONVERSATION, GENERATION};
use super::filters::WrittenFilters;
use super::logprobs::ChatLogprobs;
use super::options::{Options, Written};
use super::prompt_logprobs::ChatPrompt;
use super::reading::{ChoiceReader, Reading};
use super::report::{WrittenReport, ids};
use super::structure::WrittenForm;
use super::tools::{CallDelta, CallTold, WrittenTools};
use super::wire::Whole;
use crate::access::Asked;
use crate::answers::{Answers, Matched, Piece, Totals};
use crate::error::ApiError;
use crate::extract::Payload;
use crate::limits::RequestLimits;
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
    reasoning_format: Option<String>,
    include_reasoning: Option<bool>,
    thinking_token_budget: Option<Whole>,
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
    content: Option<String>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallTold>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallDelta>,
}

/// Answers a conversation, plain or streamed.
pub(crate) async fn create(
    Asked(state): Asked,
    reader: Reader,
    Payload(bytes): Payload,
) -> Result<Response, ApiError> {
    let arrived = state.clock().now();
    let (call, reading) = state.work(move |state| prepare(state, &bytes)).await?;
    let logprobs = call.logprobs.is_some();
    let (frame, options, answers) = call.submit(&state, (arrived, reader))?;
    if options.stream {
        let wording = Stream {
            frame,
            logprobs,
            choices: (0..answers.len()).map(|_| reading.choice()).collect(),
            reasons: reading.reasoning.is_some(),
            prompts: answers.prompts().clone(),
            model: answers.model().clone(),
            options,
        };
        return Ok(sse::respond(answers, wording));
    }
    let whole = collect(frame, (&options, &reading), logprobs, answers).await?;
    Ok(Json(whole).into_response())
}

pub(super) fn prepare(state: &AppState, bytes: &Bytes) -> Result<(Call, Reading), ApiError> {
    state.ready()?;
    let body = Body::check(bytes, &[GENERATION, CHAT, CONVERSATION], state)?;
    let limits = state.limits();
    let written: Written = body.read()?;
    let own: Own = body.read()?;
    let model = state.model(written.model.as_deref())?;
    let logprobs = own.alternatives(limits)?;
    let mut options = written.understood(&model, state)?;
    let report = body.read::<WrittenReport>()?;
    options.report = report.understood(&model, logprobs.is_some(), limits)?;
    options.warnings.clone_from(&body.warnings);
    body.read::<WrittenForm>()?.hold(&mut options, &model)?;
    body.read::<WrittenFilters>()?.add(&mut options, &model)?;
    let tools = body.read::<WrittenTools>()?.understood(&model, limits)?;
    let mut conversation = body.read::<Conversation>()?;
    match &tools {
        Some(tools) => tools.hold(&mut options, &model)?,
        None => conversation = conversation.without_tools(),
    }
    let prompt = conversation.prompt(&model, limits)?;
    let reading = own.reading(tools.map(|tools| tools.format), prompt.reasoning)?;
    own.hold(&reading, &mut options, &model)?;
    options.spelled = reading.spelled(&model.tokenizer);
    let kept = vec![options.kept(prompt.tokens, &model)];
    let call = Call::new(state, model, &NAMING, (options, logprobs), kept)?;
    Ok((call, reading))
}

impl Own {
    fn reading(
        &self,
        tools: Option<ToolFormat>,
        reasoning: Option<(ReasoningMarks, bool)>,
    ) -> Result<Reading, ApiError> {
        const FORMAT: &str = "reasoning_format";
        let raw = match self.reasoning_format.as_deref() {
            None | Some("auto" | "deepseek") => false,
            Some("none") => true,
            Some(_) => {
                let message = "reasoning_format is auto, deepseek or none";
                return Err(ApiError::field(FORMAT, message));
            }
        };
        let hides = self.include_reasoning == Some(false);
        if raw && hides {
            let message = "include_reasoning: false and reasoning_format: none exclude each other";
            return Err(ApiError::field(FORMAT, message));
        }
        Ok(Reading {
            tools,
            reasoning,
            raw,
            hides,
        })
    }

    /// Lets the answer reason before it is held to anything, within the budget.
    fn hold(
        &self,
        reading: &Reading,
        options: &mut Options,
        model: &ServedModel,
    ) -> Result<(), ApiError> {
        const BUDGET: &str = "thinking_token_budget";
        let budget = self.thinking_token_budget.map(|budget| budget.0);
        let budget = budget.map(|budget| usize::try_from(budget).unwrap_or(usize::MAX));
        let Some((marks, begun)) = reading.reasoning else {
            if budget.is_some() {
                let message = "this model does not reason in a part of its own; leave it out";
                return Err(ApiError::unsupported(BUDGET, message));
            }
            return Ok(());
        };
        if budget.is_some() && !begun && model.tokenizer.special(marks.open).is_none() {
            let message =
                "the beginning of this model's reasoning is no token of its own; leave it out";
            return Err(ApiError::unsupported(BUDGET, message));
        }
        let then = options.constraint.take();
        options.constraint = model.forms.reasoning(marks, begun, budget, then);
        Ok(())
    }

    /// How many alternatives to report with each token's log-probability.
    fn alternatives(&self, limits: &RequestLimits) -> Result<Option<u32>, ApiError> {
        let top = self.top_logprobs.map_or(Ok(None), |top| {
            limits.alternatives("top_logprobs", top.0).map(Some)
        })?;
        match (self.logprobs.unwrap_or(false), top) {
            (false, Some(1..)) => {
                let message = "top_logprobs needs `logprobs: true`";
                Err(ApiError::field("top_logprobs", message))
            }
            (false, _) => Ok(None),
            (true, top) => Ok(Some(top.unwrap_or(0))),
        }
    }
}

async fn collect(
    frame: Frame,
    (options, reading): (&Options, &Reading),
    logprobs: bool,
    mut answers: Answers,
) -> Result<ChatCompletion, ApiError> {
    let mut choices: Vec<Choice> = (0..answers.len())
        .map(|index| Choice::new(index, logprobs, options))
        .collect();
    let mut readers: Vec<ChoiceReader> = choices.iter().map(|_| reading.choice()).collect();
    let mut prompt = ChatPrompt::new(options.report, answers.prompts());
    let mut closing = Closing::new(answers.model(), options);
    while let Some(piece) = answers.next().await {
        let mut piece = piece?;
        if let Some(rows) = &piece.prompt {
            let told = (&*answers.model().tokenizer, &answers.prompts()[..]);
            prompt.logprobs_of(options.report, told, rows);
        }
        let choice = &mut choices[piece.choice];
        choice.list(&piece);
        let reader = &mut readers[piece.choice];
        let (parts, tokens) = reader.read(&mut piece);
        for part in parts {
            choice.message.take(part, &frame.id, piece.choice);
        }
        if let Some(logprobs) = &mut choice.logprobs {
            let names = options.report.names(&answers.model().tokenizer);
            logprobs.extend(names, &tokens);
        }
        if let Some(ending) = piece.end {
            choice.finish_reason = reader.reason(&ending);
            choice.stop_reason = ending.matched;
            closing.warn(ending.warnings);
        }
    }
    let mut usage = Usage::new(answers.totals(), answers.model(), options.seed);
    if reading.reasoning.is_some() {
        usage = usage.with_reasoning(readers.iter().map(|reader| reader.reasoning_tokens).sum());
    }
    Ok(ChatCompletion {
        frame,
        choices,
        usage,
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
                content: Some(String::new()),
                refusal: None,
                reasoning_content: None,
                tool_calls: Vec::new(),
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

impl Said {
    fn take(&mut self, part: AnswerPart, answer: &str, choice: usize) {
        match part {
            AnswerPart::Content(text) => self.content.get_or_insert_default().push_str(&text),
            AnswerPart::Reasoning(text) => {
                let reasoning = self.reasoning_content.get_or_insert_default();
                reasoning.push_str(&text);
            }
            AnswerPart::Call { index, name } => {
                let call = CallTold::new(call_id(answer, choice, index), name);
                self.tool_calls.push(call);
                self.content = self.content.take().filter(|content| !content.is_empty());
            }
            AnswerPart::Arguments { text, .. } => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.push(&text);
                }
            }
        }
    }
}

impl ChunkDelta {
    fn of(part: AnswerPart, answer: &str, choice: usize) -> Self {
        let call = |call| Self {
            tool_calls: vec![call],
            ..Self::default()
        };
        match part {
            AnswerPart::Content(text) => Self {
                content: Some(text),
                ..Self::default()
            },
            AnswerPart::Reasoning(text) => Self {
                reasoning_content: Some(text),
                ..Self::default()
            },
            AnswerPart::Call { index, name } => call(CallDelta::begin(
                index,
                call_id(answer, choice, index),
                name,
            )),
            AnswerPart::Arguments { index, text } => call(CallDelta::more(index, text)),
        }
    }
}

/// A name for a call that no other one has.
fn call_id(answer: &str, choice: usize, index: usize) -> String {
    let answer = answer.rsplit('-').next().unwrap_or(answer);
    format!("call_{answer}_{choice}_{index}")
}

/// How this endpoint words its stream.
struct Stream {
    frame: Frame,
    options: Options,
    logprobs: bool,
    choices: Vec<ChoiceReader>,
    /// Whether answers may have reasoning.
    reasons: bool,
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
        let roles = (0..self.choices.len()).map(|index| {
            let delta = ChunkDelta {
                role: Some("assistant"),
                content: Some(String::new()),
                ..ChunkDelta::default()
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

    fn piece(&mut self, mut piece: Piece) -> Vec<String> {
        let index = piece.choice;
        let mut chunks = Vec::new();
        if let Some(rows) = piece.prompt.take().filter(|_| index == 0) {
            let mut prompt = ChatPrompt::default();
            let told = (&*self.model.tokenizer, &self.prompts[..]);
            prompt.logprobs_of(self.options.report, told, &rows);
            let choice = ChunkChoice::default();
            chunks.push(self.chunk_with(choice, (Some(prompt), None)));
        }
        let listed = self.options.report.token_ids && !piece.ids.is_empty();
        let mut token_ids = listed.then(|| ids(&piece.ids));
        let (mut parts, tokens) = self.choices[index].read(&mut piece);
        let mut logprobs = None;
        if self.logprobs && !tokens.is_empty() {
            let told: &mut ChatLogprobs = logprobs.insert(ChatLogprobs::default());
            told.extend(self.options.report.names(&self.model.tokenizer), &tokens);
        }
        if parts.is_empty() && (listed || logprobs.is_some()) {
            // Tokens without a text of their own.
            parts.push(AnswerPart::Content(String::new()));
        }
        for part in parts {
            let delta = ChunkDelta::of(part, &self.frame.id, index);
            chunks.push(self.chunk(ChunkChoice {
                index,
                delta,
                logprobs: logprobs.take(),
                token_ids: token_ids.take(),
                ..ChunkChoice::default()
            }));
        }
        if let Some(ending) = piece.end {
            let reason = self.choices[index].reason(&ending);
            let mut closing = Closing::new(&self.model, &self.options);
            closing.warn(ending.warnings);
            let choice = ChunkChoice {
                index,
                finish_reason: Some(reason),
                stop_reason: ending.matched,
                ..ChunkChoice::default()
            };
            chunks.push(self.chunk_with(choice, (None, Some(closing))));
        }
        chunks
    }

    fn usage(&mut self, totals: Totals) -> Option<String> {
        let mut usage = Usage::new(totals, &self.model, self.options.seed);
        if self.reasons {
            let reasoned = self.choices.iter().map(|choice| choice.reasoning_tokens);
            usage = usage.with_reasoning(reasoned.sum());
        }
        self.options.include_usage.then(|| {
            json(&Chunk {
                frame: &self.frame,
                choices: Vec::new(),
                usage: Some(StreamUsage::Now(usage)),
                prompt: None,
                closing: None,
            })
        })
    }
}
