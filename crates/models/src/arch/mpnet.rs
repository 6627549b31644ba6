//! MPNet: BERT's shape with a relative bias of scores, which all layers share, beside the positions.
//!
//! Source: Song et al. 2020, arXiv:2004.09297.

use super::{Architecture, bert};
use crate::build::encoder;
use crate::error::LoadFault;
use crate::folder::{ENCODER, HuggingFace, Translation};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["mpnet"],
    hugging_face: HuggingFace {
        stems: &["MPNet"],
        tasks: ENCODER,
        names: &[
            ("embeddings.word_embeddings", "token_embd"),
            ("embeddings.position_embeddings", "position_embd"),
            ("embeddings.LayerNorm", "token_embd_norm"),
            ("encoder.relative_attention_bias", "relative_attention_bias"),
            ("attention.attn.q", "attn_q"),
            ("attention.attn.k", "attn_k"),
            ("attention.attn.v", "attn_v"),
            ("attention.attn.o", "attn_output"),
            ("attention.LayerNorm", "attn_output_norm"),
            ("intermediate.dense", "ffn_up"),
            ("output.dense", "ffn_down"),
            ("output.LayerNorm", "layer_output_norm"),
        ],
        recipe: bert::from_padding,
        config: translate,
        head: bert::of_roberta,
    },
    read_config: encoder::read_config,
    build: encoder::post_normed,
};

fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    // The tensor tells the number of buckets.
    config.get("relative_attention_num_buckets");
    bert::translate(config)?;
    bert::positions_from_padding(config)
}
