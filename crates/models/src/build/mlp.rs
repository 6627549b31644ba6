//! The gated feed-forward layer.

use super::attention::optional_norm;
use super::{ProgramBuilder, layer_weight};
use crate::error::LoadFault;
use forthwith_core::program::{Activation, GateUp, Phase, ProjectionResidual};

/// Writes the two phases of one layer's feed-forward part. `post_norm` names the norm before the
/// residual in families that have it.
///
/// # Source     Shazeer 2020, arXiv:2002.05202
pub(crate) fn gated(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    activation: Activation,
    post_norm: Option<&str>,
) -> Result<(), LoadFault> {
    let dimensions = &builder.spec().dimensions;
    let (hidden, inner) = (dimensions.hidden, dimensions.feed_forward);
    let name = |part: &str| layer_weight(layer, part);
    let gate_up = GateUp {
        norm: builder.norm(&name("ffn_norm"), hidden)?,
        gate: builder.matrix(&name("ffn_gate"), inner, hidden)?,
        up: builder.matrix(&name("ffn_up"), inner, hidden)?,
        activation,
    };
    builder.push(Phase::GateUp(gate_up));
    let down = ProjectionResidual {
        projection: builder.matrix(&name("ffn_down"), hidden, inner)?,
        post_norm: optional_norm(builder, layer, post_norm, hidden)?,
    };
    builder.push(Phase::DownResidual(down));
    Ok(())
}
