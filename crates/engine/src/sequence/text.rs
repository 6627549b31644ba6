//! What is wanted of a text in place of tokens.

use std::time::Duration;

use forthwith_core::request::Wanted;

use super::{End, Sequence};
use crate::event::{Event, FinishReason};

/// What is computed so far.
#[derive(Debug, Default)]
pub(super) struct TextAnswer {
    vectors: Vec<f32>,
    scores: Vec<f64>,
}

impl Sequence {
    pub(crate) fn wants_tokens(&self) -> bool {
        *self.request.wanted() == Wanted::Tokens
    }

    /// The position from which tokens are of the second text of a pair.
    pub(crate) fn second_from(&self) -> Option<usize> {
        match self.request.wanted() {
            Wanted::Vectors { second_from } => *second_from,
            Wanted::Tokens | Wanted::Scores(_) => None,
        }
    }

    /// Keeps rows of vectors.
    pub(crate) fn keep_vectors(&mut self, rows: &[f32]) {
        // Who was sent away begins anew.
        if self.computed == 0 {
            self.text.vectors.clear();
        }
        self.text.vectors.extend_from_slice(rows);
    }

    /// Keeps the log-probability of the next token that was asked about.
    pub(super) fn keep_score(&mut self, score: f64) {
        self.text.scores.push(score);
    }

    /// How many of the scores are known.
    pub(super) fn scores_known(&self) -> usize {
        self.text.scores.len()
    }

    /// Tells the owner what was wanted, which is all computed, and ends the sequence.
    pub(crate) fn complete(&mut self, now: Duration) {
        self.stamps.first_token.get_or_insert(now);
        let TextAnswer { vectors, scores } = std::mem::take(&mut self.text);
        let (reason, event) = match self.request.wanted() {
            Wanted::Scores(_) => (FinishReason::Complete, Event::Scores(scores)),
            Wanted::Vectors { .. } => (FinishReason::Complete, Event::Vectors(vectors)),
            Wanted::Tokens => {
                self.tell_prompt();
                self.end = Some(End::Finished(FinishReason::Length));
                return;
            }
        };
        self.end = Some(End::Finished(reason));
        self.send(event);
    }

    /// Neither looks for blocks of others nor makes its own known.
    pub(crate) fn close_sharing(&mut self) {
        self.sharing.open = false;
    }
}
