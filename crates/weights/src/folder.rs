//! A model folder: safetensors files, `config.json`, `generation_config.json`.
//!
//! The tensors keep the names of the file here; `forthwith-models` knows what they mean and turns a
//! folder into a [`WeightFile`] whose keys and names are those of a GGUF file.
//!
//! Source: the safetensors format description of its library.

mod modules;

use crate::error::OpenError;
use crate::gguf::{Index, TensorEntry};
use crate::json::{self, Keys};
use crate::{Backing, WeightFile, mmap};
use forthwith_core::format::Format;
use forthwith_core::metadata::Metadata;
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const MAX_SHARDS: usize = 1024;

/// An opened model folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    config: Keys,
    generation: Keys,
    backings: Vec<Backing>,
    tensors: BTreeMap<String, Raw>,
    not_floats: Vec<String>,
    sentence: Keys,
    modules: Vec<Module>,
}

/// A step on the way from text to vector, as sentence-transformers lists them.
#[derive(Debug)]
pub struct Module {
    /// The last part of its class's name, such as `Pooling`.
    pub kind: String,
    /// The folder it lies in, with a slash at the end; empty for the model itself.
    pub path: String,
    /// The keys of its `config.json`.
    pub config: Keys,
}

/// A tensor as a safetensors file holds it.
#[derive(Clone, Debug)]
pub struct Raw {
    /// How its elements are stored.
    pub format: Format,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    backing: usize,
    bytes: Range<usize>,
}

/// A tensor of the [`WeightFile`] that a folder becomes.
#[derive(Debug)]
pub struct Made {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub cols: usize,
    /// Where its elements are.
    pub data: Data,
}

/// Where the elements of a tensor are.
#[derive(Debug)]
pub enum Data {
    /// In the file, as the tensor of that name; the shape is another look at the same elements.
    Stored(String),
    /// Computed from what the file holds.
    Computed(Vec<f32>),
}

impl Folder {
    /// Opens a folder; tensors are paged in when they are read.
    ///
    /// # Errors     [`OpenError`], one line that names the file and the field
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let Some(config) = json::read(&path.join("config.json"))? else {
            return Err(malformed(
                path,
                "config.json",
                "missing; a model folder holds config.json and model.safetensors",
            ));
        };
        let mut folder = Self {
            path: path.to_owned(),
            config,
            generation: json::read(&path.join("generation_config.json"))?.unwrap_or_default(),
            backings: Vec::new(),
            tensors: BTreeMap::new(),
            not_floats: Vec::new(),
            sentence: json::read(&path.join("sentence_bert_config.json"))?.unwrap_or_default(),
            modules: modules::read(path)?,
        };
        for name in folder.shards()? {
            folder.add(&path.join(name), "")?;
        }
        let dense = folder
            .modules
            .iter()
            .filter(|module| module.kind == "Dense");
        let dense: Vec<PathBuf> = dense.map(|module| path.join(&module.path)).collect();
        for (number, module) in dense.iter().enumerate() {
            folder.add(&module.join(SINGLE), &format!("module.{number}."))?;
        }
        Ok(folder)
    }

    /// Where the folder lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The keys of `config.json`.
    pub fn config(&self) -> &Keys {
        &self.config
    }

    /// The keys of `generation_config.json`.
    pub fn generation(&self) -> &Keys {
        &self.generation
    }

    /// The keys of `sentence_bert_config.json`.
    pub fn sentence(&self) -> &Keys {
        &self.sentence
    }

    /// What `modules.json` lists; nothing if there is no such file.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// All tensors by name; those of further modules begin with `module.`, their number and a dot.
    pub fn tensors(&self) -> &BTreeMap<String, Raw> {
        &self.tensors
    }

    /// Tensors of whole numbers or truth values: buffers of the program that trained the model, or
    /// weights packed by some method.
    pub fn not_floats(&self) -> &[String] {
        &self.not_floats
    }

    /// The elements of a tensor; nothing if there is none of that name.
    pub fn values(&self, name: &str) -> Vec<f32> {
        let Some(raw) = self.tensors.get(name) else {
            return Vec::new();
        };
        let mut out = vec![0.0; raw.elements()];
        let bytes = &self.backings[raw.backing].bytes()[raw.bytes.clone()];
        raw.format.dequantize(bytes, &mut out);
        out
    }

    /// The folder as one file of these keys and tensors.
    ///
    /// # Panics
    /// If a stored tensor is not in the folder or has other than `rows · cols` elements.
    pub fn into_file(self, metadata: Metadata, made: Vec<Made>) -> WeightFile {
        let mut backings = self.backings;
        let mut computed = Vec::new();
        let own = backings.len();
        let mut entries = Vec::with_capacity(made.len());
        let mut positions = HashMap::new();
        for Made {
            name,
            rows,
            cols,
            data,
        } in made
        {
            let (format, backing, bytes) = match data {
                Data::Stored(from) => {
                    let raw = &self.tensors[&from];
                    assert_eq!(raw.elements(), rows * cols, "the shape of `{name}`");
                    (raw.format, raw.backing, raw.bytes.clone())
                }
                Data::Computed(values) => {
                    assert_eq!(values.len(), rows * cols, "the shape of `{name}`");
                    let start = computed.len();
                    computed.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                    (Format::F32, own, start..computed.len())
                }
            };
            positions.insert(name.clone(), entries.len());
            entries.push(TensorEntry {
                name,
                format,
                rows,
                cols,
                backing,
                bytes,
            });
        }
        backings.push(Backing::Owned(computed));
        let index = Index {
            metadata,
            tensors: entries,
            positions,
        };
        WeightFile {
            path: self.path,
            others: Vec::new(),
            backings,
            index,
        }
    }

    /// The files that hold the tensors.
    fn shards(&self) -> Result<Vec<String>, OpenError> {
        let index = self.path.join(INDEX);
        let Some(keys) = json::read(&index)? else {
            return self.single();
        };
        let mut names = Vec::new();
        for (key, value) in keys.metadata.iter() {
            let Some(tensor) = key.strip_prefix("weight_map.") else {
                continue;
            };
            let forthwith_core::metadata::Value::Text(name) = value else {
                return Err(malformed(&index, tensor, "not the name of a file"));
            };
            let name = String::from_utf8_lossy(name).into_owned();
            let plain = !name.contains(['/', '\\', '\0']) && name.ends_with(".safetensors");
            if !plain || name.starts_with('.') {
                let problem = "not the name of a safetensors file in this folder";
                return Err(malformed(&index, tensor, problem));
            }
            names.push(name);
        }
        names.sort_unstable();
        names.dedup();
        if names.is_empty() || names.len() > MAX_SHARDS {
            let problem = format!("names {} files, allowed are 1 to {MAX_SHARDS}", names.len());
            return Err(malformed(&index, "weight_map", problem));
        }
        Ok(names)
    }

    fn single(&self) -> Result<Vec<String>, OpenError> {
        if self.path.join(SINGLE).exists() {
            return Ok(vec![SINGLE.to_owned()]);
        }
        for pickled in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
            if self.path.join(pickled).exists() {
                let problem = "weights in Python's pickle format can run code when they are read and are \
                               not opened; convert them to safetensors";
                return Err(malformed(&self.path, pickled, problem));
            }
        }
        let problem = "missing; weights are read from it, or from files that \
                       model.safetensors.index.json lists";
        Err(malformed(&self.path, SINGLE, problem))
    }

    /// Reads the header of one file; its tensors get names with a prefix.
    fn add(&mut self, path: &Path, prefix: &str) -> Result<(), OpenError> {
        let (map, file) = mmap::map(path)?;
        let (size, header) = SafeTensors::read_metadata(&map)
            .map_err(|error| malformed(path, "header", error.to_string()))?;
        let backing = self.backings.len();
        let listed: BTreeMap<_, _> = header.tensors().into_iter().collect();
        for (name, info) in listed {
            if [Dtype::I64, Dtype::BOOL, Dtype::U8].contains(&info.dtype) {
                self.not_floats.push(name);
                continue;
            }
            let format = match info.dtype {
                Dtype::F32 => Format::F32,
                Dtype::F16 => Format::F16,
                Dtype::BF16 => Format::BF16,
                other => {
                    let problem =
                        format!("{other:?} is not supported; supported are F32, F16, BF16");
                    return Err(malformed(path, &format!("tensor `{name}`"), problem));
                }
            };
            let start = 8 + size;
            let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
            let raw = Raw {
                format,
                shape: info.shape.clone(),
                backing,
                bytes,
            };
            if raw.bytes.end > map.len() || raw.bytes.len() != format.row_bytes(raw.elements()) {
                let problem = "lies outside the file".to_owned();
                return Err(malformed(path, &format!("tensor `{name}`"), problem));
            }
            let name = format!("{prefix}{name}");
            if self.tensors.insert(name.clone(), raw).is_some() {
                let problem = "is in two files".to_owned();
                return Err(malformed(path, &format!("tensor `{name}`"), problem));
            }
        }
        self.backings.push(Backing::Mapped(map, file));
        Ok(())
    }
}

impl Raw {
    /// Elements over all dimensions.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Rows and columns: the last dimension, and all others together.
    pub fn matrix(&self) -> (usize, usize) {
        let cols = self.shape.last().copied().unwrap_or(1);
        (self.elements().checked_div(cols).unwrap_or(0), cols)
    }
}

pub(crate) fn malformed(path: &Path, field: &str, problem: impl Into<String>) -> OpenError {
    OpenError::Malformed {
        path: path.to_owned(),
        field: field.to_owned(),
        problem: crate::error::one_line(&problem.into()),
    }
}
