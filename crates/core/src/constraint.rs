//! The seam for structured output: which tokens may come next.

use crate::units::TokenId;

/// A constraint on one sequence's output, advanced token by token.
pub trait TokenConstraint: Send {
    /// Clears the bits of tokens that may not come next; bit `i` of word `i / 64` is token `i`.
    fn restrict(&mut self, allowed: &mut [u64]);

    /// Tells the constraint which token was chosen.
    fn advance(&mut self, token: TokenId);
}
