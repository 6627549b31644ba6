//! `POST /v1/completions`: text is continued, without a template.
//!
//! Control-token text in a prompt stays text; who wants control tokens sends token ids.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use forthwith_core::units::TokenId;
use forthwith_engine::PromptLogprob;
use forthwith_text::{TextStream, Tokenizer};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::body::Body;
use super::call::{Call, Closing, Frame, Naming, StreamUsage, Usage, json};
use super::fields::{COMPLETIONS, GENERATION};
use super::filters::WrittenFilters;
use super::logprobs::{CompletionLogprobs, Offset};
use super::options::{Options, Written};
use super::prompt_logprobs::PromptLogprobs;
use super::report::{WrittenReport, ids};
use super::structure::WrittenForm;
use super::truncation::Kept;
use super::wire::Whole;
use crate::access::Asked;
use crate::answers::{Answers, Ending, Matched, Piece, Spelling, Totals};
use crate::error::ApiError;
use crate::extract::Payload;
use crate::limits::RequestLimits;
use crate::loader::ServedModel;
use crate::reader::Reader;
use crate::sse::{self, Wording};
use crate::state::AppState;

const NAMING: Naming = Naming {
    prefix: "cmpl",
    objects: ["text_completion", "text_completion"],
    prompt: "prompt",
};

/// The endpoint's own fields.
#[derive(Debug, Deserialize)]
struct Own {
    prompt: Prompts,
    logprobs: Option<Whole>,
    echo: Option<bool>,
}

/// One or several prompts, each text or token ids.
#[derive(Debug)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

#[derive(Debug)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// A member of the list that `prompt` may be.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a string, a token id or a list of token ids")]
enum Member {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsReader)
    }
}

struct PromptsReader;

impl<'de> Visitor<'de> for PromptsReader {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list of strings, token ids or a list of token id lists")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Prompts, A::Error> {
        let members = Vec::<Member>::deserialize(SeqAccessDeserializer::new(list))?;
        Prompts::sorted(members).map_err(A::Error::custom)
    }
}

impl Prompts {
    fn sorted(members: Vec<Member>) -> Result<Self, &'static str> {
        let mut prompts = Vec::new();
        let mut bare = Vec::new();
        for member in members {
            match member {
                Member::Text(text) => prompts.push(Prompt::Text(text)),
                Member::Tokens(ids) => prompts.push(Prompt::Tokens(token_ids(ids))),
                Member::Token(id) => bare.push(id),
            }
        }
        match (prompts.is_empty(), bare.is_empty()) {
            (true, true) => Err("the list of prompts is empty"),
            (true, false) => Ok(Self(vec![Prompt::Tokens(token_ids(bare))])),
            (false, true) => Ok(Self(prompts)),
            (false, false) => Err("a list holds prompts or the token ids of one, not both"),
        }
    }
}

fn token_ids(ids: Vec<u32>) -> Vec<TokenId> {
    ids.into_iter().map(TokenId::new).collect()
}

impl Prompt {
    fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<TokenId>, ApiError> {
        match self {
            Self::Text(text) => Ok(tokenizer.encode_prompt(text)?),
            Self::Tokens(ids) => Ok(ids.clone()),
        }
    }

    /// The prompt as it stands before an answer that repeats it.
    fn echoed(
        self,
        kept: &Kept,
        (tokenizer, spelling): (&Arc<Tokenizer>, Option<Spelling>),
    ) -> String {
        match self {
            Self::Text(text) if kept.warning.is_none() => text,
            Self::Text(_) | Self::Tokens(_) => {
                let mut stream = TextStream::new(Arc::clone(tokenizer), Vec::new());
                let deltas = kept.tokens.iter().map(|&id| match spelling {
                    Some(Spelling { spaced }) => stream.spell(id, spaced),
                    None => stream.push(id),
                });
                let mut text: String = deltas.map(|delta| delta.text).collect();
                text.push_str(&stream.finish().text);
                text
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct Completion<'a> {
    #[serde(flatten)]
    frame: &'a Frame,
    choices: Vec<Choice>,
    /// In a stream absent unless asked for, and null before the last event.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<StreamUsage>,
    #[serde(flatten)]
    closing: Option<Closing>,
}

#[derive(Debug, Default, Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Matched>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    /// The same as vLLM and as llama.cpp call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<u32>>,
}

/// Continues the prompts, plain or streamed.
pub(crate) async fn create(
    Asked(state): Asked,
    reader: Reader,
    Payload(bytes): Payload,
) -> Result<Response, ApiError> {
    let arrived = state.clock().now();
    let (call, echoes) = state.work(move |state| prepare(state, &bytes)).await?;
    let logprobs = call.logprobs.is_some();
    let (frame, options, answers) = call.submit(&state, (arrived, reader))?;
    let stream = options.stream;
    let story = Story::new(frame, options, logprobs, &answers, &echoes);
    if stream {
        return Ok(sse::respond(answers, story));
    }
    story.collect(answers).await
}

/// The call, and the text to repeat before each prompt's answers.
pub(super) fn prepare(state: &AppState, bytes: &Bytes) -> Result<(Call, Vec<String>), ApiError> {
    state.ready()?;
    let body = Body::check(bytes, &[GENERATION, COMPLETIONS], state)?;
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
    let Prompts(prompts) = own.prompt;
    if prompts.len() > limits.prompts {
        let message = format!("{} prompts, allowed are {}", prompts.len(), limits.prompts);
        return Err(ApiError::field("prompt", message));
    }
    let tokens = prompts.iter().map(|prompt| prompt.tokens(&model.tokenizer));
    let tokens: Vec<Vec<TokenId>> = tokens.collect::<Result<_, _>>()?;
    let kept = |tokens| options.kept(tokens, &model);
    let kept: Vec<Kept> = tokens.into_iter().map(kept).collect();
    let mut echoes = Vec::new();
    if own.echo == Some(true) {
        options.report.echo_logprobs = logprobs;
        let how = (&model.tokenizer, options.report.spelling);
        let pairs = prompts.into_iter().zip(&kept);
        echoes.extend(pairs.map(|(prompt, kept)| prompt.echoed(kept, how)));
    }
    let call = Call::new(state, model, &NAMING, (options, logprobs), kept)?;
    Ok((call, echoes))
}

impl Own {
    fn alternatives(&self, limits: &RequestLimits) -> Result<Option<u32>, ApiError> {
        let wanted = self.logprobs.map(|wanted| wanted.0);
        wanted
            .map(|wanted| limits.alternatives("logprobs", wanted))
            .transpose()
    }
}

/// How this endpoint words its answers.
struct Story {
    frame: Frame,
    options: Options,
    logprobs: bool,
    model: Arc<ServedModel>,
    prompts: Arc<[Vec<TokenId>]>,
    /// Which prompt each choice continues.
    prompt_of: Vec<usize>,
    /// Per choice the text before the answer, and where the next token stands.
    echoes: Vec<String>,
    offsets: Vec<Offset>,
}

impl Story {
    fn new(
        frame: Frame,
        options: Options,
        logprobs: bool,
        answers: &Answers,
        echoes: &[String],
    ) -> Self {
        let echo = |choice| echoes.get(answers.prompt_of(choice)).cloned();
        let echoes: Vec<String> = (0..answers.len())
            .map(|choice| echo(choice).unwrap_or_default())
            .collect();
        Self {
            frame,
            options,
            logprobs,
            model: Arc::clone(answers.model()),
            prompts: Arc::clone(answers.prompts()),
            prompt_of: (0..answers.len())
                .map(|choice| answers.prompt_of(choice))
                .collect(),
            offsets: echoes.iter().map(|echo| Offset::after(echo)).collect(),
            echoes,
        }
    }

    async fn collect(mut self, mut answers: Answers) -> Result<Response, ApiError> {
        let begin = |index| self.before_answer(index, None);
        let mut choices: Vec<Choice> = (0..answers.len()).map(begin).collect();
        let mut closing = Closing::new(&self.model, &self.options);
        while let Some(piece) = answers.next().await {
            let piece = piece?;
            let choice = &mut choices[piece.choice];
            if let Some(rows) = &piece.prompt {
                *choice = self.before_answer(piece.choice, Some(rows));
                continue;
            }
            choice.text.push_str(&piece.text);
            Self::list(choice, &piece);
            if let Some(logprobs) = &mut choice.logprobs {
                let names = self.options.report.names(&self.model.tokenizer);
                let offset = &mut self.offsets[piece.choice];
                logprobs.extend(names, &piece.tokens, offset);
            }
            if let Some(ending) = piece.end {
                choice.finish_reason = Some(ending.reason);
                choice.stop_reason = ending.matched;
                closing.warn(ending.warnings);
            }
        }
        let whole = Completion {
            frame: &self.frame,
            choices,
            usage: Some(self.account(answers.totals())),
            closing: Some(closing),
        };
        Ok(Json(whole).into_response())
    }

    /// A choice that says nothing yet.
    fn silent(&self, index: usize) -> Choice {
        let report = &self.options.report;
        Choice {
            index,
            logprobs: self.logprobs.then(CompletionLogprobs::default),
            token_ids: report.token_ids.then(Vec::new),
            tokens: report.tokens.then(Vec::new),
            ..Choice::default()
        }
    }

    /// What a choice says of its prompt, with what the engine tells of it.
    fn before_answer(&self, index: usize, rows: Option<&Arc<Vec<PromptLogprob>>>) -> Choice {
        let (report, tokenizer) = (&self.options.report, &self.model.tokenizer);
        let mut choice = self.silent(index);
        choice.text.clone_from(&self.echoes[index]);
        let Some(tokens) = self.prompts.get(self.prompt_of[index]) else {
            return choice;
        };
        choice.prompt_token_ids = report.token_ids.then(|| ids(tokens));
        let Some(rows) = rows else {
            return choice;
        };
        if let Some(count) = report.echo_logprobs {
            let (names, prompt) = (report.names(tokenizer), (&tokens[..], &*choice.text));
            choice.logprobs = Some(CompletionLogprobs::of_prompt(names, prompt, (rows, count)));
        }
        choice.prompt_logprobs = report
            .prompt_logprobs
            .map(|count| PromptLogprobs::new(tokenizer, tokens, (rows, count)));
        choice
    }

    /// Lists the tokens of a part by their ids, where they are wanted.
    fn list(choice: &mut Choice, piece: &Piece) {
        let lists = [&mut choice.token_ids, &mut choice.tokens];
        for list in lists.into_iter().flatten() {
            list.extend(ids(&piece.ids));
        }
    }

    /// What the next part of a choice says.
    fn said(&mut self, piece: Piece) -> Choice {
        let mut choice = self.silent(piece.choice);
        Self::list(&mut choice, &piece);
        choice.text = piece.text;
        if let Some(logprobs) = &mut choice.logprobs {
            let names = self.options.report.names(&self.model.tokenizer);
            logprobs.extend(names, &piece.tokens, &mut self.offsets[piece.choice]);
        }
        choice
    }

    fn account(&self, totals: Totals) -> StreamUsage {
        StreamUsage::Now(Usage::new(totals, &self.model, self.options.seed))
    }

    fn chunk(&self, choice: Choice) -> String {
        self.chunk_with(choice, None)
    }

    fn chunk_with(&self, choice: Choice, closing: Option<Closing>) -> String {
        json(&Completion {
            frame: &self.frame,
            closing,
            choices: vec![choice],
            usage: self.options.include_usage.then_some(StreamUsage::Later(())),
        })
    }
}

impl Wording for Story {
    fn opening(&mut self) -> Vec<String> {
        if self.options.report.awaits_prompt() {
            return Vec::new();
        }
        let begun = (0..self.echoes.len()).map(|index| self.before_answer(index, None));
        let told = begun.filter(|choice| !choice.text.is_empty() || choice.token_ids.is_some());
        told.map(|choice| self.chunk(choice)).collect()
    }

    fn piece(&mut self, mut piece: Piece) -> Vec<String> {
        let index = piece.choice;
        let mut chunks = Vec::new();
        if let Some(rows) = piece.prompt.filter(|_| self.options.report.awaits_prompt()) {
            chunks.push(self.chunk(self.before_answer(index, Some(&rows))));
        }
        piece.prompt = None;
        let end = piece.end.take();
        let report = &self.options.report;
        let lists = (report.token_ids || report.tokens) && !piece.ids.is_empty();
        if !piece.text.is_empty() || !piece.tokens.is_empty() || lists {
            let choice = self.said(piece);
            chunks.push(self.chunk(choice));
        }
        if let Some(Ending {
            reason,
            matched,
            warnings,
        }) = end
        {
            let mut closing = Closing::new(&self.model, &self.options);
            closing.warn(warnings);
            let choice = Choice {
                index,
                finish_reason: Some(reason),
                stop_reason: matched,
                ..Choice::default()
            };
            chunks.push(self.chunk_with(choice, Some(closing)));
        }
        chunks
    }

    fn usage(&mut self, totals: Totals) -> Option<String> {
        self.options.include_usage.then(|| {
            json(&Completion {
                frame: &self.frame,
                choices: Vec::new(),
                usage: Some(self.account(totals)),
                closing: None,
            })
        })
    }
}
