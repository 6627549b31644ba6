//! Feed-forward layers of many experts.

use super::mlp::{FeedForwardNorms, gated};
use super::{ProgramBuilder, layer_name};
use crate::error::LoadFault;
use crate::spec::ExpertSpec;
use forthwith_core::program::{Activation, Experts, Phase};

/// Writes one layer's feed-forward part for families with `SiLU` that come with experts and without.
pub(crate) fn feed_forward(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
) -> Result<(), LoadFault> {
    match builder.spec().experts {
        Some(spec) => experts(builder, layer, spec, Activation::Silu),
        None => gated(builder, layer, Activation::Silu, FeedForwardNorms::PRE),
    }
}

/// Writes the phase of one layer's experts, with a norm before it.
///
/// # Source     Jiang et al. 2024, arXiv:2401.04088
fn experts(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    spec: ExpertSpec,
    activation: Activation,
) -> Result<(), LoadFault> {
    let hidden = builder.spec().dimensions.hidden;
    let ExpertSpec {
        count,
        used,
        feed_forward,
    } = spec;
    let norm = builder.optional_norm(layer, Some("ffn_norm"), hidden)?;
    let name = |part: &str| format!("{}.weight", layer_name(layer, part));
    let inner = count * feed_forward;
    let experts = Experts {
        norm,
        router: builder.matrix(&name("ffn_gate_inp"), count, hidden)?,
        gate: builder.matrix(&name("ffn_gate_exps"), inner, hidden)?,
        up: builder.matrix(&name("ffn_up_exps"), inner, hidden)?,
        down: builder.matrix(&name("ffn_down_exps"), count * hidden, feed_forward)?,
        used,
        normalized: true,
        activation,
        scale: builder.spec().residual_scale,
    };
    builder.push(Phase::Experts(experts));
    Ok(())
}
