//! Reads one architecture's metadata keys and remembers which were read.
//!
//! A key that changes the arithmetic and that nobody read would give silently wrong answers.
//! [`Config::finish`] therefore refuses a file with keys that the architecture does not know.

use crate::error::LoadFault;
use crate::folder::ROTARY_HALVES;
use crate::spec::{inverse_root, to_f32};
use forthwith_core::metadata::{Metadata, Value, require};
use forthwith_core::program::Pairing;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The keys `<architecture>.…` of a file. Keys are named without that prefix.
pub(crate) struct Config<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
    known: BTreeSet<String>,
}

impl<'a> Config<'a> {
    pub(crate) fn new(metadata: &'a Metadata, architecture: &'a str) -> Self {
        Self {
            metadata,
            architecture,
            known: BTreeSet::new(),
        }
    }

    /// The full key, marked as known.
    pub(crate) fn key(&mut self, part: &str) -> String {
        let key = format!("{}.{part}", self.architecture);
        self.known.insert(key.clone());
        key
    }

    pub(crate) fn get(&mut self, part: &str) -> Option<&'a Value> {
        let key = self.key(part);
        self.metadata.get(&key)
    }

    pub(crate) fn text(&mut self, part: &str) -> Result<Option<&'a str>, LoadFault> {
        let key = self.key(part);
        Ok(self.metadata.text(&key)?)
    }

    pub(crate) fn optional_size(
        &mut self,
        part: &str,
        allowed: RangeInclusive<usize>,
    ) -> Result<Option<usize>, LoadFault> {
        let key = self.key(part);
        match self.metadata.size(&key)? {
            Some(size) if !allowed.contains(&size) => {
                let (low, high) = allowed.into_inner();
                Err(LoadFault::value(
                    key,
                    format!("{size}, allowed are {low} to {high}"),
                ))
            }
            size => Ok(size),
        }
    }

    pub(crate) fn size(
        &mut self,
        part: &str,
        allowed: RangeInclusive<usize>,
    ) -> Result<usize, LoadFault> {
        let size = self.optional_size(part, allowed)?;
        Ok(require(&self.key(part), size)?)
    }

    /// A finite, positive number; files write 0 for "none".
    pub(crate) fn optional_float(&mut self, part: &str) -> Result<Option<f64>, LoadFault> {
        let key = self.key(part);
        match self.metadata.float(&key)? {
            Some(value) if !to_f32(value).is_finite() || value < 0.0 => Err(LoadFault::value(
                key,
                format!("{value}, must be finite and positive"),
            )),
            value => Ok(value.filter(|&value| value > 0.0)),
        }
    }

    pub(crate) fn float(&mut self, part: &str) -> Result<f64, LoadFault> {
        let value = self.optional_float(part)?;
        Ok(require(&self.key(part), value)?)
    }

    /// Marks keys that do not change the arithmetic.
    pub(crate) fn ignore(&mut self, parts: &[&str]) {
        for part in parts {
            self.key(part);
        }
    }

    /// Refuses any value of a key but the one that means "not used here".
    pub(crate) fn must_be(
        &mut self,
        part: &str,
        neutral: &Value,
        otherwise: &str,
    ) -> Result<(), LoadFault> {
        match self.get(part) {
            Some(value) if value != neutral => Err(LoadFault::value(self.key(part), otherwise)),
            _ => Ok(()),
        }
    }

    pub(crate) fn flag(&mut self, part: &str) -> Result<Option<bool>, LoadFault> {
        let key = self.key(part);
        Ok(self.metadata.boolean(&key)?)
    }

    pub(crate) fn floats(&mut self, part: &str) -> Result<Option<&'a [f32]>, LoadFault> {
        let key = self.key(part);
        Ok(self.metadata.floats(&key)?)
    }

    /// A truth value for each layer.
    pub(crate) fn bools(
        &mut self,
        part: &str,
        layers: usize,
    ) -> Result<Option<Vec<bool>>, LoadFault> {
        match self.get(part) {
            None => Ok(None),
            Some(Value::Bools(values)) if values.len() == layers => Ok(Some(values.clone())),
            Some(Value::Bools(values)) => {
                let problem = format!("{} entries for {layers} layers", values.len());
                Err(LoadFault::value(self.key(part), problem))
            }
            Some(other) => {
                let problem = format!("expected a bool for each layer, found {}", other.kind());
                Err(LoadFault::value(self.key(part), problem))
            }
        }
    }

    /// How the rotary pairs of Llama's kin lie: adjacent in GGUF files, whose rows are permuted for
    /// it, and in halves in model folders.
    pub(crate) fn pairing_of_llama(&mut self) -> Result<Pairing, LoadFault> {
        let halves = self.metadata.boolean(ROTARY_HALVES)?;
        Ok(if halves == Some(true) {
            Pairing::Halves
        } else {
            Pairing::Adjacent
        })
    }

    /// `1 / √scalar`, with a width in place of the scalar where the file has none.
    pub(crate) fn query_scale(&mut self, width: usize) -> Result<f32, LoadFault> {
        let scalar = self.optional_float("attention.query_scalar")?;
        Ok(scalar.map_or_else(|| inverse_root(width), |scalar| to_f32(1.0 / scalar.sqrt())))
    }

    /// The number of tokens: of the tokenizer's list, or else as the file says.
    pub(crate) fn vocab(&mut self) -> Result<usize, LoadFault> {
        let stated = self.optional_size("vocab_size", 1..=MAX_VOCAB)?;
        let listed = self.metadata.texts(TOKENS_KEY)?.map(<[_]>::len);
        match listed {
            Some(count) if !(1..=MAX_VOCAB).contains(&count) => Err(LoadFault::value(
                TOKENS_KEY,
                format!("{count} tokens, allowed are 1 to {MAX_VOCAB}"),
            )),
            Some(count) => Ok(count),
            None => Ok(require(TOKENS_KEY, stated)?),
        }
    }

    /// Refuses the file if it holds keys of this architecture that nobody read.
    pub(crate) fn finish(self) -> Result<(), LoadFault> {
        let prefix = format!("{}.", self.architecture);
        let unknown: Vec<String> = self
            .metadata
            .iter()
            .map(|(key, _)| key)
            .filter(|key| key.starts_with(&prefix) && !self.known.contains(*key))
            .map(str::to_owned)
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(LoadFault::UnknownKeys {
            architecture: self.architecture.to_owned(),
            keys: unknown,
        })
    }
}

const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const MAX_VOCAB: usize = 1 << 24;
