//! The fields that chat and completions share, and what they mean for the engine.

use forthwith_core::constraint::Constraint;
use forthwith_core::request::{LogitEdits, MAX_EDITS, SamplingParams, Scheduling, StopRules};
use forthwith_core::units::TokenId;
use forthwith_text::ControlText;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::report::Report;
use super::truncation::Kept;
use super::wire::{Integer, Number, Strings, Whole};
use crate::error::ApiError;
use crate::limits::RequestLimits;
use crate::loader::{Purpose, ServedModel};
use crate::state::AppState;

/// The most stop token ids.
const MAX_STOP_TOKENS: usize = 128;

/// What a client wrote.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Written {
    pub(crate) model: Option<String>,
    max_tokens: Option<Whole>,
    max_completion_tokens: Option<Whole>,
    temperature: Option<Number>,
    top_p: Option<Number>,
    top_k: Option<Integer>,
    min_p: Option<Number>,
    repetition_penalty: Option<Number>,
    frequency_penalty: Option<Number>,
    presence_penalty: Option<Number>,
    seed: Option<Integer>,
    stop: Option<Strings>,
    stop_token_ids: Option<Vec<u32>>,
    include_stop_str_in_output: Option<bool>,
    ignore_eos: Option<bool>,
    logit_bias: Option<BTreeMap<String, Number>>,
    allowed_token_ids: Option<Vec<u32>>,
    min_tokens: Option<Whole>,
    bad_words: Option<Vec<String>>,
    no_repeat_ngram_size: Option<Whole>,
    n_predict: Option<Integer>,
    n: Option<Whole>,
    echo: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    pub(crate) cache_salt: Option<String>,
    priority: Option<Integer>,
    max_queue_time: Option<Number>,
    max_ttft_ms: Option<Whole>,
    max_time_ms: Option<Whole>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// What it means.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Choices of each prompt, at least one.
    pub(crate) choices: u32,
    /// The most tokens of each choice.
    pub(crate) max_tokens: Option<u64>,
    /// What the client called that limit.
    pub(crate) length_field: &'static str,
    /// The choice number is still 0.
    pub(crate) sampling: SamplingParams,
    /// The seed as the client wrote it, or the one that was drawn.
    pub(crate) seed: i128,
    /// The seed that the client wrote, if it did.
    pub(crate) sent_seed: Option<i128>,
    /// What is changed about the logits.
    pub(crate) edits: Arc<LogitEdits>,
    /// What holds each choice to its form.
    pub(crate) constraint: Option<Arc<dyn Constraint>>,
    /// Token ids that end a choice.
    pub(crate) stop: StopRules,
    /// Strings that end a choice.
    pub(crate) stops: Vec<String>,
    /// Whether the text ends after what stops it.
    pub(crate) shows_stop: bool,
    /// Hidden tokens that mark parts of answers.
    pub(crate) spelled: Vec<TokenId>,
    /// Only calls with the same salt share cached prompts.
    pub(crate) cache_salt: Option<Vec<u8>>,
    /// Where the call stands among others.
    pub(crate) scheduling: Scheduling,
    /// What is told besides the text.
    pub(crate) report: Report,
    /// Which fields have no effect.
    pub(crate) warnings: Vec<String>,
    /// Whether the answer is streamed.
    pub(crate) stream: bool,
    /// Whether a streamed answer ends with its usage.
    pub(crate) include_usage: bool,
}

impl Options {
    /// A prompt as far as the call wants it.
    pub(crate) fn kept(&self, tokens: Vec<TokenId>, model: &ServedModel) -> Kept {
        let room = (model.limits.context.get(), self.max_tokens);
        Kept::of(tokens, self.report.truncation, room)
    }
}

impl Written {
    /// Fills in the model's defaults and checks what the engine's own check does not.
    pub(crate) fn understood(
        self,
        model: &ServedModel,
        state: &AppState,
    ) -> Result<Options, ApiError> {
        let limits = state.limits();
        if model.purpose != Purpose::Generate {
            return Err(model.wrong_purpose());
        }
        let stream = self.stream.unwrap_or(false);
        let include_usage = self.include_usage(stream)?;
        let sent_seed = self.seed.map(|seed| seed.0);
        let seed = sent_seed.unwrap_or_else(|| state.stamps().seed().into());
        Ok(Options {
            choices: self.choices(limits.choices)?,
            max_tokens: self.length()?,
            length_field: self.length_field(),
            sampling: self.sampling(&model.defaults, seed)?,
            edits: Arc::new(self.edits(model, limits)?),
            constraint: None,
            seed,
            sent_seed,
            stop: self.stop_rules(model)?,
            stops: self.stop_strings(limits)?,
            shows_stop: self.include_stop_str_in_output.unwrap_or(false),
            spelled: Vec::new(),
            scheduling: self.scheduling()?,
            cache_salt: self.cache_salt.map(String::into_bytes),
            report: Report::default(),
            warnings: Vec::new(),
            stream,
            include_usage,
        })
    }

    fn choices(&self, most: u32) -> Result<u32, ApiError> {
        let Some(Whole(wanted)) = self.n else {
            return Ok(1);
        };
        let count = u32::try_from(wanted).ok();
        let count = count.filter(|count| (1..=most).contains(count));
        count.ok_or_else(|| {
            let message = format!("n is {wanted}, allowed is 1 to {most}");
            ApiError::field("n", message)
        })
    }

    fn length(&self) -> Result<Option<u64>, ApiError> {
        let (old, new) = (
            self.max_tokens.or(self.predict()?),
            self.max_completion_tokens,
        );
        if old.is_some() && new.is_some() && old != new {
            return Err(ApiError::field(
                "max_tokens",
                "max_tokens and max_completion_tokens differ; send one of them",
            ));
        }
        let field = self.length_field();
        match new.or(old) {
            Some(Whole(0)) if self.echo != Some(true) => Err(ApiError::field(
                field,
                format!("{field} is 0, allowed is 1 or more"),
            )),
            wanted => Ok(wanted.map(|wanted| wanted.0)),
        }
    }

    fn length_field(&self) -> &'static str {
        match (self.max_completion_tokens, self.max_tokens, self.n_predict) {
            (Some(_), ..) => "max_completion_tokens",
            (None, None, Some(_)) => "n_predict",
            _ => "max_tokens",
        }
    }

    /// llama.cpp's name for `max_tokens`; -1 is no limit but the context's.
    fn predict(&self) -> Result<Option<Whole>, ApiError> {
        const NAME: &str = "n_predict";
        let Some(Integer(count)) = self.n_predict else {
            return Ok(None);
        };
        let wanted = if count == -1 {
            None
        } else {
            let Ok(count) = u64::try_from(count) else {
                let message = format!("n_predict is {count}, allowed is -1 or 1 or more");
                return Err(ApiError::field(NAME, message));
            };
            Some(Whole(count))
        };
        let others = self.max_tokens.or(self.max_completion_tokens);
        if others.is_some() && others != wanted {
            let message = "n_predict and max_tokens differ; send one of them";
            return Err(ApiError::field(NAME, message));
        }
        Ok(wanted)
    }

    fn include_usage(&self, stream: bool) -> Result<bool, ApiError> {
        let Some(options) = &self.stream_options else {
            return Ok(false);
        };
        if !stream {
            return Err(ApiError::field(
                "stream_options",
                "stream_options is for streams; send `stream: true` or leave it out",
            ));
        }
        Ok(options.include_usage.unwrap_or(false))
    }

    pub(crate) fn scheduling(&self) -> Result<Scheduling, ApiError> {
        let priority = self.priority.map_or(0, |priority| priority.0);
        let priority = i32::try_from(priority).map_err(|_| {
            let message = format!(
                "priority is {priority}, allowed is {} to {}",
                i32::MIN,
                i32::MAX
            );
            ApiError::field("priority", message)
        })?;
        let max_queue_time = self.max_queue_time.map(|seconds| {
            Duration::try_from_secs_f32(seconds.0).map_err(|_| {
                let message = format!(
                    "max_queue_time is {}, allowed is a number of seconds from 0",
                    seconds.0
                );
                ApiError::field("max_queue_time", message)
            })
        });
        Ok(Scheduling {
            priority,
            max_queue_time: max_queue_time.transpose()?,
            max_time: self.max_time_ms.map(|limit| Duration::from_millis(limit.0)),
            max_time_to_first_token: self.max_ttft_ms.map(|limit| Duration::from_millis(limit.0)),
            ..Scheduling::default()
        })
    }

    fn sampling(&self, defaults: &SamplingParams, seed: i128) -> Result<SamplingParams, ApiError> {
        let or = |field: Option<Number>, default: f32| field.map_or(default, |number| number.0);
        Ok(SamplingParams {
            temperature: or(self.temperature, defaults.temperature),
            top_k: self.top_k(defaults.top_k)?,
            top_p: or(self.top_p, defaults.top_p),
            min_p: or(self.min_p, defaults.min_p),
            repetition_penalty: or(self.repetition_penalty, defaults.repetition_penalty),
            frequency_penalty: or(self.frequency_penalty, defaults.frequency_penalty),
            presence_penalty: or(self.presence_penalty, defaults.presence_penalty),
            filters: defaults.filters.clone(),
            seed: seed_bits(seed),
            choice: 0,
        })
    }

    fn top_k(&self, default: u32) -> Result<u32, ApiError> {
        match self.top_k {
            None => Ok(default),
            Some(Integer(-1 | 0)) => Ok(0),
            // No vocabulary is that large, so the largest value keeps all tokens as well.
            Some(Integer(count)) if count > 0 => Ok(u32::try_from(count).unwrap_or(u32::MAX)),
            Some(Integer(count)) => {
                let message = format!("top_k is {count}, allowed is -1 or 0 for all, or 1 or more");
                Err(ApiError::field("top_k", message))
            }
        }
    }

    fn edits(&self, model: &ServedModel, limits: &RequestLimits) -> Result<LogitEdits, ApiError> {
        let (count, most) = (
            self.logit_bias.as_ref().map_or(0, BTreeMap::len),
            limits.logit_bias,
        );
        if count > most {
            let message = format!("logit_bias has {count} entries, allowed are {most}");
            return Err(ApiError::field("logit_bias", message));
        }
        let mut bias = Vec::new();
        for (name, value) in self.logit_bias.iter().flatten() {
            let id = name.parse::<u32>().map_err(|_| {
                let message = "the names of logit_bias are token ids, as text";
                ApiError::field("logit_bias", message)
            })?;
            bias.push((TokenId::new(id), value.0));
        }
        bias.sort_unstable_by_key(|&(id, _)| id);
        if bias.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            let message = "logit_bias names a token twice; name it once";
            return Err(ApiError::field("logit_bias", message));
        }
        let allowed = self.allowed_token_ids.as_ref();
        Ok(LogitEdits {
            bias,
            allowed: allowed.map(|ids| ids.iter().copied().map(TokenId::new).collect()),
            min_tokens: self.min_tokens.map_or(0, |least| least.0),
            forbidden: self.forbidden(model, limits.stop_bytes)?,
            // No context is that long, so the largest size forbids nothing as well.
            no_repeat_ngram_size: self
                .no_repeat_ngram_size
                .map_or(0, |size| u32::try_from(size.0).unwrap_or(u32::MAX)),
        })
    }

    /// The tokens of words that may not come, at the beginning of a text and after a space.
    fn forbidden(
        &self,
        model: &ServedModel,
        longest: usize,
    ) -> Result<Vec<Vec<TokenId>>, ApiError> {
        const NAME: &str = "bad_words";
        let words = self.bad_words.as_deref().unwrap_or_default();
        if words.len() > MAX_EDITS {
            let message = format!("{} words, allowed are {MAX_EDITS}", words.len());
            return Err(ApiError::field(NAME, message));
        }
        let mut runs = Vec::new();
        for word in words {
            let bare = word.trim_start();
            if bare.is_empty() || bare.len() > longest {
                let message = format!(
                    "a word has {} bytes, allowed are 1 to {longest}, spaces before it aside",
                    bare.len()
                );
                return Err(ApiError::field(NAME, message));
            }
            for text in [bare.to_owned(), format!(" {bare}")] {
                let run = model.tokenizer.encode(&text, ControlText::AsText);
                let run = run.map_err(|error| ApiError::from(error).renamed("prompt", NAME))?;
                if !run.is_empty() && !runs.contains(&run) {
                    runs.push(run);
                }
            }
        }
        Ok(runs)
    }

    fn stop_rules(&self, model: &ServedModel) -> Result<StopRules, ApiError> {
        let ids = self.stop_token_ids.as_deref().unwrap_or_default();
        if ids.len() > MAX_STOP_TOKENS {
            let message = format!(
                "stop_token_ids has {} ids, allowed are {MAX_STOP_TOKENS}",
                ids.len()
            );
            return Err(ApiError::field("stop_token_ids", message));
        }
        Ok(StopRules {
            end_tokens: model.tokenizer.end_tokens().to_vec(),
            stop_token_ids: ids.iter().copied().map(TokenId::new).collect(),
            ignore_end: self.ignore_eos.unwrap_or(false),
        })
    }

    fn stop_strings(&self, limits: &RequestLimits) -> Result<Vec<String>, ApiError> {
        let (most, longest) = (limits.stops, limits.stop_bytes);
        let stops = self.stop.as_ref().map_or(&[][..], |stop| &stop.0);
        let problem = if stops.len() > most {
            format!("stop has {} strings, allowed are {most}", stops.len())
        } else if stops.iter().any(String::is_empty) {
            "stop has an empty string; every answer would end before it begins".to_owned()
        } else if let Some(long) = stops.iter().find(|stop| stop.len() > longest) {
            format!(
                "a stop string has {} bytes, allowed are {longest}",
                long.len()
            )
        } else {
            return Ok(stops.to_vec());
        };
        Err(ApiError::field("stop", problem))
    }
}

/// Both integer types of the wire in the engine's one: negative seeds wrap around.
fn seed_bits(seed: i128) -> u64 {
    u64::try_from(seed)
        .or_else(|_| i64::try_from(seed).map(i64::cast_unsigned))
        .expect("the wire holds -2^63 to 2^64 - 1")
}
