//! What no other protocol has a word for.

pub(crate) mod health;
pub(crate) mod tokens;
