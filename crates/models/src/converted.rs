//! GGUF files of models that answer with vectors or scores, as llama.cpp's converter writes them.
//!
//! Such a file becomes what a folder becomes: the keys say how rows are pooled and what the numbers
//! mean, the tensors of its head are numbered.
//!
//! Source: llama.cpp's converter, keys `pooling_type`, `classifier.output_labels`, tensors `cls`.

use crate::error::LoadFault;
use crate::folder::Overrides;
use crate::folder::head::{ACTIVATIONS, LABELS, NORMALIZE, POOLING, SCORING, SOURCES};
use forthwith_core::metadata::{Metadata, Value, require};
use forthwith_core::program::Pooling;
use forthwith_weights::WeightFile;

/// Keys whose content is said in other words, or seen in the tensors.
const TAKEN: [&str; 5] = [
    "pooling_type",
    "classifier.output_labels",
    "classifier.pooling_type",
    "token_type_count",
    "vocab_size",
];
const MODERN: &str = "modern-bert";
const MAX_LAYERS: usize = 1 << 16;
/// The first and the last layer of a head.
const FIRST: &str = "cls.";
const NORM: &str = "cls.norm.";
const LAST: &str = "cls.output.";

/// Rewords a file if it does not generate or is to make vectors.
///
/// # Errors     the file lost a part of its head, or the decisions do not fit the model
pub(crate) fn reword(file: WeightFile, overrides: Overrides) -> Result<WeightFile, LoadFault> {
    let metadata = file.metadata();
    let key = "general.architecture";
    let architecture = require(key, metadata.text(key)?)?.to_owned();
    let words = Words {
        metadata,
        architecture: &architecture,
        labels: file
            .tensors()
            .find(|tensor| tensor.name == "cls.output.weight"),
        overrides,
    };
    let has_first = file.tensors().any(|tensor| tensor.name == "cls.weight");
    let Some(reworded) = words.reworded(has_first)? else {
        return Ok(file);
    };
    Ok(file.reworded(reworded, |name| renamed(name, has_first)))
}

/// What a tensor is called in the program; nothing for the head of a model that no longer generates.
fn renamed(name: &str, has_first: bool) -> Option<String> {
    let last = if has_first { "head.1." } else { "head.0." };
    for (from, to) in [(LAST, last), (NORM, "head.0.norm."), (FIRST, "head.0.")] {
        if let Some(rest) = name.strip_prefix(from) {
            return Some(format!("{to}{rest}"));
        }
    }
    (name != "output.weight").then(|| name.to_owned())
}

struct Words<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
    /// The matrix with a row for each label.
    labels: Option<forthwith_core::shape::TensorView<'a>>,
    overrides: Overrides,
}

impl Words<'_> {
    fn key(&self, part: &str) -> String {
        format!("{}.{part}", self.architecture)
    }

    fn reworded(&self, has_first: bool) -> Result<Option<Metadata>, LoadFault> {
        let causal = self.metadata.boolean(&self.key("attention.causal"))?;
        let sees_ahead = causal == Some(false);
        let stated = self.pooling("pooling_type")?;
        let given = self.overrides.pooling;
        if !sees_ahead && self.labels.is_none() && stated.is_none() && given.is_none() {
            if self.overrides.normalize.is_some() {
                let problem = "was given, but the model gives no vectors to normalize";
                return Err(LoadFault::value("normalize", problem));
            }
            return Ok(None);
        }
        let mut out = Metadata::default();
        let taken = TAKEN.map(|part| self.key(part));
        for (key, value) in self.metadata.iter() {
            if !taken.iter().any(|taken| taken == key) {
                out.insert(key, value.clone());
            }
        }
        if self.architecture == MODERN {
            self.modern(&mut out)?;
        }
        if self.labels.is_some() {
            self.scores(has_first, sees_ahead, &mut out)?;
        } else {
            self.vectors(stated, sees_ahead, &mut out);
        }
        Ok(Some(out))
    }

    /// Which rows count, by llama.cpp's number.
    fn pooling(&self, part: &str) -> Result<Option<&'static str>, LoadFault> {
        let key = self.key(part);
        Ok(match self.metadata.unsigned(&key)? {
            None | Some(0 | 4) => None,
            Some(1) => Some("mean"),
            Some(2) => Some("first"),
            Some(3) => Some("last"),
            Some(other) => {
                let problem = format!("{other}, known are 0 to 4");
                return Err(LoadFault::value(key, problem));
            }
        })
    }

    fn vectors(&self, stated: Option<&str>, sees_ahead: bool, out: &mut Metadata) {
        let given = self.overrides.pooling.map(|pooling| match pooling {
            Pooling::First => "first",
            Pooling::Last => "last",
            Pooling::Mean => "mean",
            Pooling::Each => "each",
        });
        let (pooling, source) = match (given, stated) {
            (Some(given), _) => (given, "given".to_owned()),
            (None, Some(stated)) => (stated, self.key("pooling_type")),
            (None, None) if sees_ahead => ("mean", "usual for encoders".to_owned()),
            (None, None) => ("last", "usual for decoders".to_owned()),
        };
        let normalize = self.overrides.normalize;
        let length = match normalize {
            None => "of length 1: usual for GGUF files, which do not say",
            Some(true) => "of length 1: given",
            Some(false) => "as they are: given",
        };
        out.insert(POOLING, text(pooling));
        out.insert(ACTIVATIONS, Value::Texts(Vec::new()));
        out.insert(NORMALIZE, Value::Bool(normalize.unwrap_or(true)));
        out.insert(
            SOURCES,
            texts(&[
                format!("pooling {pooling}: {source}"),
                format!("vectors {length}"),
            ]),
        );
    }

    fn scores(
        &self,
        has_first: bool,
        sees_ahead: bool,
        out: &mut Metadata,
    ) -> Result<(), LoadFault> {
        if self.overrides != Overrides::default() {
            let problem = "was given, but the model gives no vectors to pool or to normalize";
            return Err(LoadFault::value("pooling", problem));
        }
        if sees_ahead && !has_first {
            let problem = "is missing: the converter drops the first layer of BERT's head, so scores \
                           would be wrong; use the model's folder";
            return Err(LoadFault::value("tensor `cls.weight`", problem));
        }
        let count = self.labels.map_or(1, |matrix| matrix.rows);
        let stated = self.metadata.texts(&self.key("classifier.output_labels"))?;
        let labels = stated.map_or_else(
            || {
                (0..count)
                    .map(|label| format!("LABEL_{label}").into_bytes())
                    .collect()
            },
            <[Vec<u8>]>::to_vec,
        );
        let pooling = match self.pooling("classifier.pooling_type")? {
            Some(pooling) => pooling,
            None if sees_ahead => "first",
            None => "last",
        };
        let (scoring, why) = if count == 1 {
            ("sigmoid", "usual for one label")
        } else {
            ("softmax", "usual for several labels")
        };
        let activation = match self.architecture {
            MODERN => "gelu",
            _ => "tanh",
        };
        let activations = [activation.to_owned(), "none".to_owned()];
        let activations = &activations[usize::from(!has_first)..];
        out.insert(POOLING, text(pooling));
        out.insert(ACTIVATIONS, texts(activations));
        out.insert(LABELS, Value::Texts(labels));
        out.insert(SCORING, text(scoring));
        out.insert(
            SOURCES,
            texts(&[
                format!("pooling {pooling}: usual for scores"),
                format!("scores {scoring}: {why}"),
            ]),
        );
        Ok(())
    }

    /// What is said in another way of `ModernBERT`: a window to both sides instead of one to one side, the
    /// distance between layers without one instead of a truth for each layer, and what cannot be otherwise.
    fn modern(&self, out: &mut Metadata) -> Result<(), LoadFault> {
        for (part, only) in [("hidden_activation", "gelu"), ("rope.scaling.type", "none")] {
            let key = self.key(part);
            let found = self.metadata.text(&key)?.unwrap_or(only);
            if found != only {
                let problem = format!("`{}`, supported is {only}", found.escape_debug());
                return Err(LoadFault::value(key, problem));
            }
            out.remove(&key);
        }
        // Its norms are layer norms, whose key stands beside this one.
        out.remove(&self.key("attention.layer_norm_rms_epsilon"));
        let pattern = self.key("attention.sliding_window_pattern");
        if let Some(Value::Unsigned(every)) = self.metadata.get(&pattern) {
            let layers = self.metadata.size(&self.key("block_count"))?;
            let every = usize::try_from(*every).unwrap_or(usize::MAX).max(1);
            let layers = 0..layers.unwrap_or(0).min(MAX_LAYERS);
            let has_window = layers.map(|layer| !layer.is_multiple_of(every));
            out.insert(pattern, Value::Bools(has_window.collect()));
        }
        let window = self.key("attention.sliding_window");
        if let Some(both) = self.metadata.unsigned(&window)? {
            out.insert(window, Value::Unsigned(both / 2 + 1));
        }
        Ok(())
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.as_bytes().to_vec())
}

fn texts(list: &[String]) -> Value {
    Value::Texts(list.iter().map(|line| line.clone().into_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TextModel;
    use crate::testing::tiny_llama;
    use forthwith_weights::testing::GgufWriter;

    fn opened(writer: &GgufWriter, overrides: Overrides) -> Result<WeightFile, LoadFault> {
        let file = WeightFile::from_bytes("m.gguf".as_ref(), writer.to_bytes()).unwrap();
        reword(file, overrides)
    }

    fn with_pooling(number: u64) -> GgufWriter {
        tiny_llama(1).key("llama.pooling_type", Value::Unsigned(number))
    }

    #[test]
    fn a_file_says_how_its_rows_are_pooled() {
        for (number, name) in [(1, "mean"), (2, "first"), (3, "last")] {
            let file = opened(&with_pooling(number), Overrides::default()).unwrap();
            let model = TextModel::of(&file).unwrap().unwrap();
            assert_eq!((&model.pooling[..], model.normalize), (name, true));
            assert_eq!(
                model.sources[0],
                format!("pooling {name}: llama.pooling_type")
            );
            assert!(crate::build(&file).is_ok());
        }
        let message = opened(&with_pooling(9), Overrides::default())
            .unwrap_err()
            .to_string();
        assert!(message.contains("`llama.pooling_type`"), "{message}");
        let plain = opened(&tiny_llama(1), Overrides::default()).unwrap();
        assert_eq!(TextModel::of(&plain).unwrap(), None);
    }

    #[test]
    fn what_a_user_decides_comes_first() {
        let overrides = Overrides {
            pooling: Some(Pooling::Mean),
            normalize: Some(false),
        };
        for writer in [with_pooling(3), tiny_llama(1)] {
            let model = TextModel::of(&opened(&writer, overrides).unwrap())
                .unwrap()
                .unwrap();
            assert_eq!((&model.pooling[..], model.normalize), ("mean", false));
            assert_eq!(
                model.sources,
                ["pooling mean: given", "vectors as they are: given"]
            );
        }
        let normalize = Overrides {
            pooling: None,
            ..overrides
        };
        let message = opened(&tiny_llama(1), normalize).unwrap_err().to_string();
        assert!(message.contains("gives no vectors"), "{message}");
    }

    #[test]
    fn a_head_that_lost_its_first_layer_is_refused() {
        let labels = Value::Texts(vec![b"yes".to_vec(), b"no".to_vec()]);
        let writer = tiny_llama(1)
            .key("llama.attention.causal", Value::Bool(false))
            .key("llama.classifier.output_labels", labels)
            .tensor(
                "cls.output.weight",
                forthwith_core::format::Format::F32,
                &[64, 2],
                &[0.5; 128],
            );
        let message = opened(&writer, Overrides::default())
            .unwrap_err()
            .to_string();
        assert!(message.contains("use the model's folder"), "{message}");
        let decoder = writer.without_key("llama.attention.causal");
        let file = opened(&decoder, Overrides::default()).unwrap();
        let model = TextModel::of(&file).unwrap().unwrap();
        assert_eq!(model.labels, ["yes", "no"]);
        assert_eq!(model.pooling, "last");
        assert!(crate::build(&file).is_ok());
    }
}
