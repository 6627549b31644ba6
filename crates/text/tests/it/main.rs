//! The crate from outside: golden token ids of real models, conversations end to end.
#![expect(clippy::unwrap_used, reason = "a failing test names the line")]

mod gguf;
mod golden;
