//! Qwen 2 and 2.5: Llama's shape with biases on queries, keys and values, rotary pairs in halves.
//!
//! Source: Yang et al. 2024, arXiv:2407.10671.

use super::Architecture;
use crate::build::attention::{AttentionNorms, attention};
use crate::build::mlp::{FeedForwardNorms, gated};
use crate::build::{ProgramBuilder, embedding, head};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Recipe, Translation, of_decoder};
use crate::rope::RopeSpec;
use crate::spec::{Dimensions, LayerSpec, ModelSpec, read_windows};
use forthwith_core::program::{Activation, Pairing};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["qwen2"],
    hugging_face: HuggingFace {
        stems: &["Qwen2"],
        tasks: DECODER,
        names: &[],
        recipe: |_| Recipe::Stored,
        config: translate,
        head: of_decoder,
    },
    read_config,
    build,
};

/// Windows are named even where they are switched off.
pub(super) fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    config.silu()?;
    let first = config.size("max_window_layers")?.unwrap_or(0);
    if config.flag("use_sliding_window")?.unwrap_or(false) {
        config.windows(|layer| layer >= first)
    } else {
        config.get("sliding_window");
        config.windows(|_| false)
    }
}

pub(super) fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    let dimensions = Dimensions::read(config)?;
    let rope = RopeSpec::read(config, &dimensions, Pairing::Halves, 1_000_000.0)?;
    let mut spec = ModelSpec::uniform(dimensions, rope, LayerSpec::usual(&dimensions));
    read_windows(config, &mut spec.layers)?;
    Ok(spec)
}

fn build(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    embedding::embed(builder)?;
    for layer in 0..builder.spec().layers.len() {
        attention(builder, layer, AttentionNorms::PRE)?;
        gated(builder, layer, Activation::Silu, FeedForwardNorms::PRE)?;
    }
    head::output(builder)
}
