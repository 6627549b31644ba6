//! Labels and scores of texts, in the forms of vLLM (`/v1/classify`, `/v1/score`) and of Jina and
//! Cohere (`/v1/rerank`, `/v2/rerank`).

pub(crate) mod classify;
mod generative;
pub(crate) mod input;
mod pairs;
pub(crate) mod rerank;
pub(crate) mod score;
