//! How well two texts belong together: by a model that computes them as a pair, or by the angle
//! between their vectors.

use std::time::Duration;

use forthwith_core::request::GenerationRequest;

use super::input::{Prepared, Settings};
use crate::api::openai::completions::Prompt;
use crate::error::ApiError;
use crate::loader::{Purpose, Scoring};
use crate::state::AppState;
use crate::texts::{Computed, Spent, compute};

/// A call for pairs, ready for the engine.
pub(crate) struct PairCall {
    pub(crate) prepared: Prepared,
    method: Method,
}

enum Method {
    /// One request for each pair.
    Together(Scoring),
    /// One request for each text; pairs name two of them.
    Angle(Vec<(usize, usize)>),
}

/// What is known of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Match {
    /// The score as the model's files say it is read.
    pub(crate) score: f64,
    /// The model's own number, where it computed the pair together.
    pub(crate) logit: Option<f32>,
}

impl PairCall {
    /// Prepares pairs of texts by their places in `texts`.
    pub(crate) fn new(
        mut settings: Settings,
        texts: &[&str],
        pairs: Vec<(usize, usize)>,
    ) -> Result<Self, ApiError> {
        settings.check_count(pairs.len())?;
        let (requests, method): (Vec<GenerationRequest>, Method) = match &settings.model.purpose {
            Purpose::Classify {
                labels,
                scoring,
                each_token: false,
            } if labels.len() == 1 => {
                let scoring = *scoring;
                let pair =
                    |&(first, second): &(usize, usize)| settings.pair(texts[first], texts[second]);
                let requests = pairs.iter().map(pair).collect::<Result<_, _>>()?;
                (requests, Method::Together(scoring))
            }
            Purpose::Embed { .. } => {
                let text = |text: &&str| settings.text(&Prompt::Text((*text).to_owned()));
                let requests = texts.iter().map(text).collect::<Result<_, _>>()?;
                (requests, Method::Angle(pairs))
            }
            Purpose::Classify { labels, .. } => {
                let message = format!(
                    "the model has {} labels; texts are scored against each other by models with \
                     one, or by those for embeddings",
                    labels.len()
                );
                return Err(ApiError::field("model", message).coded("wrong_model_kind"));
            }
            Purpose::Generate => return Err(settings.model.wrong_purpose()),
        };
        Ok(Self {
            prepared: settings.with(requests),
            method,
        })
    }

    /// Computes how well all pairs match.
    pub(crate) async fn run(
        self,
        state: &AppState,
        arrived: Duration,
    ) -> Result<(Vec<Match>, Spent), ApiError> {
        let Prepared {
            model, requests, ..
        } = self.prepared;
        let (computed, spent) = compute(state, model, requests, arrived).await?;
        let vectors: Vec<Vec<f32>> = computed
            .into_iter()
            .filter_map(|computed| match computed {
                Computed::Vectors(vector) => Some(vector),
                Computed::Scores(_) => None,
            })
            .collect();
        let matches = match self.method {
            Method::Together(scoring) => vectors
                .iter()
                .map(|vector| Match {
                    score: scoring.scores(vector)[0],
                    logit: vector.first().copied(),
                })
                .collect(),
            Method::Angle(pairs) => pairs
                .iter()
                .map(|&(first, second)| Match {
                    score: cosine(&vectors[first], &vectors[second]),
                    logit: None,
                })
                .collect(),
        };
        Ok((matches, spent))
    }
}

/// The cosine of the angle between two vectors; 0 where one has no length.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let terms = a.iter().zip(b);
        terms.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 {
        dot(a, b) / lengths
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles() {
        assert!((cosine(&[1.0, 1.0], &[2.0, 2.0]) - 1.0).abs() < 1e-12);
        assert!(cosine(&[1.0, 0.0], &[0.0, 5.0]).abs() < 1e-12);
        assert_eq!(cosine(&[0.0], &[1.0]).to_bits(), 0);
    }
}
