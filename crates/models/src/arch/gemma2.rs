//! Gemma 2: every other layer looks back a window, norms before and after each part, soft caps on
//! scores and logits, GELU-gated feed-forward layers, embeddings scaled by `√hidden`.
//!
//! The norm weights in GGUF files already contain the added 1.
//!
//! Source: Gemma Team 2024, arXiv:2408.00118.

use super::Architecture;
use crate::build::attention::{AttentionNorms, HeadNorms, attention};
use crate::build::mlp::{FeedForwardNorms, gated};
use crate::build::{ProgramBuilder, embedding, head};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Recipe, Translation, of_decoder};
use crate::rope::RopeSpec;
use crate::spec::{Dimensions, LayerSpec, ModelSpec, read_windows, root, to_f32};
use forthwith_core::metadata::Value;
use forthwith_core::program::{Activation, Pairing};
use forthwith_core::units::Tokens;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["gemma2"],
    hugging_face: HuggingFace {
        stems: &["Gemma2"],
        tasks: DECODER,
        names: &[("post_attention_layernorm", "post_attention_norm")],
        recipe,
        config: translate,
        head: of_decoder,
    },
    read_config,
    build,
};

/// The 27B model scales its scores by `hidden / heads` in place of the head's size.
const LAYERS_OF_27B: usize = 46;
const USUAL_WINDOW: usize = 4096;

/// Norm weights are stored as their distance from 1.
pub(super) fn recipe(part: &str) -> Recipe {
    if part.ends_with("norm") {
        Recipe::PlusOne
    } else {
        Recipe::Stored
    }
}

fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    translate_with(config, |layer| layer.is_multiple_of(2))
}

/// What both generations have; `is_local` tells the layers with a window where they are not listed.
pub(super) fn translate_with(
    config: &mut Translation<'_>,
    is_local: impl Fn(usize) -> bool,
) -> Result<(), LoadFault> {
    for key in ["hidden_activation", "hidden_act"] {
        config.must_be(key, &Value::Text(b"gelu_pytorch_tanh".to_vec()))?;
    }
    config.must_be("use_bidirectional_attention", &Value::Bool(false))?;
    config.rename("attn_logit_softcapping", "attn_logit_softcapping");
    config.rename("final_logit_softcapping", "final_logit_softcapping");
    config.rename("query_pre_attn_scalar", "attention.query_scalar");
    config.windows(is_local)
}

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    let dimensions = Dimensions::read(config)?;
    let rope = RopeSpec::read(config, &dimensions, Pairing::Halves, 10_000.0)?;
    let scaled_by = if dimensions.layers == LAYERS_OF_27B {
        dimensions.hidden / dimensions.heads
    } else {
        dimensions.head_dim
    };
    let layer = LayerSpec {
        attention_scale: config.query_scale(scaled_by)?,
        attention_softcap: config.optional_float("attn_logit_softcapping")?.map(to_f32),
        ..LayerSpec::usual(&dimensions)
    };
    let mut spec = ModelSpec {
        embedding_scale: root(dimensions.hidden),
        logits_softcap: config
            .optional_float("final_logit_softcapping")?
            .map(to_f32),
        ..ModelSpec::uniform(dimensions, rope, layer)
    };
    if config.get("attention.sliding_window_pattern").is_some() {
        read_windows(config, &mut spec.layers)?;
    } else {
        let stated = config.optional_size("attention.sliding_window", 1..=1 << 31)?;
        let window = Some(Tokens::new(stated.unwrap_or(USUAL_WINDOW)));
        for layer in spec.layers.iter_mut().step_by(2) {
            layer.window = window;
        }
    }
    Ok(spec)
}

fn build(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    let norms = AttentionNorms {
        pre: Some("attn_norm"),
        heads: HeadNorms::None,
        post: Some("post_attention_norm"),
        sum: None,
    };
    let feed_forward = FeedForwardNorms {
        pre: Some("ffn_norm"),
        post: Some("post_ffw_norm"),
        sum: None,
    };
    embedding::embed(builder)?;
    for layer in 0..builder.spec().layers.len() {
        attention(builder, layer, norms)?;
        gated(builder, layer, Activation::GeluTanh, feed_forward)?;
    }
    head::output(builder)
}
