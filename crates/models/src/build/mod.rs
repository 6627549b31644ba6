//! Writes programs. Architectures compose the phase builders of this folder.

pub(crate) mod attention;
pub(crate) mod embedding;
pub(crate) mod head;
pub(crate) mod mlp;

use crate::error::LoadFault;
use crate::rope::RopeSpec;
use crate::spec::ModelSpec;
use forthwith_core::program::{KvLayer, Norm, Phase, Program, Rope, WeightId, WeightSpec};
use forthwith_core::shape::{TensorView, WeightSource};
use forthwith_weights::WeightFile;
use std::collections::{BTreeMap, BTreeSet};

/// A program in the making and the file whose tensors it takes.
///
/// Every tensor is taken by name with the shape that the spec demands. What was taken is
/// remembered, so that [`ProgramBuilder::finish`] can refuse a file with weights left over.
pub(crate) struct ProgramBuilder<'a> {
    file: &'a WeightFile,
    spec: &'a ModelSpec,
    weights: Vec<WeightSpec>,
    ids: BTreeMap<String, WeightId>,
    /// Tensors that went into the program as numbers, not as weights.
    absorbed: BTreeSet<&'static str>,
    ropes: Vec<Rope>,
    kv_layers: Vec<KvLayer>,
    phases: Vec<Phase>,
}

impl<'a> ProgramBuilder<'a> {
    /// Starts a program and computes the spec's rotary embeddings.
    pub(crate) fn new(file: &'a WeightFile, spec: &'a ModelSpec) -> Result<Self, LoadFault> {
        let mut builder = Self {
            file,
            spec,
            weights: Vec::new(),
            ids: BTreeMap::new(),
            absorbed: BTreeSet::new(),
            ropes: Vec::new(),
            kv_layers: Vec::new(),
            phases: Vec::new(),
        };
        for rope in &spec.ropes {
            let factors = builder.rope_factors(rope)?;
            builder.ropes.push(rope.rope(factors.as_deref()));
        }
        Ok(builder)
    }

    pub(crate) fn spec(&self) -> &'a ModelSpec {
        self.spec
    }

    pub(crate) fn push(&mut self, phase: Phase) {
        self.phases.push(phase);
    }

    /// Adds the cache of one attention layer and returns its index.
    pub(crate) fn push_kv_layer(&mut self, layer: KvLayer) -> usize {
        self.kv_layers.push(layer);
        self.kv_layers.len() - 1
    }

    /// Whether the file has a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Takes the matrix of that name; taken twice, it is the same weight.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, LoadFault> {
        let view = self.view(name, rows, cols)?;
        if let Some(&id) = self.ids.get(name) {
            return Ok(id);
        }
        let id = WeightId(self.weights.len());
        self.ids.insert(name.to_owned(), id);
        self.weights.push(WeightSpec {
            name: name.to_owned(),
            rows,
            cols,
            format: view.format,
        });
        Ok(id)
    }

    /// Takes the norm of that name over `width` elements.
    pub(crate) fn norm(&mut self, name: &str, width: usize) -> Result<Norm, LoadFault> {
        let weight = self.matrix(name, 1, width)?;
        check_all(
            name,
            &self.view(name, 1, width)?.to_f32(),
            "finite",
            f32::is_finite,
        )?;
        Ok(Norm {
            weight,
            eps: self.spec.dimensions.norm_eps,
        })
    }

    /// The finished program, or the list of tensors that it leaves unused.
    pub(crate) fn finish(self, architecture: &str) -> Result<Program, LoadFault> {
        let unused: Vec<String> = self
            .file
            .tensors()
            .map(|tensor| tensor.name)
            .filter(|name| !self.ids.contains_key(*name) && !self.absorbed.contains(name))
            .map(str::to_owned)
            .collect();
        if !unused.is_empty() {
            return Err(LoadFault::Unused {
                architecture: architecture.to_owned(),
                tensors: unused,
            });
        }
        let dimensions = &self.spec.dimensions;
        Ok(Program {
            architecture: architecture.to_owned(),
            hidden: dimensions.hidden,
            vocab: dimensions.vocab,
            context: dimensions.context,
            weights: self.weights,
            ropes: self.ropes,
            kv_layers: self.kv_layers,
            phases: self.phases,
        })
    }

    fn rope_factors(&mut self, rope: &RopeSpec) -> Result<Option<Vec<f32>>, LoadFault> {
        let Some(name) = rope.factors.filter(|name| self.has(name)) else {
            return Ok(None);
        };
        let factors = self.view(name, 1, rope.rotated / 2)?.to_f32();
        let usable = |factor: f32| factor.is_finite() && factor > 0.0;
        check_all(name, &factors, "finite and positive", usable)?;
        self.absorbed.insert(name);
        Ok(Some(factors))
    }

    fn view(&self, name: &str, rows: usize, cols: usize) -> Result<TensorView<'a>, LoadFault> {
        let Some(view) = self.file.tensor(name) else {
            return Err(LoadFault::MissingTensor {
                tensor: name.to_owned(),
                rows,
                cols,
            });
        };
        if (view.rows, view.cols) == (rows, cols) {
            return Ok(view);
        }
        Err(LoadFault::Shape {
            tensor: name.to_owned(),
            expected: (rows, cols),
            found: (view.rows, view.cols),
        })
    }
}

fn check_all(
    name: &str,
    values: &[f32],
    must_be: &str,
    holds: impl Fn(f32) -> bool,
) -> Result<(), LoadFault> {
    match values.iter().position(|&value| !holds(value)) {
        None => Ok(()),
        Some(index) => Err(LoadFault::Content {
            tensor: name.to_owned(),
            problem: format!("element {index} is {}, must be {must_be}", values[index]),
        }),
    }
}

/// The name of a layer's weight in GGUF files.
fn layer_weight(layer: usize, part: &str) -> String {
    format!("blk.{layer}.{part}.weight")
}
