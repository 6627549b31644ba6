//! The registry of architectures: one file each, one line each.

mod gemma3;
mod llama;
#[cfg(test)]
mod tests;

use crate::build::ProgramBuilder;
use crate::config::Config;
use crate::error::LoadFault;
use crate::spec::ModelSpec;
use forthwith_core::metadata::require;
use forthwith_core::program::Program;
use forthwith_weights::WeightFile;

/// A family of models that share their arithmetic.
pub(crate) struct Architecture {
    /// What files call it in `general.architecture`.
    pub(crate) names: &'static [&'static str],
    /// Reads every key of the family that changes the arithmetic.
    pub(crate) read_config: fn(&mut Config<'_>) -> Result<ModelSpec, LoadFault>,
    /// Composes the program from the phase builders.
    pub(crate) build: fn(&mut ProgramBuilder<'_>) -> Result<(), LoadFault>,
}

const ALL: &[Architecture] = &[gemma3::ARCHITECTURE, llama::ARCHITECTURE];

const NAME_KEY: &str = "general.architecture";

/// The names of all architectures.
pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter()
        .flat_map(|family| family.names)
        .copied()
        .collect()
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
    let spec = (family.read_config)(&mut config)?;
    config.finish()?;
    Ok((family, spec))
}

/// Writes the program of a file.
pub(crate) fn build(file: &WeightFile) -> Result<Program, LoadFault> {
    let (family, spec) = read_spec(file)?;
    let mut builder = ProgramBuilder::new(file, &spec)?;
    (family.build)(&mut builder)?;
    builder.finish(architecture_name(file)?)
}

fn architecture_name(file: &WeightFile) -> Result<&str, LoadFault> {
    Ok(require(NAME_KEY, file.metadata().text(NAME_KEY)?)?)
}
