//! Encoders of BERT's kind: norms after each addition, a plain feed-forward layer.

use super::attention::{AttentionNorms, HeadNorms, attention};
use super::mlp::FeedForwardNorms;
use super::{ProgramBuilder, embedding, head, mlp};
use crate::config::Config;
use crate::error::LoadFault;
use crate::spec::{Dimensions, LayerSpec, ModelSpec};
use forthwith_core::metadata::Value;
use forthwith_core::program::{Activation, NormKind};

/// Reads the spec of such an encoder, whose positions are not rotated.
pub(crate) fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    config.must_be("attention.causal", &Value::Bool(false), "must be false")?;
    let dimensions = Dimensions::read_with(config, "attention.layer_norm_epsilon")?;
    let layer = LayerSpec {
        rope: None,
        ..LayerSpec::usual(&dimensions)
    };
    Ok(ModelSpec {
        norm: NormKind::Layer,
        causal: false,
        ..ModelSpec::uniform(dimensions, None, layer)
    })
}

/// Writes the whole program.
///
/// # Source     Devlin et al. 2018, arXiv:1810.04805
pub(crate) fn post_normed(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    let norms = AttentionNorms {
        pre: None,
        heads: HeadNorms::None,
        post: None,
        sum: Some("attn_output_norm"),
    };
    let feed_forward = FeedForwardNorms {
        pre: None,
        post: None,
        sum: Some("layer_output_norm"),
    };
    embedding::embed(builder)?;
    for layer in 0..builder.spec().layers.len() {
        attention(builder, layer, norms)?;
        mlp::plain_up(builder, layer, Activation::Gelu, feed_forward.pre)?;
        mlp::down(builder, layer, feed_forward)?;
    }
    head::output(builder)
}
