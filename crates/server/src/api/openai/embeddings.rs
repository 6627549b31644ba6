//! `POST /v1/embeddings`: a vector for each text.

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::body::Body;
use super::completions::Prompts;
use super::fields::{EMBEDDINGS, TEXTS};
use super::wire::Whole;
use crate::access::Asked;
use crate::api::texts::input::{Prepared, Settings, Usage};
use crate::error::ApiError;
use crate::extract::Payload;
use crate::loader::Purpose;
use crate::state::AppState;
use crate::texts::{Computed, compute};

/// The endpoint's own fields.
#[derive(Debug, Deserialize)]
struct Own {
    input: Prompts,
    encoding_format: Option<Encoding>,
    dimensions: Option<Whole>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    Base64,
}

/// What becomes of a vector.
struct Shape {
    encoding: Encoding,
    /// How many of its numbers are kept.
    dimensions: usize,
    normalize: bool,
}

#[derive(Debug, Serialize)]
struct Embeddings {
    object: &'static str,
    data: Vec<Entry>,
    model: String,
    usage: Usage,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Numbers {
    Plain(Vec<f32>),
    Base64(String),
}

/// Computes the vectors of all texts.
pub(crate) async fn create(
    Asked(state): Asked,
    Payload(bytes): Payload<true>,
) -> Result<Response, ApiError> {
    let arrived = state.clock().now();
    let (call, shape) = state.work(move |state| prepare(state, &bytes)).await?;
    let (id, warnings, truncated) = (
        call.model.id.clone(),
        call.warnings.clone(),
        call.truncated(),
    );
    let (computed, spent) = compute(&state, call.model, call.requests, arrived).await?;
    let data = computed.into_iter().enumerate().map(|(index, computed)| {
        let Computed::Vectors(vector) = computed else {
            return Err(ApiError::internal("the engine gave no vector"));
        };
        Ok(Entry {
            object: "embedding",
            index,
            embedding: shape.numbers(vector),
        })
    });
    let whole = Embeddings {
        object: "list",
        data: data.collect::<Result<_, _>>()?,
        model: id,
        usage: Prepared::usage(truncated, spent),
        warnings,
    };
    Ok(Json(whole).into_response())
}

fn prepare(state: &AppState, bytes: &Bytes) -> Result<(Prepared, Shape), ApiError> {
    state.ready()?;
    let body = Body::check(bytes, &[TEXTS, EMBEDDINGS], state)?;
    let own: Own = body.read()?;
    let mut settings = Settings::read(state, &body, "input")?;
    let Purpose::Embed { normalize } = settings.model.purpose else {
        return Err(settings.model.wrong_purpose());
    };
    let width = settings.model.engine.output_width();
    let dimensions = match own.dimensions {
        None => width,
        Some(Whole(wanted)) => usize::try_from(wanted)
            .ok()
            .filter(|wanted| (1..=width).contains(wanted))
            .ok_or_else(|| {
                let message = format!("dimensions is {wanted}, the model has 1 to {width}");
                ApiError::field("dimensions", message)
            })?,
    };
    settings.check_count(own.input.0.len())?;
    let requests = own.input.0.iter().map(|prompt| settings.text(prompt));
    let requests = requests.collect::<Result<_, _>>()?;
    let mut prepared = settings.with(requests);
    if dimensions < width {
        prepared.warnings.push(format!(
            "vectors are the first {dimensions} of {width} numbers, which only models trained for \
             it keep meaningful"
        ));
    }
    let shape = Shape {
        encoding: own.encoding_format.unwrap_or_default(),
        dimensions,
        normalize,
    };
    Ok((prepared, shape))
}

impl Shape {
    fn numbers(&self, mut vector: Vec<f32>) -> Numbers {
        vector.truncate(self.dimensions);
        if self.normalize {
            normalize(&mut vector);
        }
        match self.encoding {
            Encoding::Float => Numbers::Plain(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector
                    .iter()
                    .flat_map(|number| number.to_le_bytes())
                    .collect();
                Numbers::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

/// Brings a vector to length 1; one of zeros stays.
#[expect(clippy::cast_possible_truncation, reason = "vectors are single floats")]
pub(crate) fn normalize(vector: &mut [f32]) {
    let square = |&number: &f32| f64::from(number) * f64::from(number);
    let length = vector.iter().map(square).sum::<f64>().sqrt();
    if length > 0.0 {
        for number in vector {
            *number = (f64::from(*number) / length) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_cut_then_brought_to_length_one() {
        let shape = |encoding, normalize| Shape {
            encoding,
            dimensions: 2,
            normalize,
        };
        let vector = vec![3.0, 4.0, 12.0];
        let Numbers::Plain(plain) = shape(Encoding::Float, true).numbers(vector.clone()) else {
            panic!("plain numbers");
        };
        assert_eq!(plain, [0.6, 0.8]);
        let Numbers::Base64(text) = shape(Encoding::Base64, false).numbers(vector) else {
            panic!("base64");
        };
        assert_eq!(text, "AABAQAAAgEA=");
        let mut zeros = [0.0; 3];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }
}
