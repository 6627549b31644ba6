//! GPT-NeoX and Pythia: layer norms, a part of each head rotates, attention and a plain feed-forward
//! layer beside each other or one after the other, biases.
//!
//! Model folders store query, key and value of each head in turn.
//!
//! Source: Black et al. 2022, arXiv:2204.06745.

use super::Architecture;
use crate::build::attention::{AttentionNorms, attend, project};
use crate::build::mlp::FeedForwardNorms;
use crate::build::{ProgramBuilder, embedding, head, mlp};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Recipe, Translation, of_decoder};
use crate::rope::RopeSpec;
use crate::spec::{Dimensions, LayerSpec, ModelSpec};
use forthwith_core::metadata::Value;
use forthwith_core::program::{Activation, NormKind, Pairing};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["gptneox"],
    hugging_face: HuggingFace {
        stems: &["GPTNeoX"],
        tasks: DECODER,
        names: &[
            ("embed_in", "token_embd"),
            ("final_layer_norm", "output_norm"),
            ("embed_out", "output"),
            ("attention.query_key_value", "attn_qkv"),
            ("attention.dense", "attn_output"),
            ("mlp.dense_h_to_4h", "ffn_up"),
            ("mlp.dense_4h_to_h", "ffn_down"),
        ],
        recipe: |part| match part {
            "attn_qkv" => Recipe::HeadByHead,
            _ => Recipe::Stored,
        },
        config: translate,
        head: of_decoder,
    },
    read_config,
    build,
};

fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    config.must_be("hidden_act", &Value::Text(b"gelu".to_vec()))?;
    config.rename("rotary_emb_base", "rope.freq_base");
    if let Some(share) = config.float("rotary_pct")? {
        config.rotated(share)?;
    }
    let beside = config.flag("use_parallel_residual")?.unwrap_or(true);
    config.set("use_parallel_residual", Value::Bool(beside));
    Ok(())
}

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    let dimensions = Dimensions::read_with(config, "attention.layer_norm_epsilon")?;
    let rope = RopeSpec::read(config, &dimensions, Pairing::Halves, 10_000.0)?;
    let beside = config.flag("use_parallel_residual")?.unwrap_or(true);
    Ok(ModelSpec {
        norm: NormKind::Layer,
        feed_forward_beside_attention: beside,
        ..ModelSpec::uniform(dimensions, rope, LayerSpec::usual(&dimensions))
    })
}

fn build(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    let norms = AttentionNorms::PRE;
    let up = |builder: &mut ProgramBuilder<'_>, layer| {
        mlp::plain_up(builder, layer, Activation::Gelu, Some("ffn_norm"))
    };
    embedding::embed(builder)?;
    for layer in 0..builder.spec().layers.len() {
        project(builder, layer, norms.pre)?;
        if builder.spec().feed_forward_beside_attention {
            up(builder, layer)?;
            attend(builder, layer, norms)?;
        } else {
            attend(builder, layer, norms)?;
            up(builder, layer)?;
        }
        mlp::down(builder, layer, FeedForwardNorms::PRE)?;
    }
    head::output(builder)
}
