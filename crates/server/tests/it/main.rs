//! The router in one process, over the toy model.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod access;
mod bytes;
mod cancel;
mod chat;
mod completions;
mod determinism;
mod echo;
mod edits;
mod failures;
mod faults;
mod filters;
mod limits;
mod observe;
mod prompts;
mod protocol;
mod readers;
mod sockets;
mod streams;
mod structure;
mod support;
mod time_limit;
mod tokens;
mod tools;
mod whole_server;
