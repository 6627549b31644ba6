//! How a model's makers would have its tokens chosen.
//!
//! A folder says it in `generation_config.json`, a GGUF file in keys that begin with
//! `general.sampling.`, as the converter of llama.cpp writes them.

use forthwith_core::metadata::{Metadata, Value};
use forthwith_core::request::SamplingParams;
use forthwith_weights::WeightFile;

/// The file of a folder that suggestions come from.
const FILE: &str = "generation_config.json";

/// A setting: its name here and in `generation_config.json`, its key in GGUF files, what it may be.
struct Setting {
    name: &'static str,
    key: &'static str,
    least: f64,
    most: f64,
    put: fn(&mut SamplingParams, f32),
}

const SETTINGS: [Setting; 5] = [
    Setting {
        name: "temperature",
        key: "general.sampling.temp",
        least: 0.0,
        most: 2.0,
        put: |params, value| params.temperature = value,
    },
    Setting {
        name: "top_k",
        key: "general.sampling.top_k",
        least: 0.0,
        most: 1e6,
        put: put_top_k,
    },
    Setting {
        name: "top_p",
        key: "general.sampling.top_p",
        least: 0.0,
        most: 1.0,
        put: |params, value| params.top_p = value,
    },
    Setting {
        name: "min_p",
        key: "general.sampling.min_p",
        least: 0.0,
        most: 1.0,
        put: |params, value| params.min_p = value,
    },
    Setting {
        name: "repetition_penalty",
        key: "general.sampling.penalty_repeat",
        least: 0.001,
        most: 1000.0,
        put: |params, value| params.repetition_penalty = value,
    },
];

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be from 0 to a million"
)]
fn put_top_k(params: &mut SamplingParams, value: f32) {
    params.top_k = value as u32;
}

/// What a model's files suggest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Suggestion {
    values: Vec<(&'static str, f32)>,
    /// Where it is written; empty if nothing is.
    pub source: &'static str,
    /// Suggestions that cannot be followed, in words.
    pub refused: Vec<String>,
}

impl Suggestion {
    /// Reads what an opened file or folder suggests.
    pub fn of(file: &WeightFile) -> Self {
        let source = if file.path().is_dir() {
            FILE
        } else {
            "general.sampling of the file"
        };
        Self::read(file.metadata(), source)
    }

    /// Whether nothing is suggested that can be followed.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The same parameters, with what is suggested.
    #[must_use]
    pub fn applied_to(&self, mut params: SamplingParams) -> SamplingParams {
        for setting in &SETTINGS {
            if let Some(value) = self.value(setting.name) {
                (setting.put)(&mut params, value);
            }
        }
        params
    }

    /// The value suggested for a setting, such as `top_p`.
    fn value(&self, name: &str) -> Option<f32> {
        let found = self.values.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    }

    fn read(metadata: &Metadata, source: &'static str) -> Self {
        let mut suggestion = Self::default();
        for setting in &SETTINGS {
            let value = match metadata.float(setting.key) {
                Ok(None) => continue,
                Ok(Some(value)) => value,
                Err(error) => {
                    suggestion.refused.push(error.to_string());
                    continue;
                }
            };
            if (setting.least..=setting.most).contains(&value) {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "a setting is a single float"
                )]
                suggestion.values.push((setting.name, value as f32));
            } else {
                suggestion.refused.push(format!(
                    "{} is {value}, allowed is {} to {}",
                    setting.name, setting.least, setting.most
                ));
            }
        }
        if suggestion != Self::default() {
            suggestion.source = source;
        }
        suggestion
    }
}

impl std::fmt::Display for Suggestion {
    /// `temperature 0.6, top_p 0.95 (generation_config.json)`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, (name, value)) in self.values.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{name} {value}")?;
        }
        write!(f, " ({})", self.source)
    }
}

/// Takes over what a folder's `generation_config.json` suggests. One that says that nothing is drawn
/// suggests nothing: its numbers are of no use to it.
pub(crate) fn take_over(generation: &Metadata, out: &mut Metadata) {
    if generation.get("do_sample") == Some(&Value::Bool(false)) {
        return;
    }
    for setting in &SETTINGS {
        if let Some(value) = generation.get(setting.name) {
            out.insert(setting.key, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(keys: &[(&str, Value)]) -> Suggestion {
        let (mut said, mut out) = (Metadata::default(), Metadata::default());
        for (key, value) in keys {
            said.insert(*key, value.clone());
        }
        take_over(&said, &mut out);
        Suggestion::read(&out, FILE)
    }

    #[test]
    fn settings_are_taken_over_and_said() {
        let suggestion = generation(&[
            ("temperature", Value::Float(0.6)),
            ("top_k", Value::Unsigned(20)),
            ("do_sample", Value::Bool(true)),
            ("max_length", Value::Unsigned(7)),
        ]);
        assert_eq!(
            suggestion.to_string(),
            "temperature 0.6, top_k 20 (generation_config.json)"
        );
        let params = suggestion.applied_to(SamplingParams::default());
        let wanted = SamplingParams {
            temperature: 0.6,
            top_k: 20,
            ..SamplingParams::default()
        };
        assert_eq!(params, wanted);
        assert_eq!(suggestion.value("top_p"), None);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let suggestion = generation(&[
            ("temperature", Value::Float(f64::NAN)),
            ("top_p", Value::Float(1.5)),
            ("min_p", Value::Text(b"0.1".to_vec())),
            ("repetition_penalty", Value::Float(1.1)),
        ]);
        assert_eq!(suggestion.refused.len(), 3, "{suggestion:?}");
        assert!(suggestion.refused[1].contains("top_p is 1.5, allowed is 0 to 1"));
        assert_eq!(suggestion.value("repetition_penalty"), Some(1.1));
    }

    #[test]
    fn nothing_is_suggested_where_nothing_is_drawn() {
        let silent = generation(&[
            ("do_sample", Value::Bool(false)),
            ("temperature", Value::Float(0.6)),
        ]);
        assert_eq!(silent, Suggestion::default());
        assert!(generation(&[]).is_empty());
    }
}
