//! The registry of architectures: one file each, one line each.

mod bert;
mod distilbert;
mod gemma2;
mod gemma3;
mod gpt2;
mod gptneox;
mod granite;
mod llama;
mod modernbert;
mod mpnet;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3moe;
mod smollm3;
#[cfg(test)]
mod tests;

use crate::build::ProgramBuilder;
use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::{HuggingFace, Task};
use crate::spec::{ModelSpec, PoolSpec};
use forthwith_core::metadata::require;
use forthwith_core::program::Program;
use forthwith_core::units::Tokens;
use forthwith_weights::WeightFile;

/// A family of models that share their arithmetic.
pub(crate) struct Architecture {
    /// What files call it in `general.architecture`.
    pub(crate) names: &'static [&'static str],
    /// What it looks like in a model folder.
    pub(crate) hugging_face: HuggingFace,
    /// Reads every key of the family that changes the arithmetic.
    pub(crate) read_config: fn(&mut Config<'_>) -> Result<ModelSpec, LoadFault>,
    /// Composes the program from the phase builders.
    pub(crate) build: fn(&mut ProgramBuilder<'_>) -> Result<(), LoadFault>,
}

const ALL: &[Architecture] = &[
    bert::ARCHITECTURE,
    bert::ROBERTA,
    distilbert::ARCHITECTURE,
    gemma2::ARCHITECTURE,
    gemma3::ARCHITECTURE,
    gpt2::ARCHITECTURE,
    gptneox::ARCHITECTURE,
    granite::ARCHITECTURE,
    llama::ARCHITECTURE,
    modernbert::ARCHITECTURE,
    mpnet::ARCHITECTURE,
    olmo2::ARCHITECTURE,
    phi3::ARCHITECTURE,
    qwen2::ARCHITECTURE,
    qwen3::ARCHITECTURE,
    qwen3moe::ARCHITECTURE,
    smollm3::ARCHITECTURE,
];

const NAME_KEY: &str = "general.architecture";

/// The names of all architectures.
pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter()
        .flat_map(|family| family.names)
        .copied()
        .collect()
}

/// The classes of model folders that are read.
pub(crate) fn classes() -> Vec<String> {
    let of_folders = |family: &'static Architecture| {
        let HuggingFace { stems, tasks, .. } = &family.hugging_face;
        let ending = |task: &Task| task.endings()[0];
        let endings = tasks.iter().map(ending);
        stems
            .iter()
            .flat_map(move |stem| endings.clone().map(move |ending| format!("{stem}{ending}")))
    };
    ALL.iter().flat_map(of_folders).collect()
}

/// The family of a class: its name in GGUF files, what its folders look like, and the task.
pub(crate) fn of_class(class: &str) -> Option<(&'static str, &'static HuggingFace, Task)> {
    for family in ALL {
        let folder = &family.hugging_face;
        for stem in folder.stems {
            let Some(ending) = class.strip_prefix(stem) else {
                continue;
            };
            let mut tasks = folder.tasks.iter();
            if let Some(&task) = tasks.find(|task| task.endings().contains(&ending)) {
                return Some((family.names[0], folder, task));
            }
        }
    }
    None
}

/// Reads a file's spec with the architecture that the file names.
pub(crate) fn read_spec(
    file: &WeightFile,
) -> Result<(&'static Architecture, ModelSpec), LoadFault> {
    let name = architecture_name(file)?;
    let family = ALL.iter().find(|family| family.names.contains(&name));
    let family = family.ok_or_else(|| LoadFault::Architecture {
        found: name.escape_debug().to_string(),
        supported: names(),
    })?;
    let mut config = Config::new(file.metadata(), name);
    let mut spec = (family.read_config)(&mut config)?;
    spec.pool = PoolSpec::read(file.metadata())?;
    config.finish()?;
    Ok((family, spec))
}

/// Writes the program of a file, for a context or the trained one.
pub(crate) fn build(file: &WeightFile, context: Option<Tokens>) -> Result<Program, LoadFault> {
    let (family, spec) = read_spec(file)?;
    let context = context.unwrap_or(spec.dimensions.context);
    let mut builder = ProgramBuilder::new(file, &spec, context)?;
    (family.build)(&mut builder)?;
    builder.finish(architecture_name(file)?)
}

fn architecture_name(file: &WeightFile) -> Result<&str, LoadFault> {
    Ok(require(NAME_KEY, file.metadata().text(NAME_KEY)?)?)
}
