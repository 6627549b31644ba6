//! Which request fields there are, and what becomes of each: nothing is ignored in silence.
//!
//! | standing | what happens |
//! |---|---|
//! | [`Standing::Works`] | the field does what its protocol says |
//! | [`Standing::Label`] | the field labels the request and cannot change an answer; it is accepted |
//! | [`Standing::Only`] | these values, and null, ask for what happens anyway; another value has no effect, which the answer's `warnings` say |
//! | [`Standing::Needs`] | the same, but without the field's effect the answer would be to another question: another value is refused |
//! | [`Standing::Within`] | an object with fields of its own |
//!
//! A name that is in no table has no effect and is warned of. Where the operator asked for strict
//! parameters, fields without effect are refused: values with code `unsupported_parameter`, names with
//! code `unknown_parameter`. The tables are the list that users see, so they are complete for the
//! OpenAI API and name what vLLM's and llama.cpp's servers add.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::error::ApiError;

/// What becomes of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Standing {
    /// It works.
    Works,
    /// It labels the request and cannot change an answer.
    Label,
    /// Null and these values, written as JSON, are what happens anyway; others have no effect.
    Only(&'static [&'static str]),
    /// The same; others are refused.
    Needs(&'static [&'static str]),
    /// It is an object with these fields.
    Within(&'static Table),
}

use Standing::{Label, Needs, Only, Within, Works};

/// The most warnings of one call; how many more there are is said.
const MAX_WARNINGS: usize = 16;
/// The longest name, in characters, that a warning quotes in full.
const MAX_NAME: usize = 64;

/// Field names and their standing.
pub(crate) type Table = [(&'static str, Standing)];

const ABSENT: Standing = Only(&[]);
const FALSE: Standing = Only(&["false"]);
const TRUE: Standing = Only(&["true"]);
const ZERO: Standing = Only(&["0"]);
const NEEDS_NOTHING: Standing = Needs(&[]);
const NEEDS_FALSE: Standing = Needs(&["false"]);
const NEEDS_TRUE: Standing = Needs(&["true"]);
const NEEDS_ONE: Standing = Needs(&["1"]);
const NEEDS_EMPTY_LIST: Standing = Needs(&["[]"]);
const NEEDS_EMPTY_OBJECT: Standing = Needs(&["{}"]);

/// What every generating endpoint understands.
pub(crate) const GENERATION: &Table = &[
    ("model", Works),
    ("max_tokens", Works),
    ("temperature", Works),
    ("top_p", Works),
    ("top_k", Works),
    ("min_p", Works),
    ("repetition_penalty", Works),
    ("frequency_penalty", Works),
    ("presence_penalty", Works),
    ("seed", Works),
    ("stop", Works),
    ("stop_token_ids", Works),
    ("include_stop_str_in_output", Works),
    ("ignore_eos", Works),
    ("logit_bias", Works),
    ("allowed_token_ids", Works),
    ("min_tokens", Works),
    ("bad_words", Works),
    ("no_repeat_ngram_size", Works),
    ("n_predict", Works),
    ("repeat_penalty", Works),
    ("repeat_last_n", Works),
    ("typical_p", Works),
    ("top_n_sigma", Works),
    ("xtc_probability", Works),
    ("xtc_threshold", Works),
    ("dry_multiplier", Works),
    ("dry_base", Works),
    ("dry_allowed_length", Works),
    ("dry_penalty_last_n", Works),
    ("dry_sequence_breakers", Works),
    ("dynatemp_range", Works),
    ("dynatemp_exponent", Works),
    ("mirostat", Works),
    ("mirostat_tau", Works),
    ("mirostat_eta", Works),
    ("samplers", Works),
    ("response_format", Works),
    ("structured_outputs", Works),
    ("guided_json", Works),
    ("guided_regex", Works),
    ("guided_choice", Works),
    ("guided_grammar", Works),
    ("grammar", Works),
    ("json_schema", Works),
    ("regex", Works),
    ("choice", Works),
    ("ebnf", Works),
    ("n", Works),
    ("stream", Works),
    ("stream_options", Within(STREAM_OPTIONS)),
    ("cache_salt", Works),
    ("priority", Works),
    ("max_queue_time", Works),
    ("max_ttft_ms", Works),
    ("max_time_ms", Works),
    ("user", Label),
    ("metadata", Label),
    ("safety_identifier", Label),
    ("prompt_cache_key", Label),
    ("request_id", Label),
    ("store", FALSE),
    ("service_tier", Only(&["\"auto\"", "\"default\""])),
    ("best_of", NEEDS_ONE),
    ("use_beam_search", NEEDS_FALSE),
    ("length_penalty", NEEDS_ONE),
    ("early_stopping", NEEDS_FALSE),
    ("skip_special_tokens", Works),
    ("spaces_between_special_tokens", Works),
    ("truncate_prompt_tokens", Works),
    ("prompt_logprobs", Works),
    ("return_token_ids", Works),
    ("return_tokens_as_token_ids", Works),
    ("logits_processors", NEEDS_EMPTY_LIST),
    ("kv_transfer_params", NEEDS_NOTHING),
    ("vllm_xargs", NEEDS_EMPTY_OBJECT),
    ("cache_prompt", TRUE),
    ("id_slot", Only(&["-1"])),
    ("timings_per_token", FALSE),
    ("return_progress", FALSE),
    ("t_max_predict_ms", ZERO),
    ("lora", NEEDS_EMPTY_LIST),
];

/// What `stream_options` understands.
const STREAM_OPTIONS: &Table = &[
    ("include_usage", Works),
    ("include_obfuscation", FALSE),
    ("continuous_usage_stats", FALSE),
];

/// How a conversation is worded, by every endpoint that takes one.
pub(crate) const CONVERSATION: &Table = &[
    ("messages", Works),
    ("add_generation_prompt", Works),
    ("continue_final_message", Works),
    ("chat_template_kwargs", Works),
    ("enable_thinking", Works),
    ("tools", Works),
    ("reasoning_effort", Works),
    ("documents", NEEDS_EMPTY_LIST),
    ("chat_template", NEEDS_NOTHING),
    ("mm_processor_kwargs", NEEDS_EMPTY_OBJECT),
];

/// What `/v1/chat/completions` understands besides.
pub(crate) const CHAT: &Table = &[
    ("max_completion_tokens", Works),
    ("logprobs", Works),
    ("top_logprobs", Works),
    ("tool_choice", Works),
    ("parallel_tool_calls", Works),
    ("reasoning_format", Works),
    ("include_reasoning", Works),
    ("thinking_token_budget", Works),
    ("functions", NEEDS_EMPTY_LIST),
    ("function_call", Needs(&["\"none\"", "\"auto\""])),
    ("modalities", Needs(&["[\"text\"]"])),
    ("audio", NEEDS_NOTHING),
    ("prediction", ABSENT),
    ("verbosity", ABSENT),
    ("web_search_options", NEEDS_NOTHING),
    ("prompt_cache_retention", ABSENT),
    ("echo", FALSE),
    ("add_special_tokens", NEEDS_FALSE),
    ("return_tokens", FALSE),
];

/// What `/v1/completions` understands besides.
pub(crate) const COMPLETIONS: &Table = &[
    ("prompt", Works),
    ("logprobs", Works),
    ("echo", Works),
    ("return_tokens", Works),
    ("suffix", Needs(&["\"\""])),
    ("add_special_tokens", NEEDS_TRUE),
    ("prompt_embeds", NEEDS_NOTHING),
];

/// What `/tokenize` understands; `messages` and what belongs to them in place of a text.
pub(crate) const TOKENIZE: &Table = &[
    ("model", Works),
    ("prompt", Works),
    ("content", Works),
    ("add_special_tokens", Works),
    ("add_special", Works),
    ("parse_special", Works),
    ("with_pieces", Works),
    ("return_token_strs", Works),
];

/// What `/detokenize` understands.
pub(crate) const DETOKENIZE: &Table = &[("model", Works), ("tokens", Works)];

/// What `/apply-template` understands beside the conversation.
pub(crate) const APPLY_TEMPLATE: &Table = &[("model", Works)];

/// What every endpoint for texts understands.
pub(crate) const TEXTS: &Table = &[
    ("model", Works),
    ("truncate_prompt_tokens", Works),
    ("cache_salt", Works),
    ("priority", Works),
    ("max_queue_time", Works),
    ("max_time_ms", Works),
    ("user", Label),
    ("metadata", Label),
    ("request_id", Label),
];

/// What `/v1/embeddings` understands besides.
pub(crate) const EMBEDDINGS: &Table = &[
    ("input", Works),
    ("encoding_format", Works),
    ("dimensions", Works),
    ("add_special_tokens", NEEDS_TRUE),
];

/// What `/v1/rerank` understands besides.
pub(crate) const RERANK: &Table = &[
    ("query", Works),
    ("documents", Works),
    ("top_n", Works),
    ("return_documents", Works),
    ("max_chunks_per_doc", ABSENT),
    ("max_tokens_per_doc", ABSENT),
    ("rank_fields", NEEDS_NOTHING),
];

/// What `/v1/score` understands besides.
pub(crate) const SCORE: &Table = &[("text_1", Works), ("text_2", Works)];

/// What `/v1/classify` understands besides.
pub(crate) const CLASSIFY: &Table = &[
    ("input", Works),
    ("labels", Works),
    ("instruction", Works),
    ("label_score", Works),
];

/// What is to be said of a body's fields.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Why the body is refused, if it is.
    pub(crate) problem: Option<ApiError>,
    warnings: Vec<String>,
    /// How many warnings were left out.
    more: usize,
}

impl Findings {
    fn refuse(&mut self, problem: ApiError) {
        self.problem.get_or_insert(problem);
    }

    fn warn(&mut self, warning: impl FnOnce() -> String) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(warning());
        } else {
            self.more += 1;
        }
    }

    /// What has no effect, one line for each field.
    pub(crate) fn into_warnings(mut self) -> Vec<String> {
        if self.more > 0 {
            let line = format!("{} more fields have no effect", self.more);
            self.warnings.push(line);
        }
        self.warnings
    }
}

/// Walks over an object once and finds the fields that have no effect or may not be there.
pub(crate) struct Audit<'a> {
    tables: &'a [&'a Table],
    /// Whether fields without effect are refused.
    strict: bool,
    seen: Vec<&'static str>,
    findings: &'a mut Findings,
}

impl<'a> Audit<'a> {
    pub(crate) fn new(tables: &'a [&'a Table], strict: bool, findings: &'a mut Findings) -> Self {
        Self {
            tables,
            strict,
            seen: Vec::new(),
            findings,
        }
    }

    fn standing(&mut self, name: &str) -> Option<Standing> {
        let mut rows = self.tables.iter().copied().flatten();
        let &(known, standing) = rows.find(|(known, _)| *known == name)?;
        if self.seen.contains(&known) {
            let message = format!("`{known}` is given twice; send it once");
            self.findings.refuse(ApiError::field(known, message));
        }
        self.seen.push(known);
        Some(standing)
    }

    /// Judges a field by its value; `name` is the field's path from the outermost object.
    fn judge(
        &mut self,
        name: &str,
        standing: Standing,
        value: &Value,
    ) -> Result<(), serde_json::Error> {
        match standing {
            Works | Label => {}
            Only(allowed) | Needs(allowed) if is_allowed(value, allowed)? => {}
            Only(allowed) if !self.strict => self.findings.warn(|| {
                let remedy = remedy(allowed);
                format!("`{name}` has no effect as it was sent; {remedy}")
            }),
            Only(allowed) | Needs(allowed) => self.findings.refuse(not_supported(name, allowed)),
            Within(table) => {
                for (inner, value) in value.as_object().into_iter().flatten() {
                    let path = format!("{name}.{inner}");
                    match table.iter().find(|(known, _)| known == inner) {
                        Some(&(_, standing)) => self.judge(&path, standing, value)?,
                        None => self.stranger(&path),
                    }
                }
            }
        }
        Ok(())
    }

    fn stranger(&mut self, name: &str) {
        if self.strict {
            self.findings.refuse(unknown(name));
            return;
        }
        self.findings.warn(|| {
            let cut = name.char_indices().nth(MAX_NAME).map(|(at, _)| at);
            let (name, dots) = cut.map_or((name, ""), |at| (&name[..at], "..."));
            format!("`{name}{dots}` is not a field of this endpoint and has no effect")
        });
    }
}

impl<'de> Visitor<'de> for Audit<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            match self.standing(&name) {
                Some(Works | Label) => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some(standing) => {
                    let judged = self.judge(&name, standing, &map.next_value()?);
                    judged.map_err(A::Error::custom)?;
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                    self.stranger(&name);
                }
            }
        }
        Ok(())
    }
}

fn is_allowed(value: &Value, allowed: &[&str]) -> Result<bool, serde_json::Error> {
    if value.is_null() {
        return Ok(true);
    }
    for text in allowed {
        let wanted: Value = serde_json::from_str(text)?;
        let same_number = wanted.is_number() && wanted.as_f64() == value.as_f64();
        if same_number || wanted == *value {
            return Ok(true);
        }
    }
    Ok(false)
}

fn not_supported(name: &str, allowed: &[&str]) -> ApiError {
    let message = format!("`{name}` is not supported yet; {}", remedy(allowed));
    ApiError::unsupported(name, message)
}

fn remedy(allowed: &[&str]) -> String {
    match allowed {
        [] => "leave it out".to_owned(),
        values => format!("leave it out or send {}", values.join(" or ")),
    }
}

fn unknown(name: &str) -> ApiError {
    let message = format!("`{name}` is not a field of this endpoint; remove it");
    ApiError::field(name, message).coded("unknown_parameter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allowed_value_is_json() {
        let all = [
            GENERATION,
            CONVERSATION,
            CHAT,
            COMPLETIONS,
            TOKENIZE,
            DETOKENIZE,
            TEXTS,
            EMBEDDINGS,
            RERANK,
            CLASSIFY,
        ];
        for (name, standing) in all.into_iter().flatten() {
            if let Only(values) | Needs(values) = standing {
                for value in *values {
                    assert!(
                        serde_json::from_str::<Value>(value).is_ok(),
                        "{name}: {value}"
                    );
                }
            }
        }
    }

    #[test]
    fn no_name_is_listed_twice_for_an_endpoint() {
        let pairs = [
            (GENERATION, CHAT),
            (GENERATION, CONVERSATION),
            (CHAT, CONVERSATION),
            (TOKENIZE, CONVERSATION),
            (APPLY_TEMPLATE, CONVERSATION),
            (GENERATION, COMPLETIONS),
            (TEXTS, EMBEDDINGS),
            (TEXTS, RERANK),
            (TEXTS, SCORE),
            (TEXTS, CLASSIFY),
        ];
        for (shared, own) in pairs {
            let mut names: Vec<&str> = shared.iter().chain(own).map(|row| row.0).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }

    /// The tables as users read them.
    fn page(table: &Table) -> String {
        let rows = table.iter().map(|(name, standing)| {
            let meaning = match standing {
                Works => "works".to_owned(),
                Label => "accepted, cannot change an answer".to_owned(),
                Only([]) => "no effect yet: warned of".to_owned(),
                Only(values) => {
                    format!(
                        "no effect yet: warned of unless `{}`",
                        values.join("` or `")
                    )
                }
                Needs([]) => "not yet: refused".to_owned(),
                Needs(values) => format!("not yet: refused unless `{}`", values.join("` or `")),
                Within(table) => {
                    return page(table).replace("| `", &format!("| `{name}."));
                }
            };
            format!("| `{name}` | {meaning} |\n")
        });
        rows.collect()
    }

    #[test]
    fn the_guide_lists_every_field_with_its_standing() {
        let guide = include_str!("../../../../../docs/guide/http-api.md");
        let tables = [
            GENERATION,
            CONVERSATION,
            CHAT,
            COMPLETIONS,
            TOKENIZE,
            DETOKENIZE,
            APPLY_TEMPLATE,
            TEXTS,
            EMBEDDINGS,
            RERANK,
            SCORE,
            CLASSIFY,
        ];
        for table in tables {
            let page = page(table);
            assert!(
                guide.contains(&page),
                "docs/guide/http-api.md lacks:\n{page}"
            );
        }
    }

    #[test]
    fn one_and_one_point_zero_are_the_same_value() {
        assert!(is_allowed(&serde_json::json!(1.0), &["1"]).unwrap());
        assert!(is_allowed(&Value::Null, &[]).unwrap());
        assert!(!is_allowed(&serde_json::json!("1"), &["1"]).unwrap());
    }
}
