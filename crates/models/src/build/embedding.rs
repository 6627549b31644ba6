//! The first phase: tokens to the residual stream.

use super::ProgramBuilder;
use crate::error::LoadFault;
use forthwith_core::program::{Embed, Phase};

/// The table's name in GGUF files.
pub(super) const TABLE: &str = "token_embd.weight";

/// Writes `residual = scale · table[token]`.
pub(crate) fn embed(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    let spec = builder.spec();
    let (vocab, hidden) = (spec.dimensions.vocab, spec.dimensions.hidden);
    let table = builder.matrix(TABLE, vocab, hidden)?;
    builder.push(Phase::Embed(Embed {
        table,
        scale: spec.embedding_scale,
    }));
    Ok(())
}
