//! What the binary injects: models, made on a thread of their own while `/health` says 503.

use std::sync::Arc;

use forthwith_core::request::{Limits, SamplingParams};
use forthwith_engine::EngineHandle;
use forthwith_text::{ChatTemplate, Tokenizer};

use crate::identity::Identity;

/// One model behind the API.
pub struct ServedModel {
    /// The name that requests use.
    pub id: String,
    /// When the model was made, in seconds since 1970.
    pub created: u64,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to a prompt; without it the chat endpoint refuses.
    pub template: Option<ChatTemplate>,
    /// Where requests go.
    pub engine: EngineHandle,
    /// What requests are checked against.
    pub limits: Limits,
    /// How tokens are chosen where a request says nothing; its seed and choice are not used.
    pub defaults: SamplingParams,
    /// What its answers depend on besides requests.
    pub identity: Identity,
    /// What a user of this model should know, shown with the model.
    pub warnings: Vec<String>,
}

/// Makes the models that a server serves.
pub trait Loader: Send + 'static {
    /// Loads every model; with several of them a request must name its own.
    ///
    /// # Errors
    /// One line that names the file and the reason; the server then ends.
    fn load(self: Box<Self>) -> Result<Vec<ServedModel>, String>;
}
