//! The last phase: the residual stream to logits.

use super::{ProgramBuilder, embedding};
use crate::error::LoadFault;
use forthwith_core::program::{Logits, Phase};

const HEAD: &str = "output";
const NORM: &str = "output_norm";

/// Writes `logits = softcap(scale · W · norm(residual))`. Without a matrix of its own the head is tied to
/// the embedding table.
pub(crate) fn logits(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    let spec = builder.spec();
    let (vocab, hidden) = (spec.dimensions.vocab, spec.dimensions.hidden);
    let has_head = builder.has(&format!("{HEAD}.weight"));
    let phase = Logits {
        norm: Some(builder.norm(NORM, hidden)?),
        head: if has_head {
            builder.linear(HEAD, vocab, hidden)?
        } else {
            builder.matrix(embedding::TABLE, vocab, hidden)?.into()
        },
        scale: spec.logits_scale,
        softcap: spec.logits_softcap,
    };
    builder.push(Phase::Logits(phase));
    Ok(())
}
