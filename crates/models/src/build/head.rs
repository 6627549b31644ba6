//! The last phase: the residual stream to logits or vectors.

use super::{ProgramBuilder, embedding};
use crate::error::LoadFault;
use crate::spec::PoolSpec;
use forthwith_core::program::{HeadLayer, Logits, Phase, Pool};

const HEAD: &str = "output";
const NORM: &str = "output_norm";

/// Writes the last phase: logits, or vectors where the spec says how rows become those.
pub(crate) fn output(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    match &builder.spec().pool {
        None => logits(builder),
        Some(pool) => vectors(builder, pool),
    }
}

/// Writes a row or the mean of rows, through the layers of the head.
fn vectors(builder: &mut ProgramBuilder<'_>, pool: &PoolSpec) -> Result<(), LoadFault> {
    let mut width = builder.spec().dimensions.hidden;
    let norm = if builder.has(&format!("{NORM}.weight")) {
        Some(builder.norm(NORM, width)?)
    } else {
        None
    };
    let mut layers = Vec::new();
    for (index, &activation) in pool.activations.iter().enumerate() {
        let stem = format!("head.{index}");
        let rows = builder.rows_of(&format!("{stem}.weight")).unwrap_or(1);
        let linear = builder.linear(&stem, rows, width)?;
        width = rows;
        let norm = format!("{stem}.norm");
        let has_norm = builder.has(&format!("{norm}.weight"));
        layers.push(HeadLayer {
            linear,
            activation,
            norm: if has_norm {
                Some(builder.norm(&norm, width)?)
            } else {
                None
            },
        });
    }
    builder.push(Phase::Pool(Pool {
        norm,
        pooling: pool.pooling,
        layers,
    }));
    Ok(())
}

/// Writes `logits = softcap(scale · W · norm(residual))`. Without a matrix of its own the head is tied to
/// the embedding table.
fn logits(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
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
