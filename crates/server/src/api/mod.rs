//! One folder per protocol, one file per endpoint.

pub(crate) mod native;
pub(crate) mod openai;
pub(crate) mod texts;
