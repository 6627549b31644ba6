//! What the binary injects: models, made on a thread of their own while `/health` says 503.

use std::sync::Arc;

use forthwith_core::request::{Limits, SamplingParams};
use forthwith_engine::EngineHandle;
use forthwith_text::{ChatTemplate, FormCompiler, ReasoningMarks, Tokenizer, ToolFormat};

use crate::error::ApiError;
use crate::identity::Identity;

/// One model behind the API.
pub struct ServedModel {
    /// The name that requests use.
    pub id: String,
    /// When the model was made, in seconds since 1970.
    pub created: u64,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Forms that answers must have.
    pub forms: FormCompiler,
    /// How it writes calls of tools.
    pub tool_format: ToolFormat,
    /// How it marks its reasoning, if it reasons.
    pub reasoning: Option<ReasoningMarks>,
    /// Messages to a prompt; without it the chat endpoint refuses.
    pub template: Option<ChatTemplate>,
    /// Where requests go.
    pub engine: EngineHandle,
    /// What requests are checked against.
    pub limits: Limits,
    /// How tokens are chosen where a request says nothing; its seed and choice are not used.
    pub defaults: SamplingParams,
    /// What it is made for.
    pub purpose: Purpose,
    /// What its answers depend on besides requests.
    pub identity: Identity,
    /// What a user of this model should know, shown with the model.
    pub warnings: Vec<String>,
}

impl ServedModel {
    /// The refusal of an endpoint that the model is not made for.
    pub(crate) fn wrong_purpose(&self) -> ApiError {
        let message = format!("the model `{}` {}", self.id, self.purpose.described());
        ApiError::field("model", message).coded("wrong_model_kind")
    }
}

/// What a model is made for; endpoints for anything else refuse it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Answers of tokens.
    Generate,
    /// A vector for each text.
    Embed {
        /// Whether vectors are brought to length 1.
        normalize: bool,
    },
    /// A score for each label of a text, or of each of its tokens.
    Classify {
        /// The labels in order.
        labels: Vec<String>,
        /// What scores are made of the model's numbers.
        scoring: Scoring,
        /// Whether each token is labelled.
        each_token: bool,
    },
}

/// What scores are made of a model's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Shares of all labels, which sum to one.
    Softmax,
    /// Each label for itself, between 0 and 1.
    Sigmoid,
    /// The numbers themselves.
    Raw,
}

impl Scoring {
    /// The scores of one text's numbers.
    pub fn scores(self, numbers: &[f32]) -> Vec<f64> {
        let numbers = numbers.iter().map(|&number| f64::from(number));
        match self {
            Self::Raw => numbers.collect(),
            Self::Sigmoid => numbers
                .map(|number| 1.0 / (1.0 + (-number).exp()))
                .collect(),
            Self::Softmax => {
                let largest = numbers.clone().fold(f64::NEG_INFINITY, f64::max);
                let powers: Vec<f64> = numbers.map(|number| (number - largest).exp()).collect();
                let total: f64 = powers.iter().sum();
                powers.iter().map(|power| power / total).collect()
            }
        }
    }
}

impl Purpose {
    /// The purpose in words, and where to send it.
    pub(crate) fn described(&self) -> &'static str {
        match self {
            Self::Generate => "generates text: use /v1/chat/completions or /v1/completions",
            Self::Embed { .. } => "makes vectors of texts: use /v1/embeddings",
            Self::Classify { .. } => {
                "labels or scores texts: use /v1/classify, /v1/score or /v1/rerank"
            }
        }
    }
}

/// Makes the models that a server serves.
pub trait Loader: Send + 'static {
    /// Loads every model; with several of them a request must name its own.
    ///
    /// # Errors
    /// One line that names the file and the reason; the server then ends.
    fn load(self: Box<Self>) -> Result<Vec<ServedModel>, String>;
}
