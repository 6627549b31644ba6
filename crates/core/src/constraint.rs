//! The seam for structured output: which tokens may come next.

use std::fmt;

use crate::units::TokenId;

/// A form that answers must have, shared by all sequences that are to have it.
pub trait Constraint: fmt::Debug + Send + Sync {
    /// The constraint on one answer, before its first token.
    ///
    /// # Errors
    /// [`ConstraintError`] if the form needs more than its budget.
    fn start(&self) -> Result<Box<dyn TokenConstraint>, ConstraintError>;
}

/// A constraint on one sequence's output, advanced token by token.
///
/// The tokens it allows depend on the form and on the tokens so far alone: not on other sequences,
/// and not on when or where it is asked.
pub trait TokenConstraint: Send {
    /// Clears the bits of tokens that may not come next; bit `i % 64` of word `i / 64` is token `i`.
    /// Tokens that end an answer stay where it may end.
    ///
    /// # Errors
    /// [`ConstraintError`] if the form needs more than its budget here.
    fn restrict(&mut self, allowed: &mut [u64]) -> Result<(), ConstraintError>;

    /// Tells the constraint which token was chosen.
    ///
    /// # Errors
    /// [`ConstraintError`] if the token was not allowed, or the form needs more than its budget.
    fn advance(&mut self, token: TokenId) -> Result<Next, ConstraintError>;
}

/// What may follow a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// More tokens may, or must.
    Open,
    /// Nothing: the answer is complete.
    Complete,
}

/// A form cannot be followed any further, in words for the request's owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);
