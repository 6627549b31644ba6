//! The OpenAI protocol, with the fields that vLLM and llama.cpp's server add to it.

pub(crate) mod body;
pub(crate) mod call;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod conversation;
pub(crate) mod embeddings;
pub(crate) mod fields;
pub(crate) mod filters;
pub(crate) mod logprobs;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod options;
pub(crate) mod prompt_logprobs;
pub(crate) mod reading;
pub(crate) mod render;
pub(crate) mod report;
pub(crate) mod structure;
pub(crate) mod tools;
pub(crate) mod truncation;
pub(crate) mod wire;
