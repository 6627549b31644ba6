//! GPT-2: learned positions, layer norms, a plain feed-forward layer, queries, keys and values in one
//! matrix, biases everywhere.
//!
//! Model folders store all matrices but the embeddings with rows and columns exchanged.
//!
//! Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners.

use super::Architecture;
use crate::build::attention::{AttentionNorms, attention};
use crate::build::mlp::FeedForwardNorms;
use crate::build::{ProgramBuilder, embedding, head, mlp};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Recipe, Translation, of_decoder};
use crate::spec::{Dimensions, LayerSpec, ModelSpec};
use forthwith_core::metadata::{Value, require};
use forthwith_core::program::{Activation, NormKind};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["gpt2"],
    hugging_face: HuggingFace {
        stems: &["GPT2"],
        tasks: DECODER,
        names: &[
            ("wte", "token_embd"),
            ("wpe", "position_embd"),
            ("ln_f", "output_norm"),
            ("ln_1", "attn_norm"),
            ("attn.c_attn", "attn_qkv"),
            ("attn.c_proj", "attn_output"),
            ("ln_2", "ffn_norm"),
            ("mlp.c_fc", "ffn_up"),
            ("mlp.c_proj", "ffn_down"),
        ],
        recipe: |part| match part {
            "attn_qkv" | "attn_output" | "ffn_up" | "ffn_down" => Recipe::Transposed,
            _ => Recipe::Stored,
        },
        config: translate,
        head: of_decoder,
    },
    read_config,
    build,
};

fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    config.must_be("activation_function", &Value::Text(b"gelu_new".to_vec()))?;
    config.must_be("scale_attn_weights", &Value::Bool(true))?;
    config.must_be("scale_attn_by_inverse_layer_idx", &Value::Bool(false))?;
    config.must_be("add_cross_attention", &Value::Bool(false))?;
    // How single floats are kept from overflowing, which they do not here.
    config.get("reorder_and_upcast_attn");
    config.get("n_ctx");
    config.rename("n_embd", "embedding_length");
    config.rename("n_layer", "block_count");
    config.rename("n_head", "attention.head_count");
    config.rename("n_positions", "context_length");
    config.rename("layer_norm_epsilon", "attention.layer_norm_epsilon");
    let hidden = config.size("n_embd")?;
    let inner = match config.size("n_inner")? {
        Some(inner) => inner,
        None => require("n_embd", hidden)?.saturating_mul(4),
    };
    config.set("feed_forward_length", Value::Unsigned(inner as u64));
    Ok(())
}

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    let dimensions = Dimensions::read_with(config, "attention.layer_norm_epsilon")?;
    let layer = LayerSpec {
        rope: None,
        ..LayerSpec::usual(&dimensions)
    };
    Ok(ModelSpec {
        norm: NormKind::Layer,
        ..ModelSpec::uniform(dimensions, None, layer)
    })
}

fn build(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    embedding::embed(builder)?;
    for layer in 0..builder.spec().layers.len() {
        attention(builder, layer, AttentionNorms::PRE)?;
        mlp::plain_up(builder, layer, Activation::GeluTanh, Some("ffn_norm"))?;
        mlp::down(builder, layer, FeedForwardNorms::PRE)?;
    }
    head::output(builder)
}
