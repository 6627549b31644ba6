//! ModernBERT: an encoder with norms before each part, GELU-gated feed-forward layers and rotary
//! positions, most of whose layers see a window to both sides.
//!
//! The first layer has no norm before attention: the embeddings were normed already.
//!
//! Source: Warner et al. 2024, arXiv:2412.13663.

use super::Architecture;
use crate::build::attention::{AttentionNorms, attention};
use crate::build::mlp::{FeedForwardNorms, gated};
use crate::build::{ProgramBuilder, embedding, head};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{ENCODER, HeadPart, HuggingFace, Recipe, Task, Translation};
use crate::rope::{self, RopeScaling, RopeSpec};
use crate::spec::{Dimensions, LayerSpec, ModelSpec, read_windows};
use forthwith_core::metadata::Value;
use forthwith_core::program::{Activation, NormKind, Pairing};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["modern-bert"],
    hugging_face: HuggingFace {
        stems: &["ModernBert"],
        tasks: ENCODER,
        names: &[
            ("embeddings.tok_embeddings", "token_embd"),
            ("embeddings.norm", "token_embd_norm"),
            ("attn.Wqkv", "attn_qkv"),
            ("attn.Wo", "attn_output"),
            ("attn_norm", "attn_norm"),
            ("mlp_norm", "ffn_norm"),
            ("mlp.Wi", "ffn_up"),
            ("mlp.Wo", "ffn_down"),
            ("final_norm", "output_norm"),
        ],
        recipe: |_| Recipe::Stored,
        config: translate,
        head: |task| match task {
            Task::Classes | Task::TokenClasses => {
                const {
                    &[
                        HeadPart {
                            name: "head.dense",
                            activation: "gelu",
                            norm: Some("head.norm"),
                        },
                        HeadPart::product("classifier"),
                    ]
                }
            }
            Task::Tokens | Task::Vectors => &[],
        },
    },
    read_config,
    build,
};

/// Indexes into the ropes of the spec.
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    let gelu = Value::Text(b"gelu".to_vec());
    config.must_be("hidden_activation", &gelu)?;
    config.must_be("classifier_activation", &gelu)?;
    config.rename("norm_eps", "attention.layer_norm_epsilon");
    for (key, part) in [
        ("global_rope_theta", "rope.freq_base"),
        (
            "rope_parameters.full_attention.rope_theta",
            "rope.freq_base",
        ),
        ("local_rope_theta", "rope.freq_base_swa"),
        (
            "rope_parameters.sliding_attention.rope_theta",
            "rope.freq_base_swa",
        ),
    ] {
        config.rename(key, part);
    }
    let plain = Value::Text(b"default".to_vec());
    config.must_be("rope_parameters.full_attention.rope_type", &plain)?;
    config.must_be("rope_parameters.sliding_attention.rope_type", &plain)?;
    let every = config
        .size("global_attn_every_n_layers")?
        .unwrap_or(3)
        .max(1);
    let pattern = config.layers_with_window(|layer| !layer.is_multiple_of(every))?;
    // As far to one side as to the other, and the token itself.
    let window = config.size("local_attention")?.unwrap_or(128) / 2 + 1;
    config.set("attention.sliding_window", Value::Unsigned(window as u64));
    config.set("attention.sliding_window_pattern", Value::Bools(pattern));
    if let Some(pooling) = config.text("classifier_pooling")?
        && config.task() == Task::Classes
    {
        let pooling = match pooling {
            "cls" => "first",
            "mean" => "mean",
            other => {
                let problem = format!("`{}` is not supported", other.escape_debug());
                return Err(LoadFault::value("classifier_pooling", problem));
            }
        };
        config.pool(pooling);
    }
    for without_effect in WITHOUT_EFFECT {
        config.get(without_effect);
    }
    config.set("attention.causal", Value::Bool(false));
    Ok(())
}

/// Keys of training, of other tasks and of other programs; tensors tell of biases.
const WITHOUT_EFFECT: &[&str] = &[
    "classifier_bias",
    "cls_token_id",
    "decoder_bias",
    "deterministic_flash_attn",
    "embedding_dropout",
    "initializer_cutoff_factor",
    "mlp_dropout",
    "norm_bias",
    "reference_compile",
    "repad_logits_with_grad",
    "sep_token_id",
    "sparse_pred_ignore_index",
    "sparse_prediction",
];

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    config.must_be("attention.causal", &Value::Bool(false), "must be false")?;
    let dimensions = Dimensions::read_with(config, "attention.layer_norm_epsilon")?;
    let rope = |base: f64| RopeSpec {
        pairing: Pairing::Halves,
        rotated: dimensions.head_dim,
        base,
        scaling: RopeScaling::None,
        factors: None,
    };
    let global = rope::read_base(config, "rope.freq_base", 160_000.0)?;
    let local = rope::read_base(config, "rope.freq_base_swa", 10_000.0)?;
    let mut spec = ModelSpec {
        norm: NormKind::Layer,
        causal: false,
        ropes: vec![rope(global), rope(local)],
        ..ModelSpec::uniform(dimensions, None, LayerSpec::usual(&dimensions))
    };
    read_windows(config, &mut spec.layers)?;
    for layer in &mut spec.layers {
        layer.rope = Some(if layer.window.is_some() {
            LOCAL
        } else {
            GLOBAL
        });
    }
    Ok(spec)
}

fn build(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    embedding::embed(builder)?;
    for layer in 0..builder.spec().layers.len() {
        let mut norms = AttentionNorms::PRE;
        if layer == 0 {
            norms.pre = None;
        }
        attention(builder, layer, norms)?;
        gated(builder, layer, Activation::Gelu, FeedForwardNorms::PRE)?;
    }
    head::output(builder)
}
