//! `POST /v1/completions`: text is continued, without a template.
//!
//! Control-token text in a prompt stays text; who wants control tokens sends token ids.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use forthwith_core::request::MAX_LOGPROBS;
use forthwith_core::units::TokenId;
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
    prefix: "cmpl",
    objects: ["text_completion", "text_completion"],
    prompt: "prompt",
};

/// The most prompts of one call.
const MAX_PROMPTS: usize = 64;

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
    fn echoed(self, tokenizer: &Arc<Tokenizer>) -> String {
        match self {
            Self::Text(text) => text,
            Self::Tokens(ids) => {
                let mut stream = TextStream::new(Arc::clone(tokenizer), Vec::new());
                let mut text: String = ids.into_iter().map(|id| stream.push(id).text).collect();
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
    let body = Body::check(bytes, &[GENERATION, COMPLETIONS])?;
    let written: Written = body.read()?;
    let own: Own = body.read()?;
    let model = state.model(written.model.as_deref())?;
    let logprobs = own.alternatives()?;
    let mut options = written.understood(&model, state.stamps())?;
    body.read::<WrittenForm>()?.hold(&mut options, &model)?;
    body.read::<WrittenFilters>()?.add(&mut options, &model)?;
    let Prompts(prompts) = own.prompt;
    if prompts.len() > MAX_PROMPTS {
        let message = format!("{} prompts, allowed are {MAX_PROMPTS}", prompts.len());
        return Err(ApiError::field("prompt", message));
    }
    let tokens = prompts.iter().map(|prompt| prompt.tokens(&model.tokenizer));
    let tokens: Vec<Vec<TokenId>> = tokens.collect::<Result<_, _>>()?;
    let echoes = match own.echo {
        Some(true) => prompts
            .into_iter()
            .map(|prompt| prompt.echoed(&model.tokenizer))
            .collect(),
        _ => Vec::new(),
    };
    let call = Call::new(state, model, &NAMING, (options, logprobs), &tokens)?;
    Ok((call, echoes))
}

impl Own {
    fn alternatives(&self) -> Result<Option<u32>, ApiError> {
        let Some(Whole(count)) = self.logprobs else {
            return Ok(None);
        };
        if self.echo == Some(true) {
            let message = "`logprobs` with `echo` is not supported yet; send one of them";
            return Err(ApiError::unsupported("logprobs", message));
        }
        if count > MAX_LOGPROBS.into() {
            let message = format!("logprobs is {count}, allowed is 0 to {MAX_LOGPROBS}");
            return Err(ApiError::field("logprobs", message));
        }
        Ok(Some(u32::try_from(count).expect("at most 20")))
    }
}

/// How this endpoint words its answers.
struct Story {
    frame: Frame,
    options: Options,
    logprobs: bool,
    model: Arc<ServedModel>,
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
            offsets: echoes.iter().map(|echo| Offset::after(echo)).collect(),
            echoes,
        }
    }

    async fn collect(mut self, mut answers: Answers) -> Result<Response, ApiError> {
        let echoes = std::mem::take(&mut self.echoes).into_iter().enumerate();
        let mut choices: Vec<Choice> = echoes
            .map(|(index, text)| Choice {
                index,
                text,
                logprobs: self.empty_logprobs(),
                ..Choice::default()
            })
            .collect();
        let mut closing = Closing::new(&self.model, self.options.seed);
        while let Some(piece) = answers.next().await {
            let piece = piece?;
            let choice = &mut choices[piece.choice];
            choice.text.push_str(&piece.text);
            if let Some(logprobs) = &mut choice.logprobs {
                let offset = &mut self.offsets[piece.choice];
                logprobs.extend(&self.model.tokenizer, &piece.tokens, offset);
            }
            if let Some(ending) = piece.end {
                choice.finish_reason = Some(ending.reason);
                choice.stop_reason = ending.matched;
                closing.warn(ending.warning);
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

    fn empty_logprobs(&self) -> Option<CompletionLogprobs> {
        self.logprobs.then(CompletionLogprobs::default)
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
        let echoes = std::mem::take(&mut self.echoes).into_iter().enumerate();
        let told = echoes.filter(|(_, text)| !text.is_empty());
        told.map(|(index, text)| {
            self.chunk(Choice {
                index,
                text,
                ..Choice::default()
            })
        })
        .collect()
    }

    fn piece(&mut self, piece: Piece) -> Vec<String> {
        let index = piece.choice;
        let mut chunks = Vec::new();
        if !piece.text.is_empty() || !piece.tokens.is_empty() {
            let mut logprobs = self.empty_logprobs();
            if let Some(logprobs) = &mut logprobs {
                logprobs.extend(
                    &self.model.tokenizer,
                    &piece.tokens,
                    &mut self.offsets[index],
                );
            }
            chunks.push(self.chunk(Choice {
                index,
                text: piece.text,
                logprobs,
                ..Choice::default()
            }));
        }
        if let Some(ending) = piece.end {
            let mut closing = Closing::new(&self.model, self.options.seed);
            closing.warn(ending.warning);
            let choice = Choice {
                index,
                finish_reason: Some(ending.reason),
                stop_reason: ending.matched,
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
