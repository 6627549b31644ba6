//! BERT and RoBERTa: encoders with learned positions, norms after each addition, biases.
//!
//! RoBERTa (XLM-R too) counts positions from 2, has one type of tokens, and its head for labels is
//! a class of its own.
//!
//! Sources: Devlin et al. 2018, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692.

use super::Architecture;
use crate::build::encoder;
use crate::error::LoadFault;
use crate::folder::{ENCODER, HeadPart, HuggingFace, Recipe, Task, Translation};
use forthwith_core::metadata::Value;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["bert"],
    hugging_face: HuggingFace {
        stems: &["Bert"],
        tasks: ENCODER,
        names: NAMES,
        recipe: |_| Recipe::Stored,
        config: translate,
        head: |task| match task {
            Task::Classes => {
                const {
                    &[
                        HeadPart::activated("bert.pooler.dense", "tanh"),
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

pub(super) const ROBERTA: Architecture = Architecture {
    names: &["roberta"],
    hugging_face: HuggingFace {
        stems: &["Roberta", "XLMRoberta"],
        tasks: ENCODER,
        names: NAMES,
        recipe: from_padding,
        config: |config| {
            translate(config)?;
            positions_from_padding(config)
        },
        head: of_roberta,
    },
    read_config: encoder::read_config,
    build: encoder::post_normed,
};

const NAMES: &[(&str, &str)] = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
];

/// Positions are counted from the one after the padding token's.
const FIRST_POSITION: usize = 2;

/// The head of RoBERTa and those who took it over.
pub(super) fn of_roberta(task: Task) -> &'static [HeadPart] {
    const CLASSES: &[HeadPart] = &[
        HeadPart::activated("classifier.dense", "tanh"),
        HeadPart::product("classifier.out_proj"),
    ];
    const TOKENS: &[HeadPart] = &[HeadPart::product("classifier")];
    match task {
        Task::Classes => CLASSES,
        Task::TokenClasses => TOKENS,
        Task::Tokens | Task::Vectors => &[],
    }
}

pub(super) fn from_padding(part: &str) -> Recipe {
    match part {
        "position_embd" => Recipe::From(FIRST_POSITION),
        _ => Recipe::Stored,
    }
}

/// Writes how many positions there are, without those before the first.
pub(super) fn positions_from_padding(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    if let Some(positions) = config.size("max_position_embeddings")? {
        let positions = positions.saturating_sub(FIRST_POSITION);
        config.set("context_length", Value::Unsigned(positions as u64));
    }
    Ok(())
}

pub(super) fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    config.must_be("hidden_act", &Value::Text(b"gelu".to_vec()))?;
    let absolute = Value::Text(b"absolute".to_vec());
    config.must_be("position_embedding_type", &absolute)?;
    config.must_be("is_decoder", &Value::Bool(false))?;
    config.must_be("add_cross_attention", &Value::Bool(false))?;
    // The tensor tells the number of types.
    config.get("type_vocab_size");
    config.get("attention_probs_dropout_prob");
    config.get("hidden_dropout_prob");
    config.set("attention.causal", Value::Bool(false));
    Ok(())
}
