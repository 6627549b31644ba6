//! One answer: tokens from the engine, text to a writer, numbers to standard error.

use crate::error::Failure;
use crate::load::LoadedModel;
use crate::printable::{Page, say};
use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams, StopRules};
use forthwith_core::units::TokenId;
use forthwith_engine::{Event, FinishReason, Finished};
use forthwith_text::TextStream;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long an interrupt may go unseen, as while a long prompt is read.
const ATTENTION: Duration = Duration::from_millis(50);

/// What an answer continues.
pub(super) struct Prompt {
    pub(super) tokens: Vec<TokenId>,
    /// The prompt's last token, if the prompt was printed before the answer.
    pub(super) last: Option<TokenId>,
}

/// Answers prompts with one model and one set of parameters.
pub(super) struct Generator<'a> {
    model: &'a LoadedModel,
    sampling: SamplingParams,
    max_tokens: Option<u64>,
    stats: bool,
    /// Set from outside to end the running answer.
    interrupted: Arc<AtomicBool>,
    /// Whether an answer was reported already.
    answered: Cell<bool>,
}

impl<'a> Generator<'a> {
    pub(super) fn new(
        model: &'a LoadedModel,
        sampling: SamplingParams,
        max_tokens: Option<u64>,
        stats: bool,
    ) -> Self {
        let interrupted = Arc::default();
        Self {
            model,
            sampling,
            max_tokens,
            stats,
            interrupted,
            answered: Cell::new(false),
        }
    }

    /// The flag that ends the running answer when it is set.
    pub(super) fn interrupt(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.interrupted)
    }

    /// Writes the answer as it comes and returns it whole.
    pub(super) fn stream(&self, prompt: Prompt, page: &mut Page<'_>) -> Result<String, Failure> {
        let model = self.model;
        let parts = RequestParts {
            max_tokens: self.max_tokens,
            sampling: self.sampling.clone(),
            stop: StopRules {
                end_tokens: model.tokenizer.end_tokens().to_vec(),
                ..StopRules::default()
            },
            ..RequestParts::new(prompt.tokens)
        };
        let request = GenerationRequest::new(parts, model.engine.limits())?;
        let (sender, events) = channel();
        // The receiver only goes away when the answer is abandoned; then nobody listens.
        let sink = Box::new(move |event| drop(sender.send(event)));
        let running = model
            .engine
            .submit(request, sink)
            .map_err(Failure::failed)?;
        let tokenizer = Arc::clone(&model.tokenizer);
        let mut text = TextStream::new(tokenizer, Vec::new()).with_prompt(prompt.last);
        let mut answer = String::new();
        self.interrupted.store(false, Ordering::Relaxed);
        loop {
            let event = match events.recv_timeout(ATTENTION) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match event {
                Some(Event::Token(token)) => {
                    let delta = text.push(token.token).text;
                    page.write(&delta)?;
                    answer.push_str(&delta);
                }
                Some(Event::Finished(finished)) => {
                    let rest = text.finish().text;
                    page.write(&rest)?;
                    answer.push_str(&rest);
                    self.report(&finished);
                    return Ok(answer);
                }
                Some(Event::Failed(failure)) => return Err(Failure::failed(failure.message)),
                Some(Event::Prompt(_) | Event::Vectors(_) | Event::Scores(_)) => {
                    return Err(Failure::failed("the engine answered with numbers"));
                }
                None => {}
            }
            if self.interrupted.load(Ordering::Relaxed) {
                drop(running);
                answer.push_str(&text.finish().text);
                return Ok(answer);
            }
        }
        Err(Failure::failed(
            "the engine stopped before the answer was complete",
        ))
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of tokens are small")]
    fn report(&self, finished: &Finished) {
        if !self.stats {
            return;
        }
        let timings = finished.timings;
        let (prompt, answer) = (
            finished.prompt_tokens.get(),
            finished.completion_tokens.get(),
        );
        let first = timings.time_to_first_token().as_secs_f64();
        let prefill = prompt as f64 / timings.prefill.as_secs_f64().max(1e-9);
        say(format_args!(
            "prompt            {prompt:8} tokens  {prefill:10.1} tokens/s"
        ));
        say(format_args!("first token       {:8.1} ms", first * 1e3));
        if !self.answered.replace(true) {
            let cold = self.model.load_time.as_secs_f64() + first;
            say(format_args!("from a cold start {:8.1} ms", cold * 1e3));
        }
        // The first token comes with the prefill; the rest is decode.
        if answer > 1 {
            let per_token = timings.decode.as_secs_f64() / (answer - 1) as f64;
            say(format_args!(
                "per output token  {:8.2} ms      {:10.1} tokens/s",
                per_token * 1e3,
                1.0 / per_token
            ));
        }
        let reason = match finished.reason {
            FinishReason::End(_) => "the model ended it",
            FinishReason::FormComplete => "its form is complete",
            FinishReason::Length | FinishReason::Complete => "it reached its length",
            FinishReason::Cancelled => "it was cancelled",
            FinishReason::QueueTimeout => "it waited too long for its turn",
            FinishReason::TimeLimit => "its time was over",
        };
        say(format_args!(
            "answer            {answer:8} tokens, {reason}"
        ));
    }
}
