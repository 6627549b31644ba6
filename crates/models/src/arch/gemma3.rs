//! Gemma 3: five layers that look back a window for each one that sees everything, norms on queries
//! and keys and after each part, GELU-gated feed-forward layers, embeddings scaled by `√hidden`.
//!
//! The norm weights in GGUF files already contain the added 1.
//!
//! Source: Gemma Team 2025, arXiv:2503.19786.

use super::{Architecture, gemma2};
use crate::build::attention::{AttentionNorms, HeadNorms, attention};
use crate::build::mlp::{FeedForwardNorms, gated};
use crate::build::{ProgramBuilder, embedding, head};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Translation, of_decoder};
use crate::rope::{self, RopeScaling, RopeSpec};
use crate::spec::{Dimensions, LayerSpec, ModelSpec, root, to_f32};
use forthwith_core::metadata::Value;
use forthwith_core::program::{Activation, NormKind, Pairing};
use forthwith_core::units::Tokens;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["gemma3"],
    hugging_face: HuggingFace {
        stems: &["Gemma3"],
        tasks: DECODER,
        names: &[("post_attention_layernorm", "post_attention_norm")],
        recipe: gemma2::recipe,
        config: translate,
        head: of_decoder,
    },
    read_config,
    build,
};

/// Indexes into the ropes of the spec.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;
const USUAL_PATTERN: u64 = 6;
const MAX_WINDOW: usize = 1 << 31;
/// The 27B model scales its scores by `hidden / heads` in place of the head's size.
const LAYERS_OF_27B: usize = 62;

fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    config.rename("rope_local_base_freq", "rope.freq_base_swa");
    config.rename(
        "rope_parameters.sliding_attention.rope_theta",
        "rope.freq_base_swa",
    );
    let plain = Value::Text(b"default".to_vec());
    config.must_be("rope_parameters.sliding_attention.rope_type", &plain)?;
    config.rope_of("rope_parameters.full_attention")?;
    let pattern = config.size("sliding_window_pattern")?;
    let pattern = match pattern {
        Some(every) => every,
        None => config.size("_sliding_window_pattern")?.unwrap_or(6),
    };
    gemma2::translate_with(config, |layer| {
        pattern == 0 || !(layer + 1).is_multiple_of(pattern)
    })
}

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    config.must_be("attention.causal", &Value::Bool(true), "must be true")?;
    let dimensions = Dimensions::read(config)?;
    let rotated = dimensions.head_dim;
    config.optional_size("rope.dimension_count", rotated..=rotated)?;
    let rope = |base: f64, scaling: RopeScaling| RopeSpec {
        pairing: Pairing::Halves,
        rotated,
        base,
        scaling,
        factors: None,
    };
    let global_base = rope::read_base(config, "rope.freq_base", 1_000_000.0)?;
    let local_base = rope::read_base(config, "rope.freq_base_swa", 10_000.0)?;
    Ok(ModelSpec {
        dimensions,
        norm: NormKind::RootMeanSquare,
        embedding_scale: root(dimensions.hidden),
        residual_scale: 1.0,
        logits_scale: 1.0,
        feed_forward_beside_attention: false,
        logits_softcap: config
            .optional_float("final_logit_softcapping")?
            .map(to_f32),
        ropes: vec![
            rope(global_base, RopeScaling::read_linear(config)?),
            rope(local_base, RopeScaling::None),
        ],
        layers: read_layers(config, &dimensions)?,
        causal: true,
        pool: None,
        experts: None,
    })
}

fn read_layers(
    config: &mut Config<'_>,
    dimensions: &Dimensions,
) -> Result<Vec<LayerSpec>, LoadFault> {
    let scaled_by = if dimensions.layers == LAYERS_OF_27B {
        dimensions.hidden / dimensions.heads
    } else {
        dimensions.head_dim
    };
    let attention_scale = config.query_scale(scaled_by)?;
    let softcap = config.optional_float("attn_logit_softcapping")?.map(to_f32);
    let window = config.optional_size("attention.sliding_window", 0..=MAX_WINDOW)?;
    let window = window.filter(|&window| window > 0).map(Tokens::new);
    let is_local = read_pattern(config, dimensions.layers)?;
    let layer = |is_local: bool| LayerSpec {
        rope: Some(if is_local { LOCAL } else { GLOBAL }),
        window: window.filter(|_| is_local),
        attention_scale,
        attention_softcap: softcap,
    };
    let locals = is_local
        .into_iter()
        .map(|is_local| is_local && window.is_some());
    Ok(locals.map(layer).collect())
}

/// Which layers look back only a window: all but every sixth, unless the file says otherwise.
fn read_pattern(config: &mut Config<'_>, layers: usize) -> Result<Vec<bool>, LoadFault> {
    const PART: &str = "attention.sliding_window_pattern";
    let every = match config.get(PART) {
        None => USUAL_PATTERN,
        Some(Value::Unsigned(every)) => *every,
        Some(Value::Bools(pattern)) if pattern.len() == layers => return Ok(pattern.clone()),
        Some(Value::Bools(pattern)) => {
            let problem = format!("{} entries for {layers} layers", pattern.len());
            return Err(LoadFault::value(config.key(PART), problem));
        }
        Some(other) => {
            let problem = format!(
                "expected a number or a bool for each layer, found {}",
                other.kind()
            );
            return Err(LoadFault::value(config.key(PART), problem));
        }
    };
    let is_global = |number: u64| every != 0 && number.is_multiple_of(every);
    Ok((1..=layers as u64)
        .map(|number| !is_global(number))
        .collect())
}

fn build(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    let norms = AttentionNorms {
        pre: Some("attn_norm"),
        heads: HeadNorms::Each,
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
