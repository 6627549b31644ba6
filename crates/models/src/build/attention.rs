//! Grouped-query attention: projections, the attention itself, the way back to the residual.

use super::{Part, ProgramBuilder, layer_name};
use crate::error::LoadFault;
use forthwith_core::program::{
    Attention, KvLayer, Linear, Phase, ProjectionResidual, QkvProjection, RelativeBias,
};

/// The norms of attention, by their names in a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionNorms {
    /// Of the residual.
    pub(crate) pre: Option<&'static str>,
    /// Of queries and keys.
    pub(crate) heads: HeadNorms,
    /// Of the output, before it joins the residual.
    pub(crate) post: Option<&'static str>,
    /// Of the residual, after the output has joined it.
    pub(crate) sum: Option<&'static str>,
}

/// What the norms of queries and keys cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadNorms {
    /// There are none.
    None,
    /// Each head.
    Each,
    /// All heads of a token together.
    Together,
}

impl AttentionNorms {
    /// One before attention.
    pub(crate) const PRE: Self = Self {
        pre: Some("attn_norm"),
        heads: HeadNorms::None,
        post: None,
        sum: None,
    };
}

/// Writes the three phases of one layer's attention.
///
/// # Source     Ainslie et al. 2023, arXiv:2305.13245
pub(crate) fn attention(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    norms: AttentionNorms,
) -> Result<(), LoadFault> {
    project(builder, layer, norms.pre)?;
    attend(builder, layer, norms)
}

/// Writes the first of the three.
pub(crate) fn project(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    norm: Option<&str>,
) -> Result<(), LoadFault> {
    let dimensions = &builder.spec().dimensions;
    let (hidden, head_dim) = (dimensions.hidden, dimensions.head_dim);
    let query_rows = dimensions.heads * head_dim;
    let kv_rows = dimensions.kv_heads * head_dim;
    let norm = builder.optional_norm(layer, norm, hidden)?;
    let [query, key, value] = query_key_value(builder, layer, query_rows, kv_rows)?;
    builder.push(Phase::QkvProjection(QkvProjection {
        norm,
        query,
        key,
        value,
    }));
    Ok(())
}

/// Writes the other two.
pub(crate) fn attend(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    norms: AttentionNorms,
) -> Result<(), LoadFault> {
    let spec = builder.spec();
    let dimensions = &spec.dimensions;
    let layer_spec = &spec.layers[layer];
    let (hidden, head_dim) = (dimensions.hidden, dimensions.head_dim);
    let kv_layer = builder.push_kv_layer(KvLayer {
        kv_heads: dimensions.kv_heads,
        head_dim,
        window: layer_spec.window,
    });
    let head_norm = |builder: &mut ProgramBuilder<'_>, layer, part, heads| {
        let width = match norms.heads {
            HeadNorms::None => return Ok(None),
            HeadNorms::Each => head_dim,
            HeadNorms::Together => heads * head_dim,
        };
        builder.optional_norm(layer, Some(part), width)
    };
    let attention = Attention {
        layer: kv_layer,
        heads: dimensions.heads,
        query_norm: head_norm(builder, layer, "attn_q_norm", dimensions.heads)?,
        key_norm: head_norm(builder, layer, "attn_k_norm", dimensions.kv_heads)?,
        rope: layer_spec.rope,
        scale: layer_spec.attention_scale,
        softcap: layer_spec.attention_softcap,
        causal: spec.causal,
        relative_bias: relative_bias(builder)?,
    };
    builder.push(Phase::Attention(attention));

    let query_rows = dimensions.heads * head_dim;
    let output = ProjectionResidual {
        projection: builder.linear(&layer_name(layer, "attn_output"), hidden, query_rows)?,
        post_norm: builder.optional_norm(layer, norms.post, hidden)?,
        scale: spec.residual_scale,
        sum_norm: builder.optional_norm(layer, norms.sum, hidden)?,
    };
    builder.push(Phase::OutputResidual(output));
    Ok(())
}

/// The bias of scores that all layers share, where the file has it.
fn relative_bias(builder: &mut ProgramBuilder<'_>) -> Result<Option<RelativeBias>, LoadFault> {
    const NAME: &str = "relative_attention_bias.weight";
    let Some(buckets) = builder.rows_of(NAME) else {
        return Ok(None);
    };
    let heads = builder.spec().dimensions.heads;
    Ok(Some(RelativeBias {
        table: builder.matrix(NAME, buckets, heads)?,
        max_distance: 128,
    }))
}

/// The three projections, from tensors of their own or from one that holds them in this order.
fn query_key_value(
    builder: &mut ProgramBuilder<'_>,
    layer: usize,
    query_rows: usize,
    kv_rows: usize,
) -> Result<[Linear; 3], LoadFault> {
    let hidden = builder.spec().dimensions.hidden;
    let name = |part: &str| layer_name(layer, part);
    let fused = name("attn_qkv");
    if !builder.has(&format!("{fused}.weight")) {
        return Ok([
            builder.linear(&name("attn_q"), query_rows, hidden)?,
            builder.linear(&name("attn_k"), kv_rows, hidden)?,
            builder.linear(&name("attn_v"), kv_rows, hidden)?,
        ]);
    }
    let mut part = |first, rows| {
        let of = query_rows + 2 * kv_rows;
        builder.linear_part(&fused, Part { first, rows, of }, hidden)
    };
    Ok([
        part(0, query_rows)?,
        part(query_rows, kv_rows)?,
        part(query_rows + kv_rows, kv_rows)?,
    ])
}
