//! What a model is made for: tokens, or vectors, labels and scores of texts; and the head for it.
//!
//! The class in `config.json` names the task. How rows become a vector stands in the files of
//! sentence-transformers, where a folder has them.

use super::{Overrides, Translation};
use crate::error::LoadFault;
use forthwith_core::metadata::Value;
use forthwith_core::program::Pooling;
use forthwith_weights::Folder;

/// Keys of what [`crate::TextModel`] says.
pub(crate) const POOLING: &str = "forthwith.pooling";
pub(crate) const ACTIVATIONS: &str = "forthwith.head_activations";
pub(crate) const NORMALIZE: &str = "forthwith.normalize";
pub(crate) const LABELS: &str = "forthwith.labels";
pub(crate) const SCORING: &str = "forthwith.scoring";
pub(crate) const SOURCES: &str = "forthwith.sources";

/// What a model is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The next token.
    Tokens,
    /// A vector for each text.
    Vectors,
    /// A number for each label of a text.
    Classes,
    /// A number for each label of each token.
    TokenClasses,
}

/// The tasks of families that see only what stands before a token.
pub(crate) const DECODER: &[Task] = &[Task::Tokens, Task::Vectors, Task::Classes];
/// The tasks of families that see the whole text.
pub(crate) const ENCODER: &[Task] = &[Task::Vectors, Task::Classes, Task::TokenClasses];

impl Task {
    /// How classes made for the task end, after the family's name.
    pub(crate) fn endings(self) -> &'static [&'static str] {
        match self {
            Self::Tokens => &["ForCausalLM", "LMHeadModel"],
            Self::Vectors => &["Model"],
            Self::Classes => &["ForSequenceClassification"],
            Self::TokenClasses => &["ForTokenClassification"],
        }
    }
}

/// One layer of a head.
pub(crate) struct HeadPart {
    /// What its tensors are called.
    pub(crate) name: &'static str,
    /// What its outputs go through: `none`, `tanh`, `relu` or `gelu`.
    pub(crate) activation: &'static str,
    /// What the tensors of the norm after it are called.
    pub(crate) norm: Option<&'static str>,
}

impl HeadPart {
    /// A product alone.
    pub(crate) const fn product(name: &'static str) -> Self {
        Self::activated(name, "none")
    }

    /// A product and a non-linearity.
    pub(crate) const fn activated(name: &'static str, activation: &'static str) -> Self {
        Self {
            name,
            activation,
            norm: None,
        }
    }
}

/// The heads of decoders: one product.
pub(crate) fn of_decoder(task: Task) -> &'static [HeadPart] {
    const CLASSES: &[HeadPart] = &[HeadPart::product("score")];
    match task {
        Task::Classes => CLASSES,
        Task::Tokens | Task::Vectors | Task::TokenClasses => &[],
    }
}

/// What a head's tensors are called in the program's file; those of further modules of
/// sentence-transformers are numbered already.
pub(super) fn name(parts: &[HeadPart], stem: &str) -> Option<String> {
    if let Some(rest) = stem.strip_prefix("module.") {
        let number = rest.strip_suffix(".linear")?;
        return Some(format!("head.{number}"));
    }
    for (index, part) in parts.iter().enumerate() {
        if stem == part.name {
            return Some(format!("head.{index}"));
        }
        if Some(stem) == part.norm {
            return Some(format!("head.{index}.norm"));
        }
    }
    None
}

/// Tensors that models carry along from a task that they are not used for: the pooler of an encoder
/// whose rows are pooled otherwise.
pub(super) fn is_unused(parts: &[HeadPart], name: &str) -> bool {
    name.contains("pooler.dense.") && !parts.iter().any(|part| name.starts_with(part.name))
}

impl Translation<'_> {
    /// Writes how rows become vectors and what those mean.
    pub(super) fn texts(&mut self, folder: &Folder, head: &[HeadPart]) -> Result<(), LoadFault> {
        if self.task == Task::Tokens {
            return Ok(());
        }
        let mut sources = Vec::new();
        let mut activations: Vec<&str> = head.iter().map(|part| part.activation).collect();
        if self.out.get(POOLING).is_none() {
            let (pooling, source) = self.usual_pooling();
            self.out.insert(POOLING, text(pooling));
            sources.push(format!("pooling {pooling}: {source}"));
        }
        if self.task == Task::Vectors {
            activations.extend(self.modules(folder, &mut sources)?);
        } else {
            self.labels(&mut sources)?;
        }
        let list = |names: Vec<&str>| Value::Texts(names.into_iter().map(Vec::from).collect());
        self.out.insert(ACTIVATIONS, list(activations));
        let sources = sources.into_iter().map(String::into_bytes).collect();
        self.out.insert(SOURCES, Value::Texts(sources));
        Ok(())
    }

    /// Writes how rows are pooled.
    pub(crate) fn pool(&mut self, pooling: &str) {
        self.out.insert(POOLING, text(pooling));
    }

    /// Writes what the user decided over what the files say.
    pub(super) fn decide(&mut self, overrides: Overrides) -> Result<(), LoadFault> {
        if overrides == Overrides::default() {
            return Ok(());
        }
        if self.task != Task::Vectors {
            let problem = "was given, but the model gives no vectors to pool or to normalize";
            return Err(LoadFault::value("pooling", problem));
        }
        let mut sources = self.out.texts(SOURCES)?.unwrap_or_default().to_vec();
        if let Some(pooling) = overrides.pooling {
            let name = match pooling {
                Pooling::First => "first",
                Pooling::Last => "last",
                Pooling::Mean => "mean",
                Pooling::Each => "each",
            };
            self.pool(name);
            sources.retain(|line| !line.starts_with(b"pooling "));
            sources.push(format!("pooling {name}: given").into_bytes());
        }
        if let Some(normalize) = overrides.normalize {
            self.out.insert(NORMALIZE, Value::Bool(normalize));
            sources.retain(|line| !line.starts_with(b"vectors "));
            let length = if normalize {
                "of length 1"
            } else {
                "as they are"
            };
            sources.push(format!("vectors {length}: given").into_bytes());
        }
        self.out.insert(SOURCES, Value::Texts(sources));
        Ok(())
    }

    /// Where nothing else is said.
    fn usual_pooling(&self) -> (&'static str, &'static str) {
        match self.task {
            Task::TokenClasses => ("each", "the class labels tokens"),
            _ if self.sees_ahead() && self.task == Task::Vectors => {
                ("mean", "usual for encoders, the folder says nothing else")
            }
            _ if self.sees_ahead() => ("first", "usual for the class"),
            _ => ("last", "usual for decoders"),
        }
    }

    fn sees_ahead(&self) -> bool {
        let causal = format!("{}.attention.causal", self.architecture);
        self.out.get(&causal) == Some(&Value::Bool(false))
    }

    /// Writes what the files of sentence-transformers say; returns the activations of further
    /// layers.
    fn modules<'b>(
        &mut self,
        folder: &'b Folder,
        sources: &mut Vec<String>,
    ) -> Result<Vec<&'b str>, LoadFault> {
        let mut activations = Vec::new();
        let mut normalize = false;
        for module in folder.modules() {
            let keys = &module.config.metadata;
            let from = format!("{}config.json", module.path);
            match &module.kind[..] {
                "Transformer" => {}
                "Pooling" => {
                    let pooling = pooling(keys).map_err(|problem| {
                        LoadFault::value(format!("{from}: pooling_mode"), problem)
                    })?;
                    self.out.insert(POOLING, text(pooling));
                    sources.retain(|line| !line.starts_with("pooling "));
                    sources.push(format!("pooling {pooling}: {from}"));
                }
                "Dense" => {
                    let function = keys.text("activation_function")?.unwrap_or("none");
                    let name = function.rsplit('.').next().unwrap_or_default();
                    activations.push(match name {
                        "Identity" | "none" => "none",
                        "Tanh" => "tanh",
                        "ReLU" => "relu",
                        "GELU" => "gelu",
                        other => {
                            let problem = format!("`{}` is not supported", other.escape_debug());
                            let key = format!("{from}: activation_function");
                            return Err(LoadFault::value(key, problem));
                        }
                    });
                }
                "Normalize" => {
                    normalize = true;
                    sources.push("vectors of length 1: modules.json".to_owned());
                }
                other => {
                    let problem = format!(
                        "module `{}` is not supported; supported are Transformer, Pooling, Dense \
                         and Normalize",
                        other.escape_debug()
                    );
                    return Err(LoadFault::value("modules.json", problem));
                }
            }
        }
        self.out.insert(NORMALIZE, Value::Bool(normalize));
        let limit = folder.sentence().metadata.size("max_seq_length")?;
        let trained = self.written("context_length")?;
        if let Some(limit) = limit.filter(|&limit| trained.is_none_or(|trained| limit < trained)) {
            self.set("context_length", Value::Unsigned(limit as u64));
            sources.push(format!("{limit} tokens: sentence_bert_config.json"));
        }
        Ok(activations)
    }

    /// Writes the labels' names in the order of their numbers, and what the numbers mean.
    fn labels(&mut self, sources: &mut Vec<String>) -> Result<(), LoadFault> {
        let mut labels = Vec::new();
        while let Some(label) = self.get(&format!("id2label.{}", labels.len())) {
            let Value::Text(label) = label else {
                let key = format!("id2label.{}", labels.len());
                return Err(LoadFault::value(key, "must be a text"));
            };
            labels.push(label.clone());
        }
        let stated = self.size("num_labels")?;
        if labels.is_empty() {
            // The libraries' own default is two.
            let count = stated.unwrap_or(2).min(1 << 16);
            labels = (0..count)
                .map(|label| format!("LABEL_{label}").into_bytes())
                .collect();
        }
        let single = labels.len() == 1;
        let function = self.text("sentence_transformers.activation_fn")?;
        let (scoring, source) = match (function, self.text("problem_type")?) {
            (Some(function), _) if function.ends_with("Identity") => {
                ("raw", "sentence_transformers.activation_fn")
            }
            (Some(function), _) if function.ends_with("Sigmoid") => {
                ("sigmoid", "sentence_transformers.activation_fn")
            }
            (_, Some("multi_label_classification")) => ("sigmoid", "problem_type"),
            (_, Some("regression")) => ("raw", "problem_type"),
            (_, Some("single_label_classification")) if !single => ("softmax", "problem_type"),
            (_, None | Some("single_label_classification")) if single => {
                ("sigmoid", "usual for one label")
            }
            (_, None) => ("softmax", "usual for several labels"),
            (_, Some(other)) => {
                let problem = format!("`{}` is not supported", other.escape_debug());
                return Err(LoadFault::value("problem_type", problem));
            }
        };
        self.out.insert(SCORING, text(scoring));
        self.out.insert(LABELS, Value::Texts(labels));
        sources.push(format!("scores {scoring}: {source}"));
        Ok(())
    }
}

/// The one way of pooling that a module's keys switch on.
fn pooling(keys: &forthwith_core::metadata::Metadata) -> Result<&'static str, String> {
    const MODES: &[(&str, &str)] = &[
        ("pooling_mode_cls_token", "first"),
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_lasttoken", "last"),
    ];
    const NAMES: &[(&str, &str)] = &[("cls", "first"), ("mean", "mean"), ("lasttoken", "last")];
    // Later versions name it.
    if let Ok(Some(name)) = keys.text("pooling_mode") {
        let known = NAMES.iter().find(|(theirs, _)| *theirs == name);
        return known
            .map(|(_, ours)| *ours)
            .ok_or_else(|| format!("`{}` is not supported", name.escape_debug()));
    }
    let on: Vec<&str> = keys
        .iter()
        .filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Value::Bool(true))
        .map(|(key, _)| key)
        .collect();
    let [only] = on[..] else {
        return Err(format!(
            "{} ways are switched on, supported is one",
            on.len()
        ));
    };
    let known = MODES.iter().find(|(theirs, _)| *theirs == only);
    known
        .map(|(_, ours)| *ours)
        .ok_or_else(|| format!("`{only}` is not supported; supported are cls, mean and lasttoken"))
}

fn text(of: &str) -> Value {
    Value::Text(of.into())
}
