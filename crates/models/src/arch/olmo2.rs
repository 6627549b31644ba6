//! `OLMo` 2: no norm before a part but one after it, and norms over all query and all key heads of a
//! token together.
//!
//! Source: `OLMo` Team 2024, arXiv:2501.00656.

use super::Architecture;
use crate::build::attention::{AttentionNorms, HeadNorms, attention};
use crate::build::mlp::{FeedForwardNorms, gated};
use crate::build::{ProgramBuilder, embedding, head};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Recipe, of_decoder};
use crate::rope::RopeSpec;
use crate::spec::{Dimensions, LayerSpec, ModelSpec};
use forthwith_core::program::{Activation, Pairing};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["olmo2"],
    hugging_face: HuggingFace {
        stems: &["Olmo2"],
        tasks: DECODER,
        names: &[("post_attention_layernorm", "post_attention_norm")],
        recipe: |_| Recipe::Stored,
        config: |config| config.silu(),
        head: of_decoder,
    },
    read_config,
    build,
};

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    let dimensions = Dimensions::read(config)?;
    let rope = RopeSpec::read(config, &dimensions, Pairing::Halves, 500_000.0)?;
    let layer = LayerSpec::usual(&dimensions);
    Ok(ModelSpec::uniform(dimensions, rope, layer))
}

fn build(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    let norms = AttentionNorms {
        pre: None,
        heads: HeadNorms::Together,
        post: Some("post_attention_norm"),
        sum: None,
    };
    let feed_forward = FeedForwardNorms {
        pre: None,
        post: Some("post_ffw_norm"),
        sum: None,
    };
    embedding::embed(builder)?;
    for layer in 0..builder.spec().layers.len() {
        attention(builder, layer, norms)?;
        gated(builder, layer, Activation::Silu, feed_forward)?;
    }
    head::output(builder)
}
