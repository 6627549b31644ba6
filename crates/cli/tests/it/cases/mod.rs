//! What went wrong in other servers, tried on this one: the real binary with a real model.
//!
//! Every case compares two runs or checks a form; none relies on what a small model says. The
//! number of repeats is what a test run can bear; `FORTHWITH_CASE_REPEATS` raises it, and each test
//! names its full count.

mod bytes;
mod company;
mod files;
mod forms;
mod keys;
mod leaving;
mod lengths;
mod loading;
mod messages;
mod preemption;
mod sampling;
mod stops;
mod streams;
mod text;
mod vectors;

use super::real_model;
use super::server::Server;
use forthwith_models::testing::tiny_llama;
use std::path::{Path, PathBuf};

/// A server of the chat model, or a loud line where it is missing.
fn smollm2(more: &[&str]) -> Option<Server> {
    Some(Server::start(real_model("smollm2.gguf")?.to_str()?, more))
}

/// A server of the base model, or a loud line where it is missing.
fn gemma3_270m(more: &[&str]) -> Option<Server> {
    let path = real_model("gemma3-270m.gguf")?;
    Some(Server::start(path.to_str()?, more))
}

/// The same with a template that raises an error where roles do not alternate.
fn strict_gemma3_270m() -> Option<Server> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("strict template.jinja");
    std::fs::write(&path, messages::STRICT).unwrap();
    gemma3_270m(&["--context", "512", "--chat-template", path.to_str()?])
}

/// The file of a model that is tiny, speaks no language, and is always at hand.
fn tiny_model(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.gguf");
    tiny_llama(7).write(&path).unwrap();
    path
}

/// How often to try: `here`, or more where the environment says so.
#[expect(
    clippy::disallowed_methods,
    reason = "the count is a setting of the tests, not of the program"
)]
pub(crate) fn repeats(here: usize) -> usize {
    let asked = std::env::var("FORTHWITH_CASE_REPEATS").ok();
    let asked = asked.map(|text| text.parse().expect("FORTHWITH_CASE_REPEATS is a number"));
    asked.map_or(here, |asked: usize| asked.max(here))
}

/// Runs the jobs all at once and returns their results in order.
fn together<T: Send>(jobs: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
    std::thread::scope(|scope| {
        let running: Vec<_> = jobs.into_iter().map(|job| scope.spawn(job)).collect();
        let results = running.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

/// A number that looks like chance and is the same for the same seed.
fn mixed(seed: u64) -> usize {
    let mut bits = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    usize::try_from(bits >> 33).expect("31 bits")
}
