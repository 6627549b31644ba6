//! `SmolLM3`: Llama's shape, of which every fourth layer does not rotate.
//!
//! GGUF files of this family store queries and keys permuted, as Llama's do.
//!
//! Source: the configuration of Hugging Face's `SmolLM3`; Yang et al. 2025, arXiv:2501.18795 (layers
//! without positions).

use super::{Architecture, llama};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{DECODER, HuggingFace, Recipe, Translation, of_decoder};
use crate::rope::RopeSpec;
use crate::spec::{Dimensions, LayerSpec, ModelSpec};
use forthwith_core::metadata::Value;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["smollm3"],
    hugging_face: HuggingFace {
        stems: &["SmolLM3"],
        tasks: DECODER,
        names: &[],
        recipe: |_| Recipe::Stored,
        config: translate,
        head: of_decoder,
    },
    read_config,
    build: llama::build,
};

const USUAL_INTERVAL: usize = 4;
/// Which layers rotate; files of ours alone have it.
const ROTATES: &str = "rope.layers";

fn translate(config: &mut Translation<'_>) -> Result<(), LoadFault> {
    config.silu()?;
    config.must_be("use_sliding_window", &Value::Bool(false))?;
    config.windows(|_| false)?;
    let layers = config.size("num_hidden_layers")?.unwrap_or(0).min(1 << 16);
    let interval = config.size("no_rope_layer_interval")?;
    let interval = interval.unwrap_or(USUAL_INTERVAL);
    let rotates: Vec<bool> = match config.get("no_rope_layers") {
        Some(Value::Integers(listed)) => listed.iter().map(|&rotates| rotates != 0).collect(),
        _ => (1..=layers)
            .map(|number| interval == 0 || !number.is_multiple_of(interval))
            .collect(),
    };
    config.set(ROTATES, Value::Bools(rotates));
    Ok(())
}

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    let dimensions = Dimensions::read(config)?;
    let pairing = config.pairing_of_llama()?;
    let rope = RopeSpec::read(config, &dimensions, pairing, 5_000_000.0)?;
    let mut spec = ModelSpec::uniform(dimensions, rope, LayerSpec::usual(&dimensions));
    let rotates = match config.bools(ROTATES, dimensions.layers)? {
        Some(rotates) => rotates,
        None => (1..=dimensions.layers)
            .map(|number| !number.is_multiple_of(USUAL_INTERVAL))
            .collect(),
    };
    for (layer, rotates) in spec.layers.iter_mut().zip(rotates) {
        layer.rope = rotates.then_some(0);
    }
    Ok(spec)
}
