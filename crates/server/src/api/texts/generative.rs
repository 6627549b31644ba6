//! Any generating model as a classifier: each label is scored by how likely the model is to write
//! it as the answer.
//!
//! The prompt is the model's chat template around an instruction and the text. The first label of
//! each text computes the prompt; the others find it in the prefix cache and ride in one batch.
//! Nothing is generated and nothing is drawn, so the scores are the same in any company.

use std::time::Duration;

use forthwith_core::request::GenerationRequest;
use forthwith_core::units::TokenId;
use forthwith_text::{ChatMessage, ControlText, RenderOptions};
use serde::{Deserialize, Serialize};

use super::input::{Prepared, Settings};
use crate::api::openai::completions::Prompt;
use crate::error::ApiError;
use crate::loader::ServedModel;
use crate::state::AppState;
use crate::texts::{Computed, Spent, compute};

/// The most labels of a call.
const MAX_LABELS: usize = 256;

/// The fields that only generating models read.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Own {
    labels: Option<Vec<String>>,
    instruction: Option<String>,
    label_score: Option<LabelMethod>,
}

/// What of its tokens makes the score of a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LabelMethod {
    /// The likelihood of all of them.
    #[default]
    Sum,
    /// The same, as if all labels had one token: long labels are not at a disadvantage.
    Mean,
}

/// One label of a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LabelScore {
    pub(super) label: String,
    pub(super) score: f64,
    /// The head's own number.
    #[serde(skip_serializing_if = "Option::is_none")]
    logit: Option<f32>,
    /// The natural logarithm of how likely the model is to write the label.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprob: Option<f64>,
    /// The same for each of its tokens, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_logprob: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<usize>,
}

impl LabelScore {
    pub(super) fn of_head(label: &str, score: f64, logit: f32) -> Self {
        Self {
            label: label.to_owned(),
            score,
            logit: Some(logit),
            logprob: None,
            mean_logprob: None,
            tokens: None,
        }
    }
}

impl Own {
    /// Refuses fields that a model with a head does not read.
    pub(super) fn refuse(&self, labels: &[String]) -> Result<(), ApiError> {
        let field = [
            ("labels", self.labels.is_some()),
            ("instruction", self.instruction.is_some()),
            ("label_score", self.label_score.is_some()),
        ];
        match field.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((field, _)) => {
                let shown: Vec<&str> = labels.iter().map(String::as_str).take(8).collect();
                let message = format!(
                    "`{field}` is for models that generate; this one has labels of its own: {}",
                    shown.join(", ")
                );
                Err(ApiError::field(field, message))
            }
        }
    }

    fn labels(&self) -> Result<Vec<String>, ApiError> {
        let labels = self.labels.clone().unwrap_or_default();
        let wrong = |message: String| Err(ApiError::field("labels", message));
        if !(2..=MAX_LABELS).contains(&labels.len()) {
            let count = labels.len();
            return wrong(format!(
                "{count} labels, a model that generates needs 2 to {MAX_LABELS}"
            ));
        }
        for (index, label) in labels.iter().enumerate() {
            if label.trim().is_empty() {
                return wrong(format!("label {index} is empty"));
            }
            if labels[..index].contains(label) {
                return wrong(format!("{label:?} is given twice"));
            }
        }
        Ok(labels)
    }
}

/// A call for labels, ready for the engine.
pub(super) struct LabelCall {
    /// The first label of each text.
    leaders: Prepared,
    /// All other labels, text by text.
    others: Vec<GenerationRequest>,
    labels: Vec<String>,
    method: LabelMethod,
}

impl LabelCall {
    pub(super) fn new(settings: Settings, own: &Own, texts: &[Prompt]) -> Result<Self, ApiError> {
        let labels = own.labels()?;
        let most = settings.max_texts;
        if texts.len() * labels.len() > most {
            let message = format!(
                "{} texts with {} labels each, allowed are {most} in all",
                texts.len(),
                labels.len()
            );
            return Err(ApiError::field("input", message));
        }
        let instruction = own.instruction.clone().unwrap_or_else(|| {
            let list = labels.join(", ");
            format!(
                "Which label fits the text best? Answer with one of these and nothing else: {list}."
            )
        });
        let (mut leaders, mut others) = (Vec::new(), Vec::new());
        for text in texts {
            let Prompt::Text(text) = text else {
                let message = "texts to be labelled by a model that generates must be strings";
                return Err(ApiError::field("input", message));
            };
            let prompt = prompt(&settings.model, &instruction, text)?;
            for (index, label) in labels.iter().enumerate() {
                let tokens = settings
                    .model
                    .tokenizer
                    .encode(label, ControlText::AsText)?;
                let from = prompt.len();
                let whole = [&prompt[..], &tokens].concat();
                let request = settings.scores(whole, from)?;
                if index == 0 {
                    leaders.push(request);
                } else {
                    others.push(request);
                }
            }
        }
        Ok(Self {
            leaders: settings.with(leaders),
            others,
            labels,
            method: own.label_score.unwrap_or_default(),
        })
    }

    pub(super) fn prepared(&self) -> &Prepared {
        &self.leaders
    }

    /// The scores of all labels of each text, and how much of all answers the labels are.
    pub(super) async fn run(
        self,
        state: &AppState,
        arrived: Duration,
    ) -> Result<(Vec<(Vec<LabelScore>, f64)>, Spent), ApiError> {
        let Prepared {
            model, requests, ..
        } = self.leaders;
        let first = compute(state, std::sync::Arc::clone(&model), requests, arrived);
        let (first, mut spent) = first.await?;
        let (others, more) = compute(state, model, self.others, arrived).await?;
        spent.prompt += more.prompt;
        spent.cached += more.cached;
        let mut others = others.into_iter();
        let mut answers = Vec::with_capacity(first.len());
        for leader in first {
            let rest = others.by_ref().take(self.labels.len() - 1);
            let logprobs = std::iter::once(leader)
                .chain(rest)
                .map(|computed| match computed {
                    Computed::Scores(scores) => Ok(scores),
                    Computed::Vectors(_) => Err(ApiError::internal("the engine gave no scores")),
                });
            let logprobs: Vec<Vec<f64>> = logprobs.collect::<Result<_, _>>()?;
            answers.push(weigh(&self.labels, &logprobs, self.method));
        }
        Ok((answers, spent))
    }
}

/// The prompt that asks for a label: by the chat template, or in plain words without one.
fn prompt(model: &ServedModel, instruction: &str, text: &str) -> Result<Vec<TokenId>, ApiError> {
    let content = format!("{instruction}\n\n{text}");
    let Some(template) = &model.template else {
        let plain = format!("{content}\n\nLabel:\n");
        return Ok(model.tokenizer.encode_prompt(&plain)?);
    };
    let message = ChatMessage {
        role: "user".to_owned(),
        content,
        ..ChatMessage::default()
    };
    let options = RenderOptions::for_answer();
    let rendered = template.render(&[message], &options)?;
    Ok(model.tokenizer.encode_rendered(&rendered)?)
}

/// From the log-probabilities of each label's tokens to scores that sum to one, and the labels'
/// share of all answers.
#[expect(clippy::cast_precision_loss, reason = "labels have few tokens")]
fn weigh(labels: &[String], logprobs: &[Vec<f64>], method: LabelMethod) -> (Vec<LabelScore>, f64) {
    let sums: Vec<f64> = logprobs.iter().map(|tokens| tokens.iter().sum()).collect();
    let means = sums.iter().zip(logprobs);
    let means: Vec<f64> = means
        .map(|(sum, tokens)| sum / tokens.len() as f64)
        .collect();
    let weights = match method {
        LabelMethod::Sum => &sums,
        LabelMethod::Mean => &means,
    };
    let largest = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shares: Vec<f64> = weights
        .iter()
        .map(|weight| (weight - largest).exp())
        .collect();
    let total: f64 = shares.iter().sum();
    let scores = labels.iter().enumerate().map(|(index, label)| LabelScore {
        label: label.clone(),
        score: shares[index] / total,
        logit: None,
        logprob: Some(sums[index]),
        mean_logprob: Some(means[index]),
        tokens: Some(logprobs[index].len()),
    });
    let mass = sums.iter().map(|sum| sum.exp()).sum::<f64>();
    (scores.collect(), mass)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(names: &[&str]) -> Own {
        Own {
            labels: Some(names.iter().map(|&name| name.to_owned()).collect()),
            ..Own::default()
        }
    }

    #[test]
    fn long_labels_lose_by_their_sum_and_not_by_their_mean() {
        let names = ["short".to_owned(), "a long one".to_owned()];
        let half = 0.5_f64.ln();
        let logprobs = [vec![half], vec![half, half]];
        let (sum, mass) = weigh(&names, &logprobs, LabelMethod::Sum);
        assert!((sum[0].score - 2.0 / 3.0).abs() < 1e-12);
        assert!((mass - 0.75).abs() < 1e-12);
        assert_eq!(sum[1].tokens, Some(2));
        let (mean, _) = weigh(&names, &logprobs, LabelMethod::Mean);
        assert!((mean[0].score - 0.5).abs() < 1e-12);
    }

    #[test]
    fn labels_must_differ_and_be_at_least_two() {
        for (own, says) in [
            (Own::default(), "0 labels"),
            (labels(&["only"]), "1 labels"),
            (labels(&["a", " "]), "label 1 is empty"),
            (labels(&["a", "b", "a"]), "\"a\" is given twice"),
        ] {
            let error = own.labels().unwrap_err().json().to_string();
            let says = says.replace('"', "\\\"");
            assert!(error.contains(&says), "{error}");
        }
        assert_eq!(labels(&["yes", "no"]).labels().unwrap().len(), 2);
    }
}
