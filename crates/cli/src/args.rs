//! The command line: every flag, its range and its environment variable.
//!
//! These types hold what was written; `None` is "not said". Nothing else in the program reads
//! the environment.

mod access;
mod bench;
mod limits;
mod texts;

pub(crate) use access::AccessArgs;
pub(crate) use bench::{BenchArgs, BenchCommand, BenchEngineArgs};
pub(crate) use limits::LimitArgs;
pub(crate) use texts::{ClassifyArgs, EmbedArgs, RerankArgs, TextArgs, VectorArgs};

use crate::duration::{self, Span};
use crate::schedule::{Gap, Switch};
use crate::size;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Parser, Subcommand};
use forthwith_core::units::Bytes;
use forthwith_cpu::{IsaChoice, KvFormat};
use forthwith_hub::{DEFAULT_MODEL, Hub};
use std::net::IpAddr;
use std::path::PathBuf;

/// Runs and serves language models.
#[derive(Debug, Parser)]
#[command(name = "forthwith", version, disable_help_subcommand = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) shared: SharedArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Models are named by alias (see `forthwith list`), by the path of a GGUF file or of a model's folder,
or as hf:owner/repo[:file].

Examples:
  forthwith run \"Why is the sky blue?\"
  forthwith serve --port 8080
  forthwith inspect toy

Exit codes: 0 done, 1 failed, 2 bad input or bad file.";

/// Flags that every subcommand takes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SharedArgs {
    /// Folder for fetched models [default: forthwith in the user's cache folder]
    #[arg(long, value_name = "DIR", env = "FORTHWITH_CACHE", global = true)]
    pub(crate) cache: Option<PathBuf>,
    /// Never fetch anything: use cached and local models only
    #[arg(
        long,
        env = "FORTHWITH_OFFLINE",
        action = ArgAction::SetTrue,
        value_parser = BoolishValueParser::new(),
        global = true
    )]
    pub(crate) offline: bool,
}

impl SharedArgs {
    /// The hub that these flags describe.
    pub(crate) fn hub(&self) -> Hub {
        let cache = self.cache.clone().unwrap_or_else(Hub::default_cache);
        Hub::new(cache, self.offline)
    }
}

/// What to do. Each subcommand's help is the comment on its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Serve(Box<ServeArgs>),
    Embed(EmbedArgs),
    Rerank(RerankArgs),
    Classify(ClassifyArgs),
    Pull(PullArgs),
    List(ListArgs),
    Inspect(InspectArgs),
    Doctor(DoctorArgs),
    Bench(BenchArgs),
}

/// How the processor is used.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ComputeArgs {
    /// Threads that compute, at most one for each CPU that this process may use [default: all of these]
    #[arg(long, value_name = "N", env = "FORTHWITH_THREADS", allow_negative_numbers = true, value_parser = count::<1, 1024>)]
    pub(crate) threads: Option<usize>,
    /// Instruction set: scalar, avx2, avxvnni or avx512; on ARM neon, dotprod or i8mm [default: the fastest present]
    #[arg(long, value_name = "NAME", env = "FORTHWITH_ISA", value_parser = IsaChoice::named)]
    pub(crate) isa: Option<IsaChoice>,
    /// Storage of cached keys and values: f16, bf16, f32 or q8_0 [default: f16, or f32 where nothing is kept]
    #[arg(long, value_name = "FORMAT", env = "FORTHWITH_KV_FORMAT", value_parser = KvFormat::named)]
    pub(crate) kv_format: Option<KvFormat>,
    /// Put float weights into a smaller format while loading: q8_0, q4_0, q4_1 or q4_k [default: as stored]
    #[arg(
        long,
        value_name = "FORMAT",
        env = "FORTHWITH_QUANTIZE",
        hide_possible_values = true
    )]
    pub(crate) quantize: Option<Quantize>,
}

/// Whether a model is checked before it answers.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct CheckArgs {
    /// Compare the model's first answer with that of slow plain loops before anything is answered: on
    /// or off [default: on for serve, off for single answers]
    #[arg(
        long,
        value_name = "on|off",
        env = "FORTHWITH_SELF_CHECK",
        hide_possible_values = true
    )]
    pub(crate) self_check: Option<Switch>,
}

impl CheckArgs {
    pub(crate) fn or(self, default: bool) -> bool {
        self.self_check.map_or(default, Switch::is_on)
    }
}

/// Formats into which float weights can be put while they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Quantize {
    /// 8 bits, scales for 32.
    #[value(name = "q8_0")]
    Q8_0,
    /// 4 bits, scales for 32.
    #[value(name = "q4_0")]
    Q4_0,
    /// 4 bits, scales and offsets for 32.
    #[value(name = "q4_1")]
    Q4_1,
    /// 4 bits, scales for 32 in blocks of 256.
    #[value(name = "q4_k")]
    Q4K,
}

/// Answers a prompt, or opens a chat when there is none.
///
/// Only the answer goes to standard output. Without PROMPT, piped standard input is the prompt,
/// and a terminal opens a chat that remembers what was said.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith run \"Why is the sky blue?\"
  forthwith run --temperature 0 --max-tokens 40 --stats \"List three rivers.\"
  forthwith run --model gemma3-270m --raw --echo --max-tokens 30 \"The capital of France is\"
  forthwith run --model ./model.gguf < question.txt
  forthwith run --model toy --temperature 0 --max-tokens 6 --echo \"the server\"")]
pub(crate) struct RunArgs {
    /// Model: alias, path or hf:owner/repo[:file]
    #[arg(long, short, value_name = "NAME|PATH", env = "FORTHWITH_MODEL", default_value = DEFAULT_MODEL)]
    pub(crate) model: String,
    /// Most tokens to generate [default: what the context leaves]
    #[arg(long, short = 'n', value_name = "N", env = "FORTHWITH_MAX_TOKENS", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_tokens: Option<u64>,
    /// Randomness, 0 to 2; 0 always takes the most likely token [default: the model's, else 0.2]
    #[arg(long, short, value_name = "T", env = "FORTHWITH_TEMPERATURE", allow_negative_numbers = true, value_parser = number::<2>)]
    pub(crate) temperature: Option<f32>,
    /// Draw from the K most likely tokens; 0 is all [default: the model's, else 0]
    #[arg(
        long,
        value_name = "K",
        env = "FORTHWITH_TOP_K",
        allow_negative_numbers = true
    )]
    pub(crate) top_k: Option<u32>,
    /// Draw from the most likely tokens that together reach probability P [default: the model's, else 0.95]
    #[arg(long, value_name = "P", env = "FORTHWITH_TOP_P", allow_negative_numbers = true, value_parser = number::<1>)]
    pub(crate) top_p: Option<f32>,
    /// Random seed; equal seeds give equal answers [default: a new one each time]
    #[arg(
        long,
        value_name = "S",
        env = "FORTHWITH_SEED",
        allow_negative_numbers = true
    )]
    pub(crate) seed: Option<u64>,
    /// Give the prompt to the model as it is, without the chat template
    #[arg(long, env = "FORTHWITH_RAW", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(crate) raw: bool,
    /// Repeat the prompt before its continuation
    #[arg(long, env = "FORTHWITH_ECHO", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(crate) echo: bool,
    /// Print time to first token, time per token and tokens per second
    #[arg(long, env = "FORTHWITH_STATS", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(crate) stats: bool,
    /// Chat template (Jinja) to use instead of the model's own
    #[arg(
        long,
        value_name = "FILE",
        env = "FORTHWITH_CHAT_TEMPLATE",
        conflicts_with = "raw"
    )]
    pub(crate) chat_template: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) check: CheckArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// What to answer or continue
    #[arg(allow_negative_numbers = true)]
    pub(crate) prompt: Option<String>,
}

/// Serves models over HTTP, in the form of the OpenAI API.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith serve
  forthwith serve --model smollm2 --model ./other.gguf --port 9000
  forthwith serve --host 0.0.0.0 --api-key-file keys.txt --context 4096 --max-running 32

  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'")]
pub(crate) struct ServeArgs {
    /// Model: alias, path or hf:owner/repo[:file]; repeat to serve several, then requests name theirs
    #[arg(long, short, value_name = "NAME|PATH", env = "FORTHWITH_MODEL", default_value = DEFAULT_MODEL, action = ArgAction::Append)]
    pub(crate) model: Vec<String>,
    /// Address to listen on; 0.0.0.0 opens the server to the network
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "FORTHWITH_HOST",
        default_value = "127.0.0.1"
    )]
    pub(crate) host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(
        long,
        short,
        value_name = "PORT",
        env = "FORTHWITH_PORT",
        allow_negative_numbers = true,
        default_value_t = 8080
    )]
    pub(crate) port: u16,
    /// Most tokens of a prompt and its answer together [default: what the model was trained for]
    #[arg(long, value_name = "N", env = "FORTHWITH_CONTEXT", allow_negative_numbers = true, value_parser = count::<2, 16_777_216>)]
    pub(crate) context: Option<usize>,
    /// Memory for cached keys and values, as 2GiB or 512MiB [default: a share of what is free]
    #[arg(long, value_name = "SIZE", env = "FORTHWITH_KV_MEMORY", allow_negative_numbers = true, value_parser = size::parse)]
    pub(crate) kv_memory: Option<Bytes>,
    /// Chat template (Jinja) to use instead of the models' own
    #[arg(long, value_name = "FILE", env = "FORTHWITH_CHAT_TEMPLATE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// How tokens are drawn where a request says nothing: as the model's files suggest (model), or with
    /// temperature 1 and no limits (openai)
    #[arg(
        long,
        value_name = "WHOSE",
        env = "FORTHWITH_SAMPLING_DEFAULTS",
        default_value = "model",
        hide_possible_values = true
    )]
    pub(crate) sampling_defaults: SamplingDefaults,
    #[command(flatten)]
    pub(crate) vectors: VectorArgs,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) schedule: ScheduleArgs,
    #[command(flatten)]
    pub(crate) check: CheckArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

/// Whose sampling parameters hold where a request says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SamplingDefaults {
    /// What the model's files suggest.
    Model,
    /// Those of the OpenAI API.
    Openai,
}

/// How requests share the engine.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Scheduling")]
pub(crate) struct ScheduleArgs {
    /// Most requests that run at once; others wait [default: 64]
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_RUNNING", allow_negative_numbers = true, value_parser = count::<1, 512>)]
    pub(crate) max_running: Option<usize>,
    /// Most requests that wait; others are refused [default: 1024]
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_WAITING", allow_negative_numbers = true, value_parser = count::<1, 1_000_000>)]
    pub(crate) max_waiting: Option<usize>,
    /// Most prompt tokens that wait, unless nobody waits [default: 1048576]
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_WAITING_TOKENS", allow_negative_numbers = true, value_parser = count::<1, 1_000_000_000>)]
    pub(crate) max_waiting_tokens: Option<usize>,
    /// Most tokens that go through the model at once [default: 512]
    #[arg(long, value_name = "N", env = "FORTHWITH_STEP_TOKENS", allow_negative_numbers = true, value_parser = count::<32, 8192>)]
    pub(crate) step_tokens: Option<usize>,
    /// Whether requests that begin alike share what is computed [default: on]
    #[arg(
        long,
        value_name = "on|off",
        env = "FORTHWITH_PREFIX_CACHE",
        hide_possible_values = true
    )]
    pub(crate) prefix_cache: Option<Switch>,
    /// Longest time between two tokens while prompts are computed: off, a time, a percentage of what
    /// it would be without prompts, or the longer of both [default: 100ms,400%]
    #[arg(long, value_name = "TARGET", env = "FORTHWITH_TARGET_GAP", allow_negative_numbers = true, value_parser = Gap::parse)]
    pub(crate) target_gap: Option<Gap>,
    /// How long a step may take before the server calls itself not ready [default: 1m]
    #[arg(long, value_name = "TIME", env = "FORTHWITH_STUCK_AFTER", allow_negative_numbers = true, value_parser = duration::parse::<100, 86_400_000>)]
    pub(crate) stuck_after: Option<Span>,
    /// How long a client may take nothing of its answer before it is given up [default: 30s]
    #[arg(long, value_name = "TIME", env = "FORTHWITH_STALL_TIMEOUT", allow_negative_numbers = true, value_parser = duration::parse::<100, 86_400_000>)]
    pub(crate) stall_timeout: Option<Span>,
}

/// Fetches models into the cache and prints their paths.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith pull
  forthwith pull smollm2 gemma3-270m
  forthwith pull hf:owner/repo:model.gguf
  forthwith pull --verify smollm2")]
pub(crate) struct PullArgs {
    /// Hash cached models again, and fetch those that are damaged
    #[arg(long, env = "FORTHWITH_VERIFY", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(crate) verify: bool,
    /// Models: alias or hf:owner/repo[:file]
    #[arg(value_name = "NAME", default_value = DEFAULT_MODEL)]
    pub(crate) models: Vec<String>,
}

/// Lists the known models, their sizes, and whether they are cached.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith list
  forthwith list --cache /srv/models")]
pub(crate) struct ListArgs {}

/// Shows a model's shapes, formats, memory per token, tokenizer, chat template and program.
///
/// A model that is not on this machine yet is fetched first; --offline prevents that.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith inspect smollm2
  forthwith inspect ./model.gguf --json
  forthwith inspect toy")]
pub(crate) struct InspectArgs {
    /// Print everything as JSON
    #[arg(long, env = "FORTHWITH_JSON", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    /// Model: alias, path or hf:owner/repo[:file]
    #[arg(value_name = "NAME|PATH", default_value = DEFAULT_MODEL)]
    pub(crate) model: String,
}

/// Checks a model: its numbers, tokenizer, template, and the kernels against a reference.
///
/// Prints what was found and decided, and by which file. Exit code 1 if anything is wrong.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith doctor smollm2
  forthwith doctor ./all-MiniLM-L6-v2 --isa scalar")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// Model: alias, a GGUF file, a model's folder or hf:owner/repo[:file]
    #[arg(value_name = "NAME|PATH", default_value = DEFAULT_MODEL)]
    pub(crate) model: String,
}

/// A whole number from `MIN` to `MAX`.
fn count<const MIN: usize, const MAX: usize>(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(value) if (MIN..=MAX).contains(&value) => Ok(value),
        _ => Err(format!("expected a whole number from {MIN} to {MAX}")),
    }
}

/// A finite number from 0 to `MAX`.
fn number<const MAX: u16>(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(value) if (0.0..=f32::from(MAX)).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from 0 to {MAX}")),
    }
}

#[cfg(test)]
mod tests;
