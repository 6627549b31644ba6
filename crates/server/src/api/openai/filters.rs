//! The filters, penalties and temperatures that llama.cpp's server adds to the protocol, under its names.
//!
//! Ranges and contradictions are checked with the request. Here is decided what a field means where
//! the model suggests something else: what a client asks for replaces what it excludes.

use forthwith_core::request::{Breakers, Filters, SamplingParams, Stage};
use forthwith_core::units::TokenId;
use forthwith_text::{ControlText, Tokenizer};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

use super::options::Options;
use super::wire::{Integer, Number, Whole};
use crate::error::ApiError;
use crate::loader::ServedModel;

/// What ends a repetition where a client says nothing.
const USUAL_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
const BREAKERS: &str = "dry_sequence_breakers";
/// The most breakers, and the longest one in bytes.
const MAX_BREAKERS: usize = 16;
const MAX_BREAKER_BYTES: usize = 40;
/// So many tokens of a breaker are compared, after the first one.
const MAX_TAIL: usize = 20;

/// What a client wrote.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct WrittenFilters {
    repeat_penalty: Option<Number>,
    repeat_last_n: Option<Integer>,
    typical_p: Option<Number>,
    top_n_sigma: Option<Number>,
    xtc_probability: Option<Number>,
    xtc_threshold: Option<Number>,
    dry_multiplier: Option<Number>,
    dry_base: Option<Number>,
    dry_allowed_length: Option<Whole>,
    dry_penalty_last_n: Option<Integer>,
    dry_sequence_breakers: Option<Vec<String>>,
    dynatemp_range: Option<Number>,
    dynatemp_exponent: Option<Number>,
    mirostat: Option<Whole>,
    mirostat_tau: Option<Number>,
    mirostat_eta: Option<Number>,
    samplers: Option<Value>,
    // Which of the usual fields were sent: those are not the model's suggestions.
    temperature: Option<IgnoredAny>,
    top_k: Option<IgnoredAny>,
    top_p: Option<IgnoredAny>,
    min_p: Option<IgnoredAny>,
    repetition_penalty: Option<IgnoredAny>,
}

impl WrittenFilters {
    /// Adds what was asked for, and takes back suggestions of the model that it excludes.
    pub(crate) fn add(self, options: &mut Options, model: &ServedModel) -> Result<(), ApiError> {
        let params = &mut options.sampling;
        params.filters = self.filters(&params.filters, &model.tokenizer)?;
        self.take_back(params);
        self.merge_repetition(params);
        Ok(())
    }

    fn filters(&self, defaults: &Filters, tokenizer: &Tokenizer) -> Result<Filters, ApiError> {
        let or = |field: Option<Number>, default: f32| field.map_or(default, |number| number.0);
        let whole = |field: Option<Whole>, default: u32| {
            field.map_or(default, |n| u32::try_from(n.0).unwrap_or(u32::MAX))
        };
        let mut all = defaults.clone();
        all.repeat.penalty = or(self.repeat_penalty, all.repeat.penalty);
        all.repeat.last = window("repeat_last_n", self.repeat_last_n, all.repeat.last)?;
        all.typical_p = or(self.typical_p, all.typical_p);
        all.top_n_sigma = or(self.top_n_sigma, all.top_n_sigma);
        all.xtc.probability = or(self.xtc_probability, all.xtc.probability);
        all.xtc.threshold = or(self.xtc_threshold, all.xtc.threshold);
        all.dynamic.range = or(self.dynatemp_range, all.dynamic.range);
        all.dynamic.exponent = or(self.dynatemp_exponent, all.dynamic.exponent);
        all.mirostat.version = whole(self.mirostat, all.mirostat.version);
        all.mirostat.tau = or(self.mirostat_tau, all.mirostat.tau);
        all.mirostat.eta = or(self.mirostat_eta, all.mirostat.eta);
        all.order = self.samplers.as_ref().map(order).transpose()?;
        all.dry.multiplier = or(self.dry_multiplier, all.dry.multiplier);
        all.dry.base = or(self.dry_base, all.dry.base);
        all.dry.allowed_length = whole(self.dry_allowed_length, all.dry.allowed_length);
        all.dry.last = window("dry_penalty_last_n", self.dry_penalty_last_n, all.dry.last)?;
        let breakers = self.breakers()?;
        if all.dry.multiplier > 0.0 && all.dry.last != Some(0) {
            all.dry.breakers = Arc::new(runs(&breakers, tokenizer)?);
        }
        Ok(all)
    }

    fn breakers(&self) -> Result<Vec<&str>, ApiError> {
        let Some(written) = &self.dry_sequence_breakers else {
            return Ok(USUAL_BREAKERS.to_vec());
        };
        if written.len() > MAX_BREAKERS {
            let message = format!("{} strings, allowed are {MAX_BREAKERS}", written.len());
            return Err(ApiError::field(BREAKERS, message));
        }
        let length = 1..=MAX_BREAKER_BYTES;
        if let Some(odd) = written.iter().find(|one| !length.contains(&one.len())) {
            let message = format!(
                "a string of {BREAKERS} has {} bytes, allowed are 1 to {MAX_BREAKER_BYTES}",
                odd.len()
            );
            return Err(ApiError::field(BREAKERS, message));
        }
        Ok(written.iter().map(String::as_str).collect())
    }

    /// Leaves out what the model suggests and nobody sent, where mirostat takes its place or the list
    /// of samplers lacks it.
    fn take_back(&self, params: &mut SamplingParams) {
        let steered = params.filters.has_mirostat();
        let order = params.filters.order.clone();
        let lacks = |stage| order.as_ref().is_some_and(|order| !order.contains(&stage));
        if self.top_k.is_none() && (steered || lacks(Stage::TopK)) {
            params.top_k = 0;
        }
        if self.top_p.is_none() && (steered || lacks(Stage::TopP)) {
            params.top_p = 1.0;
        }
        if self.min_p.is_none() && (steered || lacks(Stage::MinP)) {
            params.min_p = 0.0;
        }
        if self.temperature.is_none() && lacks(Stage::Temperature) {
            params.temperature = 1.0;
        }
        let replaced = self.repeat_penalty.is_some();
        if self.repetition_penalty.is_none() && (replaced || lacks(Stage::Penalties)) {
            params.repetition_penalty = 1.0;
        }
    }

    /// One penalty under both names, without a window, is that penalty once.
    fn merge_repetition(&self, params: &mut SamplingParams) {
        let whole = matches!(self.repeat_last_n, None | Some(Integer(-1)));
        let repeat = &mut params.filters.repeat;
        if whole && repeat.penalty.to_bits() == params.repetition_penalty.to_bits() {
            repeat.penalty = 1.0;
        }
    }
}

/// How many of the last tokens count; -1 is all.
fn window(
    field: &'static str,
    written: Option<Integer>,
    default: Option<u32>,
) -> Result<Option<u32>, ApiError> {
    match written {
        None => Ok(default),
        Some(Integer(-1)) => Ok(None),
        // No context is that long, so the largest number is all as well.
        Some(Integer(count)) if count >= 0 => Ok(Some(u32::try_from(count).unwrap_or(u32::MAX))),
        Some(Integer(count)) => {
            let message = format!("{field} is {count}, allowed is -1 for all, or 0 or more");
            Err(ApiError::field(field, message))
        }
    }
}

/// A list of names, or a string of a letter for each.
fn order(written: &Value) -> Result<Vec<Stage>, ApiError> {
    let refused = |what: &str| {
        let what: String = what.chars().take(40).collect();
        let message = format!(
            "samplers has `{what}`, allowed are a list of penalties, dry, top_n_sigma, top_k, typ_p, \
             top_p, min_p, xtc and temperature, or a string of their letters, of edskypmxt"
        );
        ApiError::field("samplers", message)
    };
    match written {
        Value::String(letters) => {
            let letters = letters.chars();
            let stages = letters.map(|letter| {
                let stage = of_letter(letter);
                stage.ok_or_else(|| refused(&letter.to_string()))
            });
            stages.collect()
        }
        Value::Array(names) => {
            let stages = names.iter().map(|name| match name {
                Value::String(name) => of_name(name).ok_or_else(|| refused(name)),
                other => Err(refused(&other.to_string())),
            });
            stages.collect()
        }
        other => Err(refused(&other.to_string())),
    }
}

fn of_name(name: &str) -> Option<Stage> {
    let same = |stage: &Stage| stage.name() == name;
    let alias = (name == "typical_p").then_some(Stage::TypicalP);
    Stage::USUAL.into_iter().find(same).or(alias)
}

fn of_letter(letter: char) -> Option<Stage> {
    Some(match letter {
        'e' => Stage::Penalties,
        'd' => Stage::Dry,
        's' => Stage::TopNSigma,
        'k' => Stage::TopK,
        'y' => Stage::TypicalP,
        'p' => Stage::TopP,
        'm' => Stage::MinP,
        'x' => Stage::Xtc,
        't' => Stage::Temperature,
        _ => return None,
    })
}

/// The runs of tokens whose text holds a breaker: a token that holds all of it, or one that ends as it
/// begins, followed by the tokens of the rest.
///
/// # Source   llama.cpp, pull request 9702
/// # Cost     a pass over the bytes of the vocabulary
fn runs(breakers: &[&str], tokenizer: &Tokenizer) -> Result<Breakers, ApiError> {
    let mut begins = [false; 256];
    for breaker in breakers {
        begins[usize::from(breaker.as_bytes()[0])] = true;
    }
    let mut tails: HashMap<&[u8], Vec<TokenId>> = HashMap::new();
    let mut runs = Vec::new();
    let ids = (0..tokenizer.vocab_size()).filter_map(|id| u32::try_from(id).ok());
    for id in ids.map(TokenId::new) {
        let text = tokenizer.token_bytes(id);
        if !text.iter().any(|&byte| begins[usize::from(byte)]) {
            continue;
        }
        for breaker in breakers.iter().map(|breaker| breaker.as_bytes()) {
            if text.windows(breaker.len()).any(|part| part == breaker) {
                runs.push((id, Vec::new()));
                continue;
            }
            for end in (0..text.len()).map(|at| &text[at..]) {
                let Some(rest) = breaker.strip_prefix(end) else {
                    continue;
                };
                let tail = match tails.get(rest) {
                    Some(tail) => tail,
                    None => tails.entry(rest).or_insert(tail(rest, tokenizer)?),
                };
                runs.push((id, tail.clone()));
            }
        }
    }
    Ok(Breakers::new(runs))
}

fn tail(rest: &[u8], tokenizer: &Tokenizer) -> Result<Vec<TokenId>, ApiError> {
    let text = String::from_utf8_lossy(rest);
    let tokens = tokenizer.encode(&text, ControlText::AsText);
    let mut tokens = tokens.map_err(|error| ApiError::from(error).renamed("prompt", BREAKERS))?;
    tokens.truncate(MAX_TAIL);
    Ok(tokens)
}

/// The fields as a call would use them, every default filled in.
#[derive(Debug, Serialize)]
pub(crate) struct RenderedFilters {
    repeat_penalty: f32,
    repeat_last_n: i64,
    typical_p: f32,
    top_n_sigma: f32,
    xtc_probability: f32,
    xtc_threshold: f32,
    dry_multiplier: f32,
    dry_base: f32,
    dry_allowed_length: u32,
    dry_penalty_last_n: i64,
    dynatemp_range: f32,
    dynatemp_exponent: f32,
    mirostat: u32,
    mirostat_tau: f32,
    mirostat_eta: f32,
    samplers: Vec<&'static str>,
}

impl RenderedFilters {
    pub(crate) fn of(params: &SamplingParams) -> Self {
        let Filters {
            repeat,
            dry,
            xtc,
            dynamic,
            mirostat,
            ..
        } = &params.filters;
        let count = |last: Option<u32>| last.map_or(-1, i64::from);
        Self {
            repeat_penalty: repeat.penalty,
            repeat_last_n: count(repeat.last),
            typical_p: params.filters.typical_p,
            top_n_sigma: params.filters.top_n_sigma,
            xtc_probability: xtc.probability,
            xtc_threshold: xtc.threshold,
            dry_multiplier: dry.multiplier,
            dry_base: dry.base,
            dry_allowed_length: dry.allowed_length,
            dry_penalty_last_n: count(dry.last),
            dynatemp_range: dynamic.range,
            dynatemp_exponent: dynamic.exponent,
            mirostat: mirostat.version,
            mirostat_tau: mirostat.tau,
            mirostat_eta: mirostat.eta,
            samplers: params.order().iter().map(|stage| stage.name()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_letters_are_the_same_list() {
        let names = json!([
            "penalties",
            "dry",
            "top_n_sigma",
            "top_k",
            "typ_p",
            "top_p",
            "min_p",
            "xtc",
            "temperature"
        ]);
        let all = order(&names).unwrap();
        assert_eq!(order(&json!("edskypmxt")).unwrap(), all);
        assert_eq!(order(&json!(["typical_p"])).unwrap(), [Stage::TypicalP]);
        for bad in [
            json!("edz"),
            json!(["top-k"]),
            json!([1]),
            json!(7),
            json!({}),
        ] {
            let error = order(&bad).unwrap_err();
            assert_eq!(error.json()["error"]["param"], "samplers", "{bad}");
        }
    }
}
