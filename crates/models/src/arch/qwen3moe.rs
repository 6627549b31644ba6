//! Qwen 3 with experts in place of its feed-forward layers; what the chosen ones count is divided by
//! its sum.
//!
//! Source: Yang et al. 2025, arXiv:2505.09388.

use super::{Architecture, qwen2, qwen3};
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::NOT_IN_FOLDERS;
use crate::spec::{ExpertSpec, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    names: &["qwen3moe"],
    hugging_face: NOT_IN_FOLDERS,
    read_config,
    build: qwen3::build,
};

fn read_config(config: &mut Config<'_>) -> Result<ModelSpec, LoadFault> {
    let mut spec = qwen2::read_config(config)?;
    let inner = spec.dimensions.feed_forward;
    spec.experts = ExpertSpec::read(config, inner)?;
    Ok(spec)
}
