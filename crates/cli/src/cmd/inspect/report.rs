//! What can be said about a model file.

use forthwith_core::program::{GateUp, Phase, Program, Up};
use forthwith_core::units::TokenId;
use forthwith_text::{ChatTemplate, TemplateError, Tokenizer, TokenizerError};
use forthwith_weights::WeightFile;
use serde::Serialize;
use std::collections::BTreeMap;

const HALF_FLOAT: u64 = 2;

/// Everything that `inspect` knows; the JSON form is this struct.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) path: String,
    pub(super) architecture: Option<String>,
    pub(super) name: Option<String>,
    pub(super) parameters: u64,
    pub(super) file_bytes: u64,
    pub(super) weight_bytes: u64,
    pub(super) formats: Vec<FormatCount>,
    pub(super) shape: Option<Shape>,
    pub(super) tokenizer: Option<TokenizerReport>,
    pub(super) chat_template: Option<String>,
    pub(super) phases: Vec<String>,
    pub(super) tensors: Vec<Tensor>,
    /// Why the model could not be run; empty for a sound file.
    pub(super) problems: Vec<String>,
}

/// How many tensors are stored in a format.
#[derive(Debug, Serialize)]
pub(super) struct FormatCount {
    pub(super) format: &'static str,
    pub(super) tensors: usize,
    pub(super) bytes: u64,
}

/// The program's dimensions. Lists hold the distinct values over all layers.
#[derive(Debug, Serialize)]
pub(super) struct Shape {
    pub(super) hidden: usize,
    pub(super) vocab: usize,
    pub(super) layers: usize,
    pub(super) heads: Vec<usize>,
    pub(super) kv_heads: Vec<usize>,
    pub(super) head_dim: Vec<usize>,
    pub(super) feed_forward: Vec<usize>,
    pub(super) windows: Vec<usize>,
    pub(super) context: usize,
    /// Keys and values of one position as half floats.
    pub(super) kv_bytes_per_token: u64,
}

/// The tokenizer in short.
#[derive(Debug, Serialize)]
pub(super) struct TokenizerReport {
    pub(super) kind: String,
    pub(super) vocab: usize,
    pub(super) adds_bos: bool,
    pub(super) bos: Option<SpecialToken>,
    pub(super) end: Vec<SpecialToken>,
}

/// A token with a meaning of its own.
#[derive(Debug, Serialize)]
pub(super) struct SpecialToken {
    pub(super) id: u32,
    pub(super) text: String,
}

/// A stored tensor.
#[derive(Debug, Serialize)]
pub(super) struct Tensor {
    name: String,
    format: &'static str,
    rows: usize,
    cols: usize,
}

/// The tokenizer of a GGUF file or a model's folder.
fn tokenizer_of(file: &WeightFile) -> Result<Tokenizer, TokenizerError> {
    if file.path().is_dir() {
        return Tokenizer::from_folder(file.path());
    }
    Tokenizer::from_gguf(file.metadata())
}

/// The chat template of a GGUF file or a model's folder.
fn template_of(
    file: &WeightFile,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>, TemplateError> {
    if file.path().is_dir() {
        return ChatTemplate::from_folder(file.path(), tokenizer);
    }
    ChatTemplate::from_gguf(file.metadata(), tokenizer)
}

impl Report {
    pub(super) fn of(file: &WeightFile) -> Self {
        let mut problems = Vec::new();
        let mut keep = |error: &dyn std::fmt::Display| problems.push(error.to_string());
        let program = forthwith_models::build(file)
            .map_err(|error| keep(&error))
            .ok();
        let tokenizer = tokenizer_of(file).map_err(|error| keep(&error)).ok();
        let template = tokenizer.as_ref().and_then(|tokenizer| {
            template_of(file, tokenizer)
                .map_err(|error| keep(&error))
                .ok()
                .flatten()
        });
        let text = |key| file.metadata().text(key).ok().flatten().map(str::to_owned);
        let listing = program.as_ref().map(Program::to_string);
        Self {
            path: file.path().display().to_string(),
            architecture: text("general.architecture"),
            name: text("general.name"),
            parameters: file
                .tensors()
                .map(|tensor| tensor.rows as u64 * tensor.cols as u64)
                .sum(),
            file_bytes: file.file_bytes().get(),
            weight_bytes: file.tensors().map(|tensor| tensor.bytes.len() as u64).sum(),
            formats: formats(file),
            shape: program.as_ref().map(shape),
            tokenizer: tokenizer.as_ref().map(tokenizer_report),
            chat_template: template.map(|template| template.source().to_owned()),
            phases: listing.map_or_else(Vec::new, |listing| {
                listing.lines().map(str::to_owned).collect()
            }),
            tensors: file
                .tensors()
                .map(|tensor| Tensor {
                    name: tensor.name.to_owned(),
                    format: tensor.format.name(),
                    rows: tensor.rows,
                    cols: tensor.cols,
                })
                .collect(),
            problems,
        }
    }
}

/// The formats, most bytes first.
fn formats(file: &WeightFile) -> Vec<FormatCount> {
    let mut counts = BTreeMap::new();
    for tensor in file.tensors() {
        let count = counts.entry(tensor.format).or_insert(FormatCount {
            format: tensor.format.name(),
            tensors: 0,
            bytes: 0,
        });
        count.tensors += 1;
        count.bytes += tensor.bytes.len() as u64;
    }
    let mut counts: Vec<FormatCount> = counts.into_values().collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.bytes));
    counts
}

fn shape(program: &Program) -> Shape {
    let heads = program.phases.iter().filter_map(|phase| match phase {
        Phase::Attention(attention) => Some(attention.heads),
        _ => None,
    });
    let feed_forward = program.phases.iter().filter_map(|phase| match phase {
        Phase::GateUp(GateUp { up, .. }) | Phase::Up(Up { up, .. }) => {
            Some(program.weight(up.weight).rows)
        }
        Phase::Experts(experts) => Some(program.weight(experts.down).cols),
        _ => None,
    });
    let layers = &program.kv_layers;
    let windows = layers.iter().filter_map(|layer| Some(layer.window?.get()));
    Shape {
        hidden: program.hidden,
        vocab: program.vocab,
        layers: layers.len(),
        heads: distinct(heads),
        kv_heads: distinct(layers.iter().map(|layer| layer.kv_heads)),
        head_dim: distinct(layers.iter().map(|layer| layer.head_dim)),
        feed_forward: distinct(feed_forward),
        windows: distinct(windows),
        context: program.context.get(),
        kv_bytes_per_token: program.kv_elements_per_token() as u64 * HALF_FLOAT,
    }
}

fn distinct(values: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut values: Vec<usize> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn tokenizer_report(tokenizer: &Tokenizer) -> TokenizerReport {
    let special = |id: TokenId| SpecialToken {
        id: id.get(),
        text: String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned(),
    };
    TokenizerReport {
        kind: tokenizer.kind().to_owned(),
        vocab: tokenizer.vocab_size(),
        adds_bos: tokenizer.adds_bos(),
        bos: tokenizer.bos().map(special),
        end: tokenizer
            .end_tokens()
            .iter()
            .copied()
            .map(special)
            .collect(),
    }
}
