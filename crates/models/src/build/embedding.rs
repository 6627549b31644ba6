//! The first phase: tokens to the residual stream.

use super::ProgramBuilder;
use crate::error::LoadFault;
use forthwith_core::program::{Embed, Phase};

/// The table's name in GGUF files.
pub(super) const TABLE: &str = "token_embd.weight";

const POSITIONS: &str = "position_embd.weight";
const TOKEN_TYPES: &str = "token_types.weight";
const NORM: &str = "token_embd_norm";

/// Writes `residual = scale · table[token]`, and adds a row for each position and each type of token
/// and norms the sum where the file has them.
pub(crate) fn embed(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    let spec = builder.spec();
    let (vocab, hidden) = (spec.dimensions.vocab, spec.dimensions.hidden);
    let context = spec.dimensions.context.get();
    let table = builder.matrix(TABLE, vocab, hidden)?;
    let positions = if builder.has(POSITIONS) {
        Some(builder.first_rows(POSITIONS, context, hidden)?)
    } else {
        None
    };
    let token_types = if builder.has(TOKEN_TYPES) {
        Some(builder.table(TOKEN_TYPES, hidden)?)
    } else {
        None
    };
    let norm = if builder.has(&format!("{NORM}.weight")) {
        Some(builder.norm(NORM, hidden)?)
    } else {
        None
    };
    builder.push(Phase::Embed(Embed {
        table,
        scale: spec.embedding_scale,
        positions,
        token_types,
        norm,
    }));
    Ok(())
}
