//! Llama and the many models of its shape: grouped-query attention, `SiLU`-gated feed-forward layers.
//!
//! GGUF files of this family store the rows of `attn_q` and `attn_k` permuted, so that rotary pairs
//! are adjacent elements.
//!
//! Source: Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783 (the
//! frequency factors of `rope_freqs.weight`).

use super::Architecture;
use crate::build::attention::{AttentionNorms, attention};
use crate::build::{ProgramBuilder, embedding, head, mlp};
use crate::config::Config;
use crate::error::LoadFault;
use crate::rope::{self, RopeScaling, RopeSpec};
use crate::spec::{Dimensions, LayerSpec, ModelSpec, inverse_root};
use forthwith_core::metadata::Value;
use forthwith_core::program::{Activation, Pairing};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["llama"],
    read_config,
    build,
};

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    let none = Value::Unsigned(0);
    config.must_be(
        "expert_count",
        &none,
        "mixtures of experts are not supported",
    )?;
    config.must_be(
        "expert_used_count",
        &none,
        "mixtures of experts are not supported",
    )?;
    config.must_be("attention.causal", &Value::Bool(true), "must be true")?;
    config.ignore(&["tensor_data_layout"]);
    let dimensions = Dimensions::read(config)?;
    let head_dim = dimensions.head_dim;
    config.optional_size("rope.dimension_count", head_dim..=head_dim)?;
    let layer = LayerSpec {
        rope: 0,
        window: None,
        attention_scale: inverse_root(head_dim),
        attention_softcap: None,
    };
    Ok(ModelSpec {
        dimensions,
        embedding_scale: 1.0,
        logits_softcap: None,
        ropes: vec![RopeSpec {
            pairing: Pairing::Adjacent,
            rotated: head_dim,
            base: rope::read_base(config, "rope.freq_base", 10_000.0)?,
            scaling: RopeScaling::read(config, dimensions.context.get())?,
            factors: Some("rope_freqs.weight"),
        }],
        layers: vec![layer; dimensions.layers],
    })
}

fn build(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    embedding::embed(builder)?;
    for layer in 0..builder.spec().layers.len() {
        attention(builder, layer, AttentionNorms::default())?;
        mlp::gated(builder, layer, Activation::Silu, None)?;
    }
    head::logits(builder)
}
