//! What a model of texts is made for, as its folder says: vectors, or labels and their scores.

use crate::error::{LoadError, LoadFault};
use crate::folder::head::{LABELS, NORMALIZE, POOLING, SCORING, SOURCES};
use crate::named;
use forthwith_core::metadata::Metadata;
use forthwith_weights::WeightFile;

/// A model that answers with vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextModel {
    /// Which rows count: `first`, `last`, `mean` or `each`.
    pub pooling: String,
    /// Whether vectors are brought to length 1.
    pub normalize: bool,
    /// The labels whose scores the model gives; none if it gives vectors.
    pub labels: Vec<String>,
    /// What scores are made of the model's numbers.
    pub scoring: Scoring,
    /// What was decided, each with the file that says so.
    pub sources: Vec<String>,
}

/// What scores are made of a model's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Shares of all labels.
    Softmax,
    /// Each label for itself.
    Sigmoid,
    /// The numbers themselves.
    Raw,
}

impl TextModel {
    /// Reads what an opened folder says; nothing of a model that generates.
    ///
    /// # Errors     [`LoadError`] names the key
    pub fn of(file: &WeightFile) -> Result<Option<Self>, LoadError> {
        Self::read(file.metadata()).map_err(|fault| named(file, fault))
    }

    /// Whether each token has numbers of its own.
    pub fn each_token(&self) -> bool {
        self.pooling == "each"
    }

    fn read(metadata: &Metadata) -> Result<Option<Self>, LoadFault> {
        let Some(pooling) = metadata.text(POOLING)? else {
            return Ok(None);
        };
        let lines = |key| -> Result<Vec<String>, LoadFault> {
            let texts = metadata.texts(key)?.unwrap_or_default().iter();
            Ok(texts
                .map(|text| String::from_utf8_lossy(text).into_owned())
                .collect())
        };
        Ok(Some(Self {
            pooling: pooling.to_owned(),
            normalize: metadata.boolean(NORMALIZE)?.unwrap_or(false),
            labels: lines(LABELS)?,
            scoring: match metadata.text(SCORING)? {
                Some("sigmoid") => Scoring::Sigmoid,
                Some("softmax") => Scoring::Softmax,
                _ => Scoring::Raw,
            },
            sources: lines(SOURCES)?,
        }))
    }
}
