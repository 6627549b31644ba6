//! Grouped-query attention: projections, the attention itself, the way back to the residual.

use super::{ProgramBuilder, layer_weight};
use crate::error::LoadFault;
use forthwith_core::program::{Attention, KvLayer, Norm, Phase, ProjectionResidual, QkvProjection};

/// The norms that a family adds, by their names in a layer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttentionNorms {
    /// Of each query head.
    pub(crate) query: Option<&'static str>,
    /// Of each key head.
    pub(crate) key: Option<&'static str>,
    /// Of the output, before it joins the residual.
    pub(crate) post: Option<&'static str>,
}

/// Writes the three phases of one layer's attention.
///
/// # Source     Ainslie et al. 2023, arXiv:2305.13245
pub(crate) fn attention(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    norms: AttentionNorms,
) -> Result<(), LoadFault> {
    let spec = builder.spec();
    let dimensions = &spec.dimensions;
    let layer_spec = &spec.layers[layer];
    let (hidden, head_dim) = (dimensions.hidden, dimensions.head_dim);
    let query_rows = dimensions.heads * head_dim;
    let kv_rows = dimensions.kv_heads * head_dim;
    let name = |part: &str| layer_weight(layer, part);

    let projection = QkvProjection {
        norm: builder.norm(&name("attn_norm"), hidden)?,
        query: builder.matrix(&name("attn_q"), query_rows, hidden)?,
        key: builder.matrix(&name("attn_k"), kv_rows, hidden)?,
        value: builder.matrix(&name("attn_v"), kv_rows, hidden)?,
    };
    builder.push(Phase::QkvProjection(projection));

    let kv_layer = builder.push_kv_layer(KvLayer {
        kv_heads: dimensions.kv_heads,
        head_dim,
        window: layer_spec.window,
    });
    let attention = Attention {
        layer: kv_layer,
        heads: dimensions.heads,
        query_norm: optional_norm(builder, layer, norms.query, head_dim)?,
        key_norm: optional_norm(builder, layer, norms.key, head_dim)?,
        rope: Some(layer_spec.rope),
        scale: layer_spec.attention_scale,
        softcap: layer_spec.attention_softcap,
    };
    builder.push(Phase::Attention(attention));

    let output = ProjectionResidual {
        projection: builder.matrix(&name("attn_output"), hidden, query_rows)?,
        post_norm: optional_norm(builder, layer, norms.post, hidden)?,
    };
    builder.push(Phase::OutputResidual(output));
    Ok(())
}

/// Takes the norm of a family that has it.
pub(super) fn optional_norm(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    part: Option<&str>,
    width: usize,
) -> Result<Option<Norm>, LoadFault> {
    part.map(|part| builder.norm(&layer_weight(layer, part), width))
        .transpose()
}
