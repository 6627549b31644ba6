//! Feed-forward layers.

use super::{Part, ProgramBuilder, layer_name};
use crate::error::LoadFault;
use forthwith_core::program::{Activation, GateUp, Phase, ProjectionResidual, Up};

/// The norms of a feed-forward layer, by their names in a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeedForwardNorms {
    /// Of the residual.
    pub(crate) pre: Option<&'static str>,
    /// Of the output, before it joins the residual.
    pub(crate) post: Option<&'static str>,
    /// Of the residual, after the output has joined it.
    pub(crate) sum: Option<&'static str>,
}

impl FeedForwardNorms {
    /// One before the layer.
    pub(crate) const PRE: Self = Self {
        pre: Some("ffn_norm"),
        post: None,
        sum: None,
    };
}

/// Writes the two phases of one layer's gated feed-forward part. Files without `ffn_gate` hold gate
/// and up in one tensor, the gate first.
///
/// # Source     Shazeer 2020, arXiv:2002.05202
pub(crate) fn gated(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    activation: Activation,
    norms: FeedForwardNorms,
) -> Result<(), LoadFault> {
    let dimensions = &builder.spec().dimensions;
    let (hidden, inner) = (dimensions.hidden, dimensions.feed_forward);
    let name = |part: &str| layer_name(layer, part);
    let norm = builder.optional_norm(layer, norms.pre, hidden)?;
    let (gate, up) = if builder.has(&format!("{}.weight", name("ffn_gate"))) {
        (
            builder.linear(&name("ffn_gate"), inner, hidden)?,
            builder.linear(&name("ffn_up"), inner, hidden)?,
        )
    } else {
        let mut half = |first| {
            let part = Part {
                first,
                rows: inner,
                of: 2 * inner,
            };
            builder.linear_part(&name("ffn_up"), part, hidden)
        };
        (half(0)?, half(inner)?)
    };
    builder.push(Phase::GateUp(GateUp {
        norm,
        gate,
        up,
        activation,
    }));
    down(builder, layer, norms)
}

/// Writes the first phase of a plain feed-forward layer.
pub(crate) fn plain_up(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    activation: Activation,
    norm: Option<&str>,
) -> Result<(), LoadFault> {
    let dimensions = &builder.spec().dimensions;
    let (hidden, inner) = (dimensions.hidden, dimensions.feed_forward);
    let up = Up {
        norm: builder.optional_norm(layer, norm, hidden)?,
        up: builder.linear(&layer_name(layer, "ffn_up"), inner, hidden)?,
        activation,
    };
    builder.push(Phase::Up(up));
    Ok(())
}

/// Writes the second phase of a feed-forward layer.
pub(crate) fn down(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    norms: FeedForwardNorms,
) -> Result<(), LoadFault> {
    let dimensions = &builder.spec().dimensions;
    let (hidden, inner) = (dimensions.hidden, dimensions.feed_forward);
    let down = ProjectionResidual {
        projection: builder.linear(&layer_name(layer, "ffn_down"), hidden, inner)?,
        post_norm: builder.optional_norm(layer, norms.post, hidden)?,
        scale: builder.spec().residual_scale,
        sum_norm: builder.optional_norm(layer, norms.sum, hidden)?,
    };
    builder.push(Phase::DownResidual(down));
    Ok(())
}
