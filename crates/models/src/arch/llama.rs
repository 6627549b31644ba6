//! Llama and the many models of its shape: grouped-query attention, `SiLU`-gated feed-forward layers,
//! or experts in place of these, as Mixtral has them.
//!
//! GGUF files of this family store the rows of `attn_q` and `attn_k` permuted, so that rotary pairs
//! are adjacent elements.
//!
//! Source: Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783 (the
//! frequency factors of `rope_freqs.weight`).

use super::Architecture;
use crate::build::attention::{AttentionNorms, attention};
use crate::build::experts::feed_forward;
use crate::build::{ProgramBuilder, embedding, head};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Recipe, Translation, of_decoder};
use crate::rope::RopeSpec;
use crate::spec::{Dimensions, ExpertSpec, LayerSpec, ModelSpec, read_windows};
use forthwith_core::metadata::Value;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["llama"],
    hugging_face: HuggingFace {
        stems: &["Llama", "Mistral"],
        tasks: DECODER,
        names: &[],
        recipe: |_| Recipe::Stored,
        config: translate,
        head: of_decoder,
    },
    read_config,
    build,
};

/// Mistral's layers all look back a window, where the file has one.
fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    config.windows(|_| true)?;
    config.silu()
}

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    config.must_be("attention.causal", &Value::Bool(true), "must be true")?;
    config.ignore(&["tensor_data_layout"]);
    let dimensions = Dimensions::read(config)?;
    let pairing = config.pairing_of_llama()?;
    let rope = RopeSpec::read(config, &dimensions, pairing, 10_000.0)?;
    let layer = LayerSpec::usual(&dimensions);
    let mut spec = ModelSpec::uniform(dimensions, rope, layer);
    spec.experts = ExpertSpec::read(config, dimensions.feed_forward)?;
    read_windows(config, &mut spec.layers)?;
    Ok(spec)
}

pub(super) fn build(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    embedding::embed(builder)?;
    for layer in 0..builder.spec().layers.len() {
        attention(builder, layer, AttentionNorms::PRE)?;
        feed_forward(builder, layer)?;
    }
    head::output(builder)
}
