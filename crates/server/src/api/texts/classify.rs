//! `POST /v1/classify`: the labels of texts and how well each fits, in the shape of vLLM and more.
//!
//! Models with a head for labels give a number for each. Models that generate are asked how likely
//! they are to write each label of the request (see [`super::generative`]).

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use forthwith_core::units::TokenId;
use serde::{Deserialize, Serialize};

use super::generative::{self, LabelCall, LabelScore};
use super::input::{Prepared, Settings, Usage};
use crate::access::Asked;
use crate::api::openai::body::Body;
use crate::api::openai::completions::Prompts;
use crate::api::openai::fields::{CLASSIFY, TEXTS};
use crate::error::ApiError;
use crate::extract::Payload;
use crate::loader::{Purpose, Scoring};
use crate::state::AppState;
use crate::texts::{Computed, Spent, compute};

#[derive(Debug, Deserialize)]
struct Own {
    input: Prompts,
    #[serde(flatten)]
    generative: generative::Own,
}

#[derive(Debug, Serialize)]
struct Classes {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Class>,
    usage: Usage,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// One text's labels.
#[derive(Debug, Serialize)]
struct Class {
    index: usize,
    #[serde(flatten)]
    labels: Labels,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Labels {
    /// Of the whole text.
    Text(TextLabels),
    /// Of each token.
    Tokens { tokens: Vec<TokenLabel> },
}

#[derive(Debug, Serialize)]
struct TextLabels {
    /// The best label.
    label: String,
    score: f64,
    /// The scores in the order of the labels, as vLLM gives them.
    probs: Vec<f64>,
    num_classes: usize,
    scores: Vec<LabelScore>,
    /// How much of all that the model could write the labels are.
    #[serde(skip_serializing_if = "Option::is_none")]
    label_mass: Option<f64>,
}

#[derive(Debug, Serialize)]
struct TokenLabel {
    token: String,
    label: String,
    score: f64,
}

/// A call, ready for the engine.
enum Call {
    Head { prepared: Prepared, head: Head },
    Generative(LabelCall),
}

/// How a head's numbers are read.
struct Head {
    labels: Vec<String>,
    scoring: Scoring,
    each_token: bool,
}

/// Labels all texts.
pub(crate) async fn create(
    Asked(state): Asked,
    Payload(bytes): Payload<true>,
) -> Result<Response, ApiError> {
    let arrived = state.clock().now();
    let call = state.work(move |state| prepare(state, &bytes)).await?;
    let prepared = match &call {
        Call::Head { prepared, .. } => prepared,
        Call::Generative(call) => call.prepared(),
    };
    let (model, truncated) = (prepared.model.id.clone(), prepared.truncated());
    let warnings = prepared.warnings.clone();
    let (labels, spent) = call.run(&state, arrived).await?;
    let data = labels.into_iter().enumerate();
    let whole = Classes {
        id: format!("classify-{:032x}", state.stamps().id()),
        object: "list",
        created: state.stamps().unix_time(),
        model,
        data: data
            .map(|(index, labels)| Class { index, labels })
            .collect(),
        usage: Prepared::usage(truncated, spent),
        warnings,
    };
    Ok(Json(whole).into_response())
}

fn prepare(state: &AppState, bytes: &Bytes) -> Result<Call, ApiError> {
    state.ready()?;
    let body = Body::check(bytes, &[TEXTS, CLASSIFY], state)?;
    let own: Own = body.read()?;
    let mut settings = Settings::read(state, &body, "input")?;
    settings.check_count(own.input.0.len())?;
    let head = match &settings.model.purpose {
        Purpose::Generate => {
            let call = LabelCall::new(settings, &own.generative, &own.input.0)?;
            return Ok(Call::Generative(call));
        }
        Purpose::Classify {
            labels,
            scoring,
            each_token,
        } => Head {
            labels: labels.clone(),
            scoring: *scoring,
            each_token: *each_token,
        },
        Purpose::Embed { .. } => return Err(settings.model.wrong_purpose()),
    };
    own.generative.refuse(&head.labels)?;
    let requests = own.input.0.iter().map(|prompt| settings.text(prompt));
    let requests = requests.collect::<Result<_, _>>()?;
    Ok(Call::Head {
        prepared: settings.with(requests),
        head,
    })
}

impl Call {
    async fn run(
        self,
        state: &AppState,
        arrived: Duration,
    ) -> Result<(Vec<Labels>, Spent), ApiError> {
        let (prepared, head) = match self {
            Self::Generative(call) => {
                let (answers, spent) = call.run(state, arrived).await?;
                let labels = answers
                    .into_iter()
                    .map(|(scores, mass)| Labels::Text(TextLabels::new(scores, Some(mass))));
                return Ok((labels.collect(), spent));
            }
            Self::Head { prepared, head } => (prepared, head),
        };
        let Prepared {
            model,
            requests,
            inner,
            ..
        } = prepared;
        let tokens: Vec<Vec<TokenId>> = if head.each_token {
            requests
                .iter()
                .map(|request| request.prompt().to_vec())
                .collect()
        } else {
            Vec::new()
        };
        let tokenizer = std::sync::Arc::clone(&model.tokenizer);
        let (computed, spent) = compute(state, model, requests, arrived).await?;
        let labels = computed.into_iter().enumerate().map(|(index, computed)| {
            let Computed::Vectors(numbers) = computed else {
                return Err(ApiError::internal("the engine gave no numbers"));
            };
            if !head.each_token {
                return Ok(Labels::Text(TextLabels::new(head.scores(&numbers), None)));
            }
            let rows = tokens[index].iter().zip(numbers.chunks(head.labels.len()));
            // What stands around the text has no label.
            let own = inner[index].clone();
            let tokens = rows.skip(own.start).take(own.len()).map(|(id, row)| {
                let text = String::from_utf8_lossy(tokenizer.token_bytes(*id)).into_owned();
                head.token(text, row)
            });
            Ok(Labels::Tokens {
                tokens: tokens.collect(),
            })
        });
        Ok((labels.collect::<Result<_, _>>()?, spent))
    }
}

impl Head {
    fn scores(&self, numbers: &[f32]) -> Vec<LabelScore> {
        let scores = self.scoring.scores(numbers);
        let labels = self.labels.iter().zip(numbers).zip(scores);
        labels
            .map(|((label, &logit), score)| LabelScore::of_head(label, score, logit))
            .collect()
    }

    fn token(&self, token: String, row: &[f32]) -> TokenLabel {
        let best = best(&self.scores(row)).clone();
        TokenLabel {
            token,
            label: best.label,
            score: best.score,
        }
    }
}

/// The best label; of equals the one that stands first.
fn best(scores: &[LabelScore]) -> &LabelScore {
    scores
        .iter()
        .rev()
        .max_by(|a, b| a.score.total_cmp(&b.score))
        .expect("there is a label")
}

impl TextLabels {
    fn new(scores: Vec<LabelScore>, label_mass: Option<f64>) -> Self {
        let LabelScore { label, score, .. } = best(&scores).clone();
        Self {
            label,
            score,
            probs: scores.iter().map(|score| score.score).collect(),
            num_classes: scores.len(),
            scores,
            label_mass,
        }
    }
}
