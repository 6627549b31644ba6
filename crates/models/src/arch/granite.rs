//! Granite 3: Llama's shape with four multipliers: of embeddings, of scores, of what each part adds to
//! the residual, and a divisor of the logits.
//!
//! GGUF files of this family store queries and keys permuted, as Llama's do.
//!
//! Source: the configuration of IBM's Granite 3.0 language models; Yang et al. 2022,
//! arXiv:2203.03466 (the multipliers' purpose).

use super::{Architecture, llama};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Recipe, Translation, of_decoder};
use crate::rope::RopeSpec;
use crate::spec::{Dimensions, LayerSpec, ModelSpec, to_f32};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["granite"],
    hugging_face: HuggingFace {
        stems: &["Granite"],
        tasks: DECODER,
        names: &[],
        recipe: |_| Recipe::Stored,
        config: translate,
        head: of_decoder,
    },
    read_config,
    build: llama::build,
};

fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    config.rename("embedding_multiplier", "embedding_scale");
    config.rename("attention_multiplier", "attention.scale");
    config.rename("residual_multiplier", "residual_scale");
    config.rename("logits_scaling", "logit_scale");
    config.silu()
}

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    let dimensions = Dimensions::read(config)?;
    let pairing = config.pairing_of_llama()?;
    let rope = RopeSpec::read(config, &dimensions, pairing, 10_000.0)?;
    let mut layer = LayerSpec::usual(&dimensions);
    let mut multiplier = |part, usual: f32| {
        let stated = config.optional_float(part)?;
        Ok::<_, LoadFault>(stated.map_or(usual, to_f32))
    };
    layer.attention_scale = multiplier("attention.scale", layer.attention_scale)?;
    Ok(ModelSpec {
        embedding_scale: multiplier("embedding_scale", 1.0)?,
        residual_scale: multiplier("residual_scale", 1.0)?,
        logits_scale: 1.0 / multiplier("logit_scale", 1.0)?,
        ..ModelSpec::uniform(dimensions, rope, layer)
    })
}
