//! Phi-3 and Phi-4: Llama's shape with fused matrices, rotary pairs in halves, perhaps a part of each
//! head, and `LongRoPE`, whose factors depend on the context that is served.
//!
//! Source: Abdin et al. 2024, arXiv:2404.14219; Ding et al. 2024, arXiv:2402.13753.

use super::{Architecture, llama};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Recipe, Translation, of_decoder};
use crate::rope::RopeSpec;
use crate::spec::{Dimensions, LayerSpec, ModelSpec, read_windows};
use forthwith_core::program::Pairing;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["phi3"],
    hugging_face: HuggingFace {
        stems: &["Phi3"],
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
    config.windows(|_| true)?;
    config.silu()
}

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    let dimensions = Dimensions::read(config)?;
    let rope = RopeSpec::read(config, &dimensions, Pairing::Halves, 10_000.0)?;
    let mut spec = ModelSpec::uniform(dimensions, rope, LayerSpec::usual(&dimensions));
    read_windows(config, &mut spec.layers)?;
    Ok(spec)
}
