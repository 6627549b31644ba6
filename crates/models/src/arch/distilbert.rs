//! DistilBERT: BERT with half of the layers and one type of tokens.
//!
//! Source: Sanh et al. 2019, arXiv:1910.01108.

use super::Architecture;
use crate::build::encoder;
use crate::error::LoadFault;
use crate::folder::{ENCODER, HeadPart, HuggingFace, Recipe, Task, Translation};
use forthwith_core::metadata::Value;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["distilbert"],
    hugging_face: HuggingFace {
        stems: &["DistilBert"],
        tasks: ENCODER,
        names: &[
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.position_embeddings", "position_embd"),
            ("embeddings.LayerNorm", "token_embd_norm"),
            ("attention.q_lin", "attn_q"),
            ("attention.k_lin", "attn_k"),
            ("attention.v_lin", "attn_v"),
            ("attention.out_lin", "attn_output"),
            ("sa_layer_norm", "attn_output_norm"),
            ("ffn.lin1", "ffn_up"),
            ("ffn.lin2", "ffn_down"),
            ("output_layer_norm", "layer_output_norm"),
        ],
        recipe: |_| Recipe::Stored,
        config: translate,
        head: |task| match task {
            Task::Classes => {
                const {
                    &[
                        HeadPart::activated("pre_classifier", "relu"),
                        HeadPart::product("classifier"),
                    ]
                }
            }
            Task::TokenClasses => const { &[HeadPart::product("classifier")] },
            Task::Tokens | Task::Vectors => &[],
        },
    },
    read_config: encoder::read_config,
    build: encoder::post_normed,
};

/// The epsilon of its norms is not in the configuration.
const EPSILON: f64 = 1e-12;

fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    config.must_be("activation", &Value::Text(b"gelu".to_vec()))?;
    config.rename("dim", "embedding_length");
    config.rename("hidden_dim", "feed_forward_length");
    config.rename("n_layers", "block_count");
    config.rename("n_heads", "attention.head_count");
    // Sinusoidal positions are computed once and stored like learned ones.
    for without_effect in [
        "sinusoidal_pos_embds",
        "dropout",
        "qa_dropout",
        "seq_classif_dropout",
        "tie_weights_",
    ] {
        config.get(without_effect);
    }
    config.set("attention.layer_norm_epsilon", Value::Float(EPSILON));
    config.set("attention.causal", Value::Bool(false));
    Ok(())
}
