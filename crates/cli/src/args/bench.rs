//! The arguments of `forthwith bench`.

use super::{ComputeArgs, count};
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Subcommand};
use forthwith_hub::DEFAULT_MODEL;

/// Measures what this machine gives.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith bench engine
  forthwith bench engine --model smollm2 --prefill 512 --json")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: BenchCommand,
}

/// What to measure. Each subcommand's help is the comment on its arguments.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Engine(BenchEngineArgs),
}

/// Measures prefill and decode of a model, without queue, sampling or HTTP.
///
/// Prints medians beside what the machine gives at best in the same minute: bytes read from memory
/// and products of bytes. Phases are of the first prompt length and of the first batch and depth.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith bench engine
  forthwith bench engine --model ./model.gguf --threads 4 --prefill 512 --depth 0 --batch 1 --json")]
pub(crate) struct BenchEngineArgs {
    /// Model: alias, path or hf:owner/repo[:file]
    #[arg(long, short, value_name = "NAME|PATH", env = "FORTHWITH_MODEL", default_value = DEFAULT_MODEL)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// Lengths of prompts, in tokens
    #[arg(long, value_name = "N,…", env = "FORTHWITH_PREFILL", default_value = "512,2048", value_delimiter = ',', allow_negative_numbers = true, value_parser = count::<1, 1_000_000>)]
    pub(crate) prefill: Vec<usize>,
    /// Tokens that are decoded for each sequence
    #[arg(long, value_name = "N", env = "FORTHWITH_DECODE", default_value_t = 64, allow_negative_numbers = true, value_parser = count::<1, 100_000>)]
    pub(crate) decode: usize,
    /// Tokens before the first that is decoded
    #[arg(long, value_name = "N,…", env = "FORTHWITH_DEPTH", default_value = "0,2048", value_delimiter = ',', allow_negative_numbers = true, value_parser = count::<0, 1_000_000>)]
    pub(crate) depth: Vec<usize>,
    /// Sequences that are decoded together
    #[arg(long, value_name = "N,…", env = "FORTHWITH_BATCH", default_value = "1,32", value_delimiter = ',', allow_negative_numbers = true, value_parser = count::<1, 4096>)]
    pub(crate) batch: Vec<usize>,
    /// Measurements of each, of which the median counts
    #[arg(long, value_name = "N", env = "FORTHWITH_REPEAT", default_value_t = 5, allow_negative_numbers = true, value_parser = count::<1, 1000>)]
    pub(crate) repeat: usize,
    /// Print JSON
    #[arg(long, env = "FORTHWITH_JSON", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}
