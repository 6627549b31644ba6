//! The constraints of answers in the making: each knows which tokens may come next.
//!
//! Masks are made on a thread of their own while the model runs ([`Ahead`]). Where that thread has not
//! come so far when a row is sampled, the sampler makes the mask itself; the mask is the same.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use forthwith_core::constraint::{Constraint, ConstraintError, Next, TokenConstraint};
use forthwith_core::units::TokenId;

use crate::engine::lock;

/// The constraint of one answer, and the tokens it allows next.
pub(crate) struct Guide(Mutex<State>);

struct State {
    form: Arc<dyn Constraint>,
    /// `None` before the first token.
    constraint: Option<Box<dyn TokenConstraint>>,
    /// Bit `i % 64` of word `i / 64` is token `i`.
    mask: Vec<u64>,
    /// Whether the mask is that of the next token.
    is_ready: bool,
    failed: Option<ConstraintError>,
}

impl Guide {
    pub(crate) fn new(form: Arc<dyn Constraint>) -> Self {
        Self(Mutex::new(State {
            form,
            constraint: None,
            mask: Vec::new(),
            is_ready: false,
            failed: None,
        }))
    }

    /// Makes the mask of the next token, if it is not there yet.
    pub(crate) fn prepare(&self, vocab: usize) {
        let mut state = lock(&self.0);
        let prepared = state.guarded(|state| state.prepare(vocab));
        state.failed = prepared.err();
    }

    /// Forbids what may not come next: its logit becomes minus infinity.
    pub(crate) fn apply(&self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        self.prepare(logits.len());
        let state = lock(&self.0);
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        for (logits, &word) in logits.chunks_mut(64).zip(&state.mask) {
            forbid(logits, word);
        }
        Ok(())
    }

    /// Takes in the token that was chosen.
    pub(crate) fn advance(&self, token: TokenId) -> Result<Next, ConstraintError> {
        let mut state = lock(&self.0);
        state.is_ready = false;
        let advanced = state.guarded(|state| state.running()?.advance(token));
        state.failed = advanced.as_ref().err().cloned();
        advanced
    }
}

fn forbid(logits: &mut [f32], allowed: u64) {
    match allowed {
        u64::MAX => {}
        0 => logits.fill(f32::NEG_INFINITY),
        _ => {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if allowed >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

impl State {
    /// Runs foreign code, which must not end the engine.
    fn guarded<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, ConstraintError>,
    ) -> Result<T, ConstraintError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        catch_unwind(AssertUnwindSafe(|| work(self))).unwrap_or_else(|_| {
            let message = "the answer's form could not be followed any further";
            Err(ConstraintError(message.to_owned()))
        })
    }

    fn running(&mut self) -> Result<&mut Box<dyn TokenConstraint>, ConstraintError> {
        match &mut self.constraint {
            Some(constraint) => Ok(constraint),
            empty => Ok(empty.insert(self.form.start()?)),
        }
    }

    fn prepare(&mut self, vocab: usize) -> Result<(), ConstraintError> {
        if self.is_ready {
            return Ok(());
        }
        let mut mask = std::mem::take(&mut self.mask);
        mask.clear();
        mask.resize(vocab.div_ceil(64), u64::MAX);
        let restricted = self.running()?.restrict(&mut mask);
        self.mask = mask;
        restricted?;
        self.is_ready = true;
        Ok(())
    }
}

/// The thread that makes masks while the model runs; it is there from the first constraint on.
#[derive(Default)]
pub(crate) struct Ahead {
    thread: Option<Sender<Arc<Guide>>>,
}

impl Ahead {
    /// Has the mask of the next token made, sooner or later.
    pub(crate) fn prepare(&mut self, guide: &Arc<Guide>, vocab: usize) {
        let thread = match &self.thread {
            Some(thread) => thread,
            None => match Self::start(vocab) {
                Some(thread) => self.thread.insert(thread),
                // Without a thread the sampler makes all masks.
                None => return,
            },
        };
        if thread.send(Arc::clone(guide)).is_err() {
            self.thread = None;
        }
    }

    fn start(vocab: usize) -> Option<Sender<Arc<Guide>>> {
        let (sender, guides) = channel::<Arc<Guide>>();
        let thread = std::thread::Builder::new().name("masks".to_owned());
        let work = move || {
            for guide in guides {
                guide.prepare(vocab);
            }
        };
        thread.spawn(work).ok().map(|_| sender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows one token after the other, then nothing more.
    #[derive(Clone, Debug)]
    struct InOrder(Vec<u32>);

    impl Constraint for InOrder {
        fn start(&self) -> Result<Box<dyn TokenConstraint>, ConstraintError> {
            Ok(Box::new(self.clone()))
        }
    }

    impl TokenConstraint for InOrder {
        fn restrict(&mut self, allowed: &mut [u64]) -> Result<(), ConstraintError> {
            let next = self.0[0] as usize;
            allowed.fill(0);
            allowed[next / 64] = 1 << (next % 64);
            Ok(())
        }

        fn advance(&mut self, token: TokenId) -> Result<Next, ConstraintError> {
            assert_eq!(token.get(), self.0[0], "was not allowed");
            self.0.remove(0);
            Ok(if self.0.is_empty() {
                Next::Complete
            } else {
                Next::Open
            })
        }
    }

    fn allowed(guide: &Guide, vocab: usize) -> Vec<usize> {
        let mut logits = vec![0.5; vocab];
        guide.apply(&mut logits).unwrap();
        (0..vocab).filter(|&id| logits[id] == 0.5).collect()
    }

    #[test]
    fn masks_follow_the_tokens_whether_made_ahead_or_not() {
        for ahead in [false, true] {
            let guide = Arc::new(Guide::new(Arc::new(InOrder(vec![3, 64, 129]))));
            let mut thread = Ahead::default();
            for (token, next) in [(3, Next::Open), (64, Next::Open), (129, Next::Complete)] {
                if ahead {
                    thread.prepare(&guide, 130);
                }
                assert_eq!(allowed(&guide, 130), [token as usize]);
                assert_eq!(allowed(&guide, 130), [token as usize]);
                assert_eq!(guide.advance(TokenId::new(token)), Ok(next));
            }
        }
    }

    #[test]
    fn a_constraint_that_panics_is_an_error_from_then_on() {
        let guide = Guide::new(Arc::new(InOrder(vec![3, 4])));
        assert_eq!(allowed(&guide, 5), [3]);
        let error = guide.advance(TokenId::new(2)).unwrap_err();
        assert_eq!(guide.apply(&mut [0.0; 5]), Err(error.clone()));
        assert_eq!(guide.advance(TokenId::new(3)), Err(error));
    }
}
