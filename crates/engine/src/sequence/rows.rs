//! Which rows of a step a sequence needs, and what those of its prompt gave.
//!
//! The row of a position tells about the token that follows it: the last known one is what the next
//! token is chosen from, and those before may be asked about. What they gave is kept when the sequence
//! is sent away, and no row is asked for twice.

use std::ops::Range;
use std::sync::Arc;

use forthwith_core::request::Wanted;
use forthwith_core::units::TokenId;

use super::Sequence;
use crate::event::{Event, PromptLogprob};
use crate::sampling::Choice;

/// What is known of the prompt's tokens from the second on, as far as it was asked for.
#[derive(Debug, Default)]
pub(super) struct PromptRows(Arc<Vec<PromptLogprob>>);

impl Sequence {
    /// The positions, among so many tokens to be computed next, whose rows the sequence needs: a
    /// stretch that ends with the last of them, or before it. `each_token` says that each token has a
    /// vector.
    pub(crate) fn rows_within(&self, tokens: usize, each_token: bool) -> Range<usize> {
        let (first, end) = (self.computed, self.computed + tokens);
        let next = match self.request.wanted() {
            Wanted::Vectors { .. } if each_token => first,
            Wanted::Scores(_) => self.request.skippable() + self.scores_known(),
            Wanted::Tokens | Wanted::Vectors { .. } => match self.next_prompt_row() {
                Some(next) => next,
                None if end == self.tokens.len() => end - 1,
                None => end,
            },
        };
        // Nothing is chosen after the last token where the answer is to be empty.
        let unasked = self.wants_tokens() && !self.goes_on() && end == self.tokens.len();
        let last = end - usize::from(unasked);
        next.clamp(first, last.max(first))..last.max(first)
    }

    /// How many of these rows are asked about a token that is known.
    pub(crate) fn asked_within(&self, tokens: usize) -> usize {
        let rows = self.rows_within(tokens, false);
        rows.filter(|&position| self.scored_at(position).is_some())
            .count()
    }

    /// How many of the next tokens can be computed if the step has room for so many rows.
    pub(crate) fn tokens_within(&self, tokens: usize, rows: usize) -> usize {
        let needed = self.rows_within(tokens, false);
        if needed.len() <= rows {
            return tokens;
        }
        needed.start + rows - self.computed
    }

    /// Tokens at the beginning that a cache may stand in for.
    pub(super) fn skippable(&self) -> usize {
        match self.request.wanted() {
            Wanted::Scores(_) => self.request.skippable(),
            Wanted::Tokens | Wanted::Vectors { .. } => {
                let last = self.tokens.len() - 1;
                self.next_prompt_row().unwrap_or(last)
            }
        }
    }

    /// Whether more could be found in a cache if no rows were needed.
    pub(super) fn needs_rows(&self) -> bool {
        self.skippable() < self.tokens.len() - 1
    }

    /// The token that the row of a position is asked about; `None` where one is to be chosen.
    pub(crate) fn scored_at(&self, position: usize) -> Option<TokenId> {
        match self.request.wanted() {
            Wanted::Scores(scored) => {
                let index = position.checked_sub(self.request.skippable())?;
                scored.get(index).copied()
            }
            Wanted::Tokens => self.request.prompt().get(position + 1).copied(),
            Wanted::Vectors { .. } => None,
        }
    }

    /// Keeps what a row says of the token that it was asked about.
    pub(crate) fn keep_row(&mut self, choice: Choice) {
        let likelihood = choice.logprob.expect("was asked for");
        match self.request.wanted() {
            Wanted::Tokens => {
                let rank = choice.rank.expect("was asked for");
                let row = PromptLogprob { likelihood, rank };
                Arc::make_mut(&mut self.prompt_rows.0).push(row);
            }
            Wanted::Scores(_) | Wanted::Vectors { .. } => self.keep_score(likelihood.chosen),
        }
    }

    /// Takes over what another sequence knows of the same prompt.
    pub(crate) fn share_rows(&mut self, other: &Self) {
        self.prompt_rows.0 = Arc::clone(&other.prompt_rows.0);
    }

    /// Tells the owner of the prompt's tokens, which are all known, if it asked about them.
    pub(super) fn tell_prompt(&mut self) {
        if self.request.prompt_logprobs().is_some() {
            let rows = std::mem::take(&mut self.prompt_rows.0);
            self.send(Event::Prompt(rows));
        }
    }

    /// The position of the next row that tells of the prompt, if there is one left to be computed.
    fn next_prompt_row(&self) -> Option<usize> {
        self.request.prompt_logprobs()?;
        let (known, all) = (self.prompt_rows.0.len(), self.request.prompt().len() - 1);
        // With the first token of the answer they were told.
        (self.generated() == 0 && known < all).then_some(known)
    }
}
