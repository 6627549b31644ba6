//! A form for answers, made of dice: it forbids many tokens at every place, and ends answers.

use forthwith_core::constraint::{Constraint, ConstraintError, Next, TokenConstraint};
use forthwith_core::units::TokenId;

use super::dice::Dice;

#[derive(Clone, Debug)]
pub(super) struct Form {
    pub(super) seed: u64,
    pub(super) vocab: usize,
    /// An answer of so many tokens is complete.
    pub(super) length: usize,
}

impl Form {
    fn allows(&self, token: usize) -> bool {
        // One token at least, and about a third of the others.
        let chosen = Dice(self.seed).size(0, self.vocab - 1);
        token == chosen || Dice(self.seed ^ token as u64).chance(33)
    }
}

impl Constraint for Form {
    fn start(&self) -> Result<Box<dyn TokenConstraint>, ConstraintError> {
        Ok(Box::new(self.clone()))
    }
}

impl TokenConstraint for Form {
    fn restrict(&mut self, allowed: &mut [u64]) -> Result<(), ConstraintError> {
        for token in (0..self.vocab).filter(|&token| !self.allows(token)) {
            allowed[token / 64] &= !(1 << (token % 64));
        }
        Ok(())
    }

    fn advance(&mut self, token: TokenId) -> Result<Next, ConstraintError> {
        assert!(self.allows(token.index()), "{token:?} was not allowed");
        self.seed = Dice(self.seed.wrapping_add(token.index() as u64)).roll();
        self.length -= 1;
        Ok(if self.length == 0 {
            Next::Complete
        } else {
            Next::Open
        })
    }
}
