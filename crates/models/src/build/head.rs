//! The last phase: the residual stream to logits.

use super::{ProgramBuilder, embedding};
use crate::error::LoadFault;
use forthwith_core::program::{Logits, Phase};

const HEAD: &str = "output.weight";
const NORM: &str = "output_norm.weight";

/// Writes `logits = softcap(W · norm(residual))`. Without a matrix of its own the head is tied to
/// the embedding table.
pub(crate) fn logits(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    let spec = builder.spec();
    let (vocab, hidden) = (spec.dimensions.vocab, spec.dimensions.hidden);
    let name = if builder.has(HEAD) {
        HEAD
    } else {
        embedding::TABLE
    };
    let phase = Logits {
        norm: builder.norm(NORM, hidden)?,
        head: builder.matrix(name, vocab, hidden)?,
        softcap: spec.logits_softcap,
    };
    builder.push(Phase::Logits(phase));
    Ok(())
}
