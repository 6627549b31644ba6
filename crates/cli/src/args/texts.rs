//! The arguments of `embed`, `rerank` and `classify`.

use super::{CheckArgs, ComputeArgs};
use crate::schedule::Switch;
use clap::ArgAction;
use clap::builder::BoolishValueParser;
use forthwith_hub::DEFAULT_MODEL;
use forthwith_models::Overrides;

/// What commands over texts share.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TextArgs {
    /// Model: a folder with config.json and safetensors files, an alias, a GGUF file or hf:owner/repo[:file]
    #[arg(long, short, value_name = "NAME|PATH", env = "FORTHWITH_MODEL", default_value = DEFAULT_MODEL)]
    pub(crate) model: String,
    /// Truncate texts that are longer than the model takes, which is said; without it they are refused
    #[arg(long, env = "FORTHWITH_TRUNCATE", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(crate) truncate: bool,
    #[command(flatten)]
    pub(crate) check: CheckArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

/// How rows become a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pooling {
    /// The first token's.
    First,
    /// The last token's.
    Last,
    /// The mean of all.
    Mean,
}

impl From<Pooling> for forthwith_core::program::Pooling {
    fn from(pooling: Pooling) -> Self {
        match pooling {
            Pooling::First => Self::First,
            Pooling::Last => Self::Last,
            Pooling::Mean => Self::Mean,
        }
    }
}

/// How a text becomes a vector, whatever the model's files say.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct VectorArgs {
    /// Which tokens make the vector of a text: first, last or mean [default: as the model's files say]
    #[arg(
        long,
        value_name = "HOW",
        env = "FORTHWITH_POOLING",
        hide_possible_values = true
    )]
    pub(crate) pooling: Option<Pooling>,
    /// Whether vectors are brought to length 1: on or off [default: as the model's files say]
    #[arg(
        long,
        value_name = "on|off",
        env = "FORTHWITH_NORMALIZE",
        hide_possible_values = true
    )]
    pub(crate) normalize: Option<Switch>,
}

impl VectorArgs {
    /// What is decided instead of the model's files.
    pub(crate) fn overrides(self) -> Overrides {
        Overrides {
            pooling: self.pooling.map(Into::into),
            normalize: self.normalize.map(Switch::is_on),
        }
    }
}

/// Prints a vector for each text, one JSON object a line.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith embed --model ./all-MiniLM-L6-v2 \"a sentence\" \"another one\"
  forthwith embed --model ./all-MiniLM-L6-v2 < lines.txt > vectors.jsonl")]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// Keep the first N numbers of each vector [default: all]
    #[arg(long, value_name = "N", env = "FORTHWITH_DIMENSIONS", allow_negative_numbers = true, value_parser = super::count::<1, 1_000_000>)]
    pub(crate) dimensions: Option<usize>,
    #[command(flatten)]
    pub(crate) vectors: VectorArgs,
    /// The texts [default: the lines of standard input]
    pub(crate) texts: Vec<String>,
}

/// Prints documents in the order in which they answer a query, best first, one JSON object a line.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith rerank --model ./reranker \"how do I reset it?\" \"Hold the button.\" \"It is blue.\"
  forthwith rerank --model ./all-MiniLM-L6-v2 --top 3 \"a query\" < documents.txt")]
pub(crate) struct RerankArgs {
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// Print the best N only
    #[arg(long, value_name = "N", env = "FORTHWITH_TOP", allow_negative_numbers = true, value_parser = super::count::<1, 1_000_000>)]
    pub(crate) top: Option<usize>,
    /// What the documents are to answer
    pub(crate) query: String,
    /// The documents [default: the lines of standard input]
    pub(crate) documents: Vec<String>,
}

/// Prints the labels of each text with their scores, one JSON object a line.
///
/// A model with labels of its own gives those. Any model that generates text can be asked how
/// likely it is to answer with each of `--labels`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forthwith classify --model ./sentiment \"what a day\"
  forthwith classify --labels spam,ham \"You won a prize, click here\"
  forthwith classify --labels sport,politics --instruction \"What is the news about?\" < news.txt")]
pub(crate) struct ClassifyArgs {
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// Labels for a model that generates, separated by commas
    #[arg(
        long,
        value_name = "A,B,…",
        env = "FORTHWITH_LABELS",
        value_delimiter = ','
    )]
    pub(crate) labels: Vec<String>,
    /// What to ask a model that generates [default: which of the labels fits]
    #[arg(long, value_name = "TEXT", env = "FORTHWITH_INSTRUCTION")]
    pub(crate) instruction: Option<String>,
    /// The texts [default: the lines of standard input]
    pub(crate) texts: Vec<String>,
}
