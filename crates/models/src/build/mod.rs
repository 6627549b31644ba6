//! Writes programs. Architectures compose the phase builders of this folder.

pub(crate) mod attention;
pub(crate) mod embedding;
pub(crate) mod encoder;
pub(crate) mod experts;
pub(crate) mod head;
pub(crate) mod mlp;

use crate::error::LoadFault;
use crate::rope::{LongRope, RopeScaling, RopeSpec};
use crate::spec::ModelSpec;
use forthwith_core::program::{KvLayer, Linear, Norm, Phase, Program, Rope, WeightId, WeightSpec};
use forthwith_core::shape::{TensorView, WeightSource};
use forthwith_core::units::Tokens;
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
    /// By tensor and place in it.
    ids: BTreeMap<(String, usize), WeightId>,
    /// Tensors that went into the program as numbers, not as weights.
    absorbed: BTreeSet<&'static str>,
    ropes: Vec<Rope>,
    kv_layers: Vec<KvLayer>,
    phases: Vec<Phase>,
}

impl<'a> ProgramBuilder<'a> {
    /// Starts a program and computes the spec's rotary embeddings.
    pub(crate) fn new(
        file: &'a WeightFile,
        spec: &'a ModelSpec,
        context: Tokens,
    ) -> Result<Self, LoadFault> {
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
            let factors = builder.rope_factors(rope, context)?;
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

    /// Adds the cache of one attention layer and returns its index. Where a step computes whole texts
    /// nothing is kept, and layers of one shape take turns with one cache.
    pub(crate) fn push_kv_layer(&mut self, layer: KvLayer) -> usize {
        let same = self.kv_layers.iter().position(|other| *other == layer);
        if let Some(same) = same.filter(|_| !self.spec.causal) {
            return same;
        }
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
        Ok(self.take(name, 0, (rows, cols), &view))
    }

    /// Takes the first rows of the matrix of that name.
    pub(crate) fn first_rows(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, LoadFault> {
        let stored = self.file.tensor(name).map_or(rows, |view| view.rows);
        let view = self.view(name, stored.max(rows), cols)?;
        Ok(self.take(name, 0, (rows, cols), &view))
    }

    /// Takes all of a matrix of so many columns; a single row is a vector.
    pub(crate) fn table(&mut self, name: &str, cols: usize) -> Result<WeightId, LoadFault> {
        let rows = self.file.tensor(name).map_or(1, |view| view.rows.max(1));
        self.matrix(name, rows, cols)
    }

    /// The rows of a tensor, if the file has it.
    pub(crate) fn rows_of(&self, name: &str) -> Option<usize> {
        self.file.tensor(name).map(|view| view.rows)
    }

    /// Takes the matrix `<stem>.weight` and, where the file has one, `<stem>.bias`.
    pub(crate) fn linear(
        &mut self,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Linear, LoadFault> {
        let of = rows;
        self.linear_part(stem, Part { first: 0, rows, of }, cols)
    }

    /// The same from tensors that hold several matrices, one after the other.
    pub(crate) fn linear_part(
        &mut self,
        stem: &str,
        part: Part,
        cols: usize,
    ) -> Result<Linear, LoadFault> {
        let name = format!("{stem}.weight");
        let view = self.view(&name, part.of, cols)?;
        let weight = self.take(&name, part.first, (part.rows, cols), &view);
        let name = format!("{stem}.bias");
        let bias = if self.has(&name) {
            let view = self.finite(&name, part.of)?;
            Some(self.take(&name, part.first, (1, part.rows), &view))
        } else {
            None
        };
        Ok(Linear { weight, bias })
    }

    fn take(
        &mut self,
        name: &str,
        first: usize,
        (rows, cols): (usize, usize),
        view: &TensorView<'_>,
    ) -> WeightId {
        let key = (name.to_owned(), first);
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        let id = WeightId(self.weights.len());
        self.ids.insert(key, id);
        self.weights.push(WeightSpec {
            name: name.to_owned(),
            first,
            rows,
            cols,
            format: view.format,
        });
        id
    }

    /// Takes the norm `<stem>.weight` over `width` elements and, where the file has one, its bias.
    pub(crate) fn norm(&mut self, stem: &str, width: usize) -> Result<Norm, LoadFault> {
        let bias = format!("{stem}.bias");
        let bias = self.has(&bias).then_some(bias);
        Ok(Norm {
            kind: self.spec.norm,
            weight: self.vector(&format!("{stem}.weight"), width)?,
            bias: bias.map(|name| self.vector(&name, width)).transpose()?,
            eps: self.spec.dimensions.norm_eps,
        })
    }

    fn vector(&mut self, name: &str, width: usize) -> Result<WeightId, LoadFault> {
        let view = self.finite(name, width)?;
        Ok(self.take(name, 0, (1, width), &view))
    }

    /// Takes the norm of a family that has it.
    pub(crate) fn optional_norm(
        &mut self,
        layer: usize,
        part: Option<&str>,
        width: usize,
    ) -> Result<Option<Norm>, LoadFault> {
        part.map(|part| self.norm(&layer_name(layer, part), width))
            .transpose()
    }

    /// A vector, all of whose elements are numbers.
    fn finite(&self, name: &str, width: usize) -> Result<TensorView<'a>, LoadFault> {
        let view = self.view(name, 1, width)?;
        check_all(name, &view.to_f32(), "finite", f32::is_finite)?;
        Ok(view)
    }

    /// The finished program, or the list of tensors that it leaves unused.
    pub(crate) fn finish(self, architecture: &str) -> Result<Program, LoadFault> {
        let taken: BTreeSet<&str> = self.ids.keys().map(|(name, _)| name.as_str()).collect();
        let unused: Vec<String> = self
            .file
            .tensors()
            .map(|tensor| tensor.name)
            .filter(|name| !taken.contains(name) && !self.absorbed.contains(name))
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

    fn rope_factors(
        &mut self,
        rope: &RopeSpec,
        context: Tokens,
    ) -> Result<Option<Vec<f32>>, LoadFault> {
        if let RopeScaling::Long(long) = &rope.scaling {
            return self.long_factors(long, rope.rotated / 2, context);
        }
        let Some(name) = rope.factors.filter(|name| self.has(name)) else {
            return Ok(None);
        };
        self.factors(name, rope.rotated / 2).map(Some)
    }

    /// The list for short or for long contexts, of the metadata or of two tensors.
    fn long_factors(
        &mut self,
        long: &LongRope,
        pairs: usize,
        context: Tokens,
    ) -> Result<Option<Vec<f32>>, LoadFault> {
        const NAMES: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];
        let which = usize::from(context.get() > long.original_context);
        if let Some(lists) = &long.lists {
            return Ok(Some(lists[which].clone()));
        }
        let lists = NAMES.map(|name| self.factors(name, pairs));
        let [short, long] = lists;
        Ok(Some(if which == 0 { short? } else { long? }))
    }

    fn factors(&mut self, name: &'static str, pairs: usize) -> Result<Vec<f32>, LoadFault> {
        let factors = self.view(name, 1, pairs)?.to_f32();
        let usable = |factor: f32| factor.is_finite() && factor > 0.0;
        check_all(name, &factors, "finite and positive", usable)?;
        self.absorbed.insert(name);
        Ok(factors)
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

/// What a layer's tensors are called in GGUF files, without `.weight` or `.bias`.
fn layer_name(layer: usize, part: &str) -> String {
    format!("blk.{layer}.{part}")
}

/// Rows of a tensor that holds several matrices.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) first: usize,
    pub(crate) rows: usize,
    /// Rows of the whole tensor.
    pub(crate) of: usize,
}
