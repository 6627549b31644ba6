//! Qwen 3: Qwen 2 with norms of each query and key head in place of the biases.
//!
//! Source: Yang et al. 2025, arXiv:2505.09388.

use super::{Architecture, qwen2};
use crate::build::attention::{AttentionNorms, HeadNorms, attention};
use crate::build::experts::feed_forward;
use crate::build::{ProgramBuilder, embedding, head};
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Recipe, of_decoder};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["qwen3"],
    hugging_face: HuggingFace {
        stems: &["Qwen3"],
        tasks: DECODER,
        names: &[],
        recipe: |_| Recipe::Stored,
        config: qwen2::translate,
        head: of_decoder,
    },
    read_config: qwen2::read_config,
    build,
};

pub(super) fn build(builder: &mut ProgramBuilder<'_>) -> Result<(), LoadFault> {
    let norms = AttentionNorms {
        heads: HeadNorms::Each,
        ..AttentionNorms::PRE
    };
    embedding::embed(builder)?;
    for layer in 0..builder.spec().layers.len() {
        attention(builder, layer, norms)?;
        feed_forward(builder, layer)?;
    }
    head::output(builder)
}
