//! What is wanted of a text in place of tokens: which rows of a step it needs, and what they gave.

use std::ops::Range;
use std::time::Duration;

use forthwith_core::request::Wanted;
use forthwith_core::units::TokenId;

use super::{End, Sequence};
use crate::event::{Event, FinishReason};

/// What is computed so far.
#[derive(Debug, Default)]
pub(super) struct TextAnswer {
    vectors: Vec<f32>,
    scores: Vec<f64>,
}

impl Sequence {
    /// The positions, among so many tokens to be computed next, whose rows the sequence needs.
    /// `each_token` says that each token has a vector.
    pub(crate) fn rows_within(&self, tokens: usize, each_token: bool) -> Range<usize> {
        let (first, end) = (self.computed, self.computed + tokens);
        let last = if end == self.tokens.len() {
            end - 1
        } else {
            end
        };
        match self.request.wanted() {
            Wanted::Vectors { .. } if each_token => first..end,
            Wanted::Tokens | Wanted::Vectors { .. } => last..end,
            Wanted::Scores(_) => {
                let next = self.request.skippable() + self.text.scores.len();
                next.clamp(first, end)..end
            }
        }
    }

    /// How many of the next tokens can be computed if the step has room for so many rows.
    pub(crate) fn tokens_within(&self, tokens: usize, rows: usize) -> usize {
        let Wanted::Scores(_) = self.request.wanted() else {
            return if rows == 0 { 0 } else { tokens };
        };
        let needed = self.rows_within(tokens, false);
        tokens - needed.len().saturating_sub(rows)
    }

    /// Tokens at the beginning that a cache may stand in for.
    pub(super) fn skippable(&self) -> usize {
        match self.request.wanted() {
            Wanted::Scores(_) => self.request.skippable(),
            Wanted::Tokens | Wanted::Vectors { .. } => self.tokens.len() - 1,
        }
    }

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

    /// The token that the row of a position is asked about.
    pub(crate) fn scored_at(&self, position: usize) -> Option<TokenId> {
        match self.request.wanted() {
            Wanted::Scores(scored) => {
                let index = position.checked_sub(self.request.skippable())?;
                scored.get(index).copied()
            }
            Wanted::Tokens | Wanted::Vectors { .. } => None,
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
    pub(crate) fn keep_score(&mut self, score: f64) {
        self.text.scores.push(score);
    }

    /// Tells the owner what was wanted, which is all computed, and ends the sequence.
    pub(crate) fn complete(&mut self, now: Duration) {
        self.stamps.first_token.get_or_insert(now);
        let TextAnswer { vectors, scores } = std::mem::take(&mut self.text);
        self.end = Some(End::Finished(FinishReason::Complete));
        self.send(match self.request.wanted() {
            Wanted::Scores(_) => Event::Scores(scores),
            Wanted::Vectors { .. } | Wanted::Tokens => Event::Vectors(vectors),
        });
    }

    /// Neither looks for blocks of others nor makes its own known.
    pub(crate) fn close_sharing(&mut self) {
        self.sharing.open = false;
    }
}
