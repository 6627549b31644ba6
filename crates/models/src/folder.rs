//! Model folders: the keys of `config.json` and the names of safetensors files become those of GGUF.
//!
//! Each architecture therefore has one reader and one builder. What a family calls its classes and
//! tensors, and what its configuration has beyond the usual keys, stands in its own file.

pub(crate) mod head;
mod rope;
#[cfg(test)]
mod tests;

use crate::arch;
use crate::converted;
use crate::error::{LoadError, LoadFault};
use crate::suggestion;
use forthwith_core::metadata::{Metadata, Value, require};
use forthwith_core::program::Pooling;
use forthwith_weights::{Data, Folder, Made, OpenError, Raw, WeightFile};
use std::collections::BTreeSet;
use std::path::Path;

/// Keys under which a file tells where it comes from and what was not understood.
pub(crate) const ROTARY_HALVES: &str = "forthwith.rotary_halves";
pub(crate) const IGNORED_KEYS: &str = "forthwith.ignored_config_keys";

pub(crate) use head::{DECODER, ENCODER, HeadPart, Task, of_decoder};

/// What a family looks like in a model folder.
pub(crate) struct HuggingFace {
    /// What `config.json` says in `architectures`, up to the task.
    pub(crate) stems: &'static [&'static str],
    /// What the family's models are made for.
    pub(crate) tasks: &'static [Task],
    /// Parts of tensor names beyond the usual ones, and what they are called in GGUF files.
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// How a tensor becomes what GGUF files hold, by its name there without `.weight` or `.bias`.
    pub(crate) recipe: fn(&str) -> Recipe,
    /// Reads what the family has beyond the usual keys.
    pub(crate) config: fn(&mut Translation<'_>) -> Result<(), LoadFault>,
    /// The layers of the head for a task.
    pub(crate) head: fn(Task) -> &'static [HeadPart],
}

/// A family that is read from GGUF files alone.
pub(crate) const NOT_IN_FOLDERS: HuggingFace = HuggingFace {
    stems: &[],
    tasks: &[],
    names: &[],
    recipe: |_| Recipe::Stored,
    config: |_| Ok(()),
    head: of_decoder,
};

/// How a tensor becomes what GGUF files hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipe {
    /// As it is.
    Stored,
    /// Matrices with rows and columns exchanged.
    Transposed,
    /// With 1 added to each element.
    PlusOne,
    /// Without so many of its first rows.
    From(usize),
    /// From query, key and value of each head in turn to all queries, all keys, all values.
    HeadByHead,
}

/// A folder cannot become a model file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The files cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What they say makes no model.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Opens a model: a GGUF file, or a folder with `config.json` and safetensors files.
///
/// # Errors     [`FolderError`], one line that names the file and the key or tensor
/// # Cost       reads the index; of a folder also the tensors that GGUF files hold in another shape
pub fn open(path: &Path) -> Result<WeightFile, FolderError> {
    open_with(path, Overrides::default())
}

/// What a user decides about a model's vectors, whatever its files say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Which rows count.
    pub pooling: Option<Pooling>,
    /// Whether vectors are brought to length 1.
    pub normalize: Option<bool>,
}

/// The same with decisions of the user's; they turn a model that generates into one for vectors.
///
/// # Errors     [`FolderError`], also where the decisions do not fit the model
pub fn open_with(path: &Path, overrides: Overrides) -> Result<WeightFile, FolderError> {
    if !path.is_dir() {
        let file = forthwith_weights::open(path)?;
        let reworded = converted::reword(file, overrides);
        return Ok(reworded.map_err(|fault| {
            let path = path.to_owned();
            LoadError { path, fault }
        })?);
    }
    let folder = Folder::open(path)?;
    let translated = translate(&folder, overrides);
    let (metadata, made) = translated.map_err(|fault| {
        let path = path.to_owned();
        LoadError { path, fault }
    })?;
    Ok(folder.into_file(metadata, made))
}

fn translate(folder: &Folder, overrides: Overrides) -> Result<(Metadata, Vec<Made>), LoadFault> {
    let config = &folder.config().metadata;
    let class = match config.texts("architectures")? {
        Some([class]) => String::from_utf8_lossy(class).into_owned(),
        _ => return Err(LoadFault::value("architectures", "must name one class")),
    };
    let (name, family, task) = arch::of_class(&class).ok_or_else(|| LoadFault::Class {
        found: class.escape_debug().to_string(),
        supported: arch::classes(),
    })?;
    // A model that generates, in the folder of one that makes vectors of texts.
    let task = match task {
        Task::Tokens if !folder.modules().is_empty() || overrides.pooling.is_some() => {
            Task::Vectors
        }
        task => task,
    };
    let mut translation = Translation::new(config, name, task);
    translation.usual()?;
    (family.config)(&mut translation)?;
    translation.texts(folder, (family.head)(task))?;
    translation.decide(overrides)?;
    let tied = translation.flag("tie_word_embeddings")?;
    let made = tensors(folder, family, &translation, tied == Some(true))?;
    let has_head = made.iter().any(|made| made.name == "output.weight");
    if task == Task::Tokens && tied == Some(false) && !has_head {
        let problem = "false, but the files hold no output head";
        return Err(LoadFault::value("tie_word_embeddings", problem));
    }
    suggestion::take_over(&folder.generation().metadata, &mut translation.out);
    Ok((translation.finish(&folder.config().odd), made))
}

/// `config.json` on its way to a GGUF file's keys.
pub(crate) struct Translation<'a> {
    config: &'a Metadata,
    architecture: &'static str,
    task: Task,
    read: BTreeSet<String>,
    out: Metadata,
}

/// The usual keys and what they are called in GGUF files.
const USUAL: &[(&str, &str)] = &[
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("layer_norm_eps", "attention.layer_norm_epsilon"),
    ("vocab_size", "vocab_size"),
];

/// Keys that do not change what a model answers to given tokens.
const WITHOUT_EFFECT: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_bias",
    "attention_dropout",
    "attn_pdrop",
    "attn_implementation",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "initializer_range",
    "initializer_factor",
    "mlp_bias",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "resid_pdrop",
    "return_dict",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
];

impl<'a> Translation<'a> {
    fn new(config: &'a Metadata, architecture: &'static str, task: Task) -> Self {
        let mut out = Metadata::default();
        let name = Value::Text(architecture.into());
        out.insert("general.architecture", name);
        out.insert(ROTARY_HALVES, Value::Bool(true));
        Self {
            config,
            architecture,
            task,
            read: WITHOUT_EFFECT.iter().map(|&key| key.to_owned()).collect(),
            out,
        }
    }

    /// What the model is made for.
    pub(crate) fn task(&self) -> Task {
        self.task
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<&'a Value> {
        self.read.insert(key.to_owned());
        self.config.get(key)
    }

    pub(crate) fn size(&mut self, key: &str) -> Result<Option<usize>, LoadFault> {
        self.get(key);
        Ok(self.config.size(key)?)
    }

    pub(crate) fn float(&mut self, key: &str) -> Result<Option<f64>, LoadFault> {
        self.get(key);
        Ok(self.config.float(key)?)
    }

    pub(crate) fn text(&mut self, key: &str) -> Result<Option<&'a str>, LoadFault> {
        self.get(key);
        Ok(self.config.text(key)?)
    }

    pub(crate) fn flag(&mut self, key: &str) -> Result<Option<bool>, LoadFault> {
        self.get(key);
        Ok(self.config.boolean(key)?)
    }

    /// Refuses any value of a key but this one.
    pub(crate) fn must_be(&mut self, key: &str, only: &Value) -> Result<(), LoadFault> {
        match self.get(key) {
            Some(value) if value != only => {
                let problem = format!("{value:?} is not supported, only {only:?}");
                Err(LoadFault::value(key, problem))
            }
            _ => Ok(()),
        }
    }

    /// Writes a key of the GGUF file.
    pub(crate) fn set(&mut self, part: &str, value: Value) {
        self.out
            .insert(format!("{}.{part}", self.architecture), value);
    }

    /// Writes what a key says, if it is there, under another name.
    pub(crate) fn rename(&mut self, key: &str, part: &str) {
        if let Some(value) = self.get(key).cloned() {
            self.set(part, value);
        }
    }

    /// What was written under a name so far.
    pub(crate) fn written(&self, part: &str) -> Result<Option<usize>, LoadFault> {
        Ok(self.out.size(&format!("{}.{part}", self.architecture))?)
    }

    fn usual(&mut self) -> Result<(), LoadFault> {
        for (key, part) in USUAL {
            self.rename(key, part);
        }
        let quantized = self
            .config
            .iter()
            .find(|(key, _)| key.starts_with("quantization_config"));
        if let Some((key, _)) = quantized {
            let problem =
                "weights quantized by other tools are not supported; use the original model";
            return Err(LoadFault::value(key, problem));
        }
        if let Some((key, _)) = self
            .config
            .iter()
            .find(|(key, _)| key.starts_with("auto_map"))
        {
            let problem = "the model brings code of its own, which is never run";
            return Err(LoadFault::value(key, problem));
        }
        self.rope()
    }

    /// Writes the window and which layers have it. `unless_listed` says it where `layer_types` is
    /// missing.
    pub(crate) fn windows(
        &mut self,
        unless_listed: impl Fn(usize) -> bool,
    ) -> Result<(), LoadFault> {
        let pattern = self.layers_with_window(unless_listed)?;
        if let Some(window) = self.get("sliding_window").cloned()
            && pattern.contains(&true)
        {
            self.set("attention.sliding_window", window);
            self.set("attention.sliding_window_pattern", Value::Bools(pattern));
        }
        Ok(())
    }

    /// Which layers have a window, by `layer_types` or as `unless_listed` says.
    pub(crate) fn layers_with_window(
        &mut self,
        unless_listed: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>, LoadFault> {
        let layers = self.size("num_hidden_layers")?;
        let layers = require("num_hidden_layers", layers)?.min(1 << 16);
        self.get("layer_types");
        match self.config.texts("layer_types")? {
            None => Ok((0..layers).map(unless_listed).collect()),
            Some(kinds) => kinds
                .iter()
                .map(|kind| match &kind[..] {
                    b"sliding_attention" => Ok(true),
                    b"full_attention" => Ok(false),
                    other => {
                        let other = String::from_utf8_lossy(other);
                        let problem = format!("`{}` is not supported", other.escape_debug());
                        Err(LoadFault::value("layer_types", problem))
                    }
                })
                .collect(),
        }
    }

    /// Refuses any activation but `SiLU`.
    pub(crate) fn silu(&mut self) -> Result<(), LoadFault> {
        self.must_be("hidden_act", &Value::Text(b"silu".to_vec()))
    }

    /// The keys, with the names of those that nobody read.
    fn finish(mut self, odd: &[String]) -> Metadata {
        let keys = self.config.iter().map(|(key, _)| key.to_owned());
        let ignored: Vec<Vec<u8>> = keys
            .chain(odd.iter().cloned())
            .filter(|key| !self.read.contains(key))
            .filter(|key| {
                ![
                    "label2id.",
                    "sentence_transformers.",
                    "summary_",
                    "task_specific_params.",
                ]
                .iter()
                .any(|of| key.starts_with(of))
            })
            .map(String::into_bytes)
            .collect();
        if !ignored.is_empty() {
            self.out.insert(IGNORED_KEYS, Value::Texts(ignored));
        }
        self.out
    }
}

/// The parts of a layer's tensor names, and what they are called in GGUF files.
const USUAL_NAMES: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
    ("lm_head", "output"),
];

/// What stands before the parts in tensor names.
const PREFIXES: &[&str] = &[
    "model.",
    "transformer.",
    "gpt_neox.",
    "bert.",
    "roberta.",
    "distilbert.",
    "mpnet.",
    "",
];
const LAYERS: &[&str] = &[
    "layers.",
    "h.",
    "encoder.layer.",
    "transformer.layer.",
    "layer.",
];

/// Ends of tensor names; the last two are what some models call a norm's.
const ENDINGS: &[(&str, &str)] = &[
    (".weight", ".weight"),
    (".bias", ".bias"),
    (".gamma", ".weight"),
    (".beta", ".bias"),
];

/// A tensor's name in GGUF files, without `.weight` or `.bias`, and that ending.
fn gguf_name(family: &HuggingFace, task: Task, name: &str) -> Option<(String, &'static str)> {
    let (stem, ending) = ENDINGS
        .iter()
        .find_map(|(theirs, ours)| Some((name.strip_suffix(theirs)?, *ours)))?;
    if let Some(name) = head::name((family.head)(task), stem) {
        return Some((name, ending));
    }
    let stem = PREFIXES
        .iter()
        .find_map(|prefix| stem.strip_prefix(prefix))?;
    let called = |part: &str| {
        let names = family.names.iter().chain(USUAL_NAMES);
        names
            .clone()
            .find(|(theirs, _)| *theirs == part)
            .map(|(_, ours)| *ours)
    };
    let in_layer = LAYERS.iter().find_map(|prefix| stem.strip_prefix(prefix));
    let name = match in_layer.and_then(|rest| rest.split_once('.')) {
        Some((number, part)) => {
            let number: u32 = number.parse().ok()?;
            format!("blk.{number}.{}", called(part)?)
        }
        None => called(stem)?.to_owned(),
    };
    Some((name, ending))
}

/// Buffers that some models store and that follow from the configuration.
const BUFFERS: &[&str] = &[
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    ".rotary_emb.inv_freq",
    ".position_ids",
    ".token_type_ids",
];

fn tensors(
    folder: &Folder,
    family: &HuggingFace,
    translation: &Translation<'_>,
    tied: bool,
) -> Result<Vec<Made>, LoadFault> {
    let mut made = Vec::with_capacity(folder.tensors().len());
    let is_buffer = |name: &String| BUFFERS.iter().any(|buffer| name.ends_with(buffer));
    let mut unused = folder.not_floats().to_vec();
    unused.retain(|name| !is_buffer(name));
    for (name, raw) in folder.tensors() {
        if is_buffer(name) || head::is_unused((family.head)(translation.task), name) {
            continue;
        }
        let Some((stem, ending)) = gguf_name(family, translation.task, name) else {
            unused.push(name.clone());
            continue;
        };
        if stem == "output" && (tied || translation.task != Task::Tokens) {
            continue;
        }
        let part = stem.rsplit('.').next().unwrap_or_default();
        let (rows, cols) = raw.matrix();
        let recipe = match (family.recipe)(part) {
            Recipe::Transposed if raw.shape.len() < 2 => Recipe::Stored,
            recipe => recipe,
        };
        let (rows, cols, data) = match recipe {
            Recipe::Stored => (rows, cols, Data::Stored(name.clone())),
            Recipe::PlusOne => {
                let values = folder.values(name).into_iter();
                (
                    rows,
                    cols,
                    Data::Computed(values.map(|value| value + 1.0).collect()),
                )
            }
            Recipe::From(first) => {
                let values = folder.values(name).into_iter().skip(first * cols);
                let rows = rows.saturating_sub(first);
                (rows, cols, Data::Computed(values.collect()))
            }
            Recipe::Transposed => {
                let values = folder.values(name);
                let turned = (0..cols).flat_map(|col| values.iter().skip(col).step_by(cols.max(1)));
                (cols, rows, Data::Computed(turned.copied().collect()))
            }
            Recipe::HeadByHead => {
                let heads = translation.written("attention.head_count")?.unwrap_or(1);
                (rows, cols, head_by_head(folder, name, raw, heads)?)
            }
        };
        made.push(Made {
            name: format!("{stem}{ending}"),
            rows,
            cols,
            data,
        });
    }
    if !unused.is_empty() {
        return Err(LoadFault::Unused {
            architecture: translation.architecture.to_owned(),
            tensors: unused,
        });
    }
    Ok(made)
}

/// From `[heads, 3, head_dim, …]` to `[3, heads, head_dim, …]`.
fn head_by_head(folder: &Folder, name: &str, raw: &Raw, heads: usize) -> Result<Data, LoadFault> {
    let values = folder.values(name);
    let outputs = raw.shape.first().copied().unwrap_or(0);
    if heads == 0 || outputs == 0 || !outputs.is_multiple_of(3 * heads) {
        return Err(LoadFault::Content {
            tensor: name.to_owned(),
            problem: format!("{outputs} rows are not three for each of {heads} heads"),
        });
    }
    let size = values.len() / (3 * heads);
    let run = |which: usize, head: usize| &values[(head * 3 + which) * size..][..size];
    let runs = (0..3).flat_map(|which| (0..heads).map(move |head| (which, head)));
    let turned = runs.flat_map(|(which, head)| run(which, head)).copied();
    Ok(Data::Computed(turned.collect()))
}
