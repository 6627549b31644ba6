//! One answer under a form.

use std::fmt;

use forthwith_core::constraint::{Constraint, ConstraintError, Next, TokenConstraint};
use forthwith_core::units::TokenId;
use llguidance::Matcher;
use llguidance::api::StopReason;

/// A compiled form.
pub(super) struct Compiled {
    /// Before the first token.
    matcher: Matcher,
}

struct Following {
    matcher: Matcher,
}

impl Compiled {
    pub(super) fn new(matcher: Matcher) -> Self {
        Self { matcher }
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compiled")
    }
}

impl Constraint for Compiled {
    fn start(&self) -> Result<Box<dyn TokenConstraint>, ConstraintError> {
        Ok(Box::new(Following {
            matcher: self.matcher.deep_clone(),
        }))
    }
}

impl TokenConstraint for Following {
    fn restrict(&mut self, allowed: &mut [u64]) -> Result<(), ConstraintError> {
        let mask = self.matcher.compute_mask_or_eos();
        let mask = mask.map_err(|error| self.explain(&error.to_string()))?;
        let mut halves = mask.as_slice().iter().map(|&half| u64::from(half));
        for word in allowed {
            let low = halves.next().unwrap_or(0);
            let high = halves.next().unwrap_or(0);
            *word &= low | high << 32;
        }
        Ok(())
    }

    fn advance(&mut self, token: TokenId) -> Result<Next, ConstraintError> {
        let consumed = self.matcher.consume_token(token.get());
        consumed.map_err(|error| self.explain(&error.to_string()))?;
        Ok(if self.matcher.is_stopped() {
            Next::Complete
        } else {
            Next::Open
        })
    }
}

impl Following {
    fn explain(&self, error: &str) -> ConstraintError {
        let reason = match self.matcher.stop_reason() {
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
                "it needs more than its budget for one token; make the schema, expression or grammar simpler"
            }
            _ if error.contains("too many") || error.contains("limit") => {
                "it needs more than its budget; make the schema, expression or grammar simpler"
            }
            _ => "no token can follow",
        };
        ConstraintError(format!(
            "the answer's form could not be followed any further: {reason}"
        ))
    }
}
