//! `POST /v1/rerank` (also `/v2/rerank` and `/rerank`): documents in the order in which they answer
//! a query, in the shape that Jina and Cohere share.

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::input::{Prepared, Settings, Usage};
use super::pairs::{Match, PairCall};
use crate::access::Asked;
use crate::api::openai::body::Body;
use crate::api::openai::fields::{RERANK, TEXTS};
use crate::api::openai::wire::Whole;
use crate::error::ApiError;
use crate::extract::Payload;
use crate::state::AppState;

#[derive(Debug, Deserialize)]
struct Own {
    query: String,
    documents: Vec<Document>,
    top_n: Option<Whole>,
    return_documents: Option<bool>,
}

/// A document, in one of the two ways in which clients write it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a string or an object with `text`")]
enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

#[derive(Debug, Serialize)]
struct Ranking {
    id: String,
    model: String,
    results: Vec<Ranked>,
    usage: Usage,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Ranked {
    /// Its place among the documents of the request.
    index: usize,
    relevance_score: f64,
    /// The model's own number.
    #[serde(skip_serializing_if = "Option::is_none")]
    logit: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Returned>,
}

#[derive(Debug, Serialize)]
struct Returned {
    text: String,
}

/// What the call wants back.
struct Wanted {
    documents: Vec<Document>,
    most: usize,
    return_documents: bool,
}

/// Scores each document against the query, best first.
pub(crate) async fn create(
    Asked(state): Asked,
    Payload(bytes): Payload<true>,
) -> Result<Response, ApiError> {
    let arrived = state.clock().now();
    let (call, wanted) = state.work(move |state| prepare(state, &bytes)).await?;
    let model = call.prepared.model.id.clone();
    let (warnings, truncated) = (call.prepared.warnings.clone(), call.prepared.truncated());
    let (matches, spent) = call.run(&state, arrived).await?;
    let ranking = Ranking {
        id: format!("rerank-{:032x}", state.stamps().id()),
        model,
        results: wanted.ranked(&matches),
        usage: Prepared::usage(truncated, spent),
        warnings,
    };
    Ok(Json(ranking).into_response())
}

fn prepare(state: &AppState, bytes: &Bytes) -> Result<(PairCall, Wanted), ApiError> {
    state.ready()?;
    let body = Body::check(bytes, &[TEXTS, RERANK], state)?;
    let own: Own = body.read()?;
    let settings = Settings::read(state, &body, "documents")?;
    let count = own.documents.len();
    let most = match own.top_n {
        None => count,
        Some(Whole(0)) => {
            return Err(ApiError::field("top_n", "top_n is 0, allowed is 1 or more"));
        }
        Some(Whole(most)) => usize::try_from(most).unwrap_or(usize::MAX),
    };
    let documents = own.documents.iter().map(Document::text);
    let texts: Vec<&str> = std::iter::once(&own.query[..]).chain(documents).collect();
    let pairs = (1..=count).map(|document| (0, document)).collect();
    let call = PairCall::new(settings, &texts, pairs)?;
    let wanted = Wanted {
        most,
        return_documents: own.return_documents.unwrap_or(false),
        documents: own.documents,
    };
    Ok((call, wanted))
}

impl Wanted {
    /// The best first; of equals the one that came first.
    fn ranked(&self, matches: &[Match]) -> Vec<Ranked> {
        let mut order: Vec<usize> = (0..matches.len()).collect();
        order.sort_by(|&a, &b| matches[b].score.total_cmp(&matches[a].score));
        order.truncate(self.most);
        let ranked = |index: usize| Ranked {
            index,
            relevance_score: matches[index].score,
            logit: matches[index].logit,
            document: self.return_documents.then(|| Returned {
                text: self.documents[index].text().to_owned(),
            }),
        };
        order.into_iter().map(ranked).collect()
    }
}
