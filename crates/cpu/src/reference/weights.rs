//! The weights of the reference: held as floats, or read for each step.

use crate::executor::{LoadError, find, first_byte};
use forthwith_core::executor::StepError;
use forthwith_core::program::{Phase, Program, WeightId, WeightSpec};
use forthwith_core::shape::{ReadError, WeightSource};
use std::borrow::Cow;
use std::ops::Range;

/// Row-major, dequantized.
pub(super) struct Weights<'a> {
    /// Empty where a weight is read for each step.
    held: Vec<Vec<f32>>,
    source: Option<&'a dyn WeightSource>,
}

impl Weights<'static> {
    /// All of them in memory.
    pub(super) fn load(program: &Program, source: &dyn WeightSource) -> Result<Self, LoadError> {
        let specs = program.weights.iter();
        let held = specs.map(|spec| Ok(find(source, spec)?.to_f32()));
        Ok(Self {
            held: held.collect::<Result<_, LoadError>>()?,
            source: None,
        })
    }
}

impl<'a> Weights<'a> {
    /// Vectors and small tables in memory.
    pub(super) fn streamed(
        program: &Program,
        source: &'a dyn WeightSource,
    ) -> Result<Self, LoadError> {
        let biases = program.phases.iter().filter_map(|phase| match phase {
            Phase::Attention(phase) => Some(phase.relative_bias?.table),
            _ => None,
        });
        let biases: Vec<WeightId> = biases.collect();
        let mut held = Vec::new();
        for (index, spec) in program.weights.iter().enumerate() {
            find(source, spec)?;
            if spec.rows > 1 && !biases.contains(&WeightId(index)) {
                held.push(Vec::new());
                continue;
            }
            let values = read(source, spec, 0..spec.rows).map_err(|reason| LoadError::Read {
                name: spec.name.clone(),
                reason,
            })?;
            held.push(values);
        }
        Ok(Self {
            held,
            source: Some(source),
        })
    }

    /// A vector or a small table.
    pub(super) fn held(&self, id: WeightId) -> &[f32] {
        &self.held[id.0]
    }

    /// Rows of a weight; those that are read must be numbers.
    pub(super) fn rows(
        &self,
        (id, spec): (WeightId, &WeightSpec),
        rows: Range<usize>,
    ) -> Result<Cow<'_, [f32]>, StepError> {
        let held = &self.held[id.0];
        let Some(source) = self.source.filter(|_| held.is_empty()) else {
            let values = &held[rows.start * spec.cols..rows.end * spec.cols];
            return Ok(Cow::Borrowed(values));
        };
        let first = rows.start;
        let problem = |problem: String| {
            let name = &spec.name;
            StepError::Device(format!("tensor `{name}`, from row {first}: {problem}"))
        };
        let values = read(source, spec, rows).map_err(|error| problem(error.to_string()))?;
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(problem(format!("{value} is not a number"))),
            None => Ok(Cow::Owned(values)),
        }
    }
}

/// Reads rows of a weight, as the source holds them.
fn read(
    source: &dyn WeightSource,
    spec: &WeightSpec,
    rows: Range<usize>,
) -> Result<Vec<f32>, ReadError> {
    let stride = spec.format.row_bytes(spec.cols);
    let mut bytes = vec![0; rows.len() * stride];
    let start = first_byte(spec) + rows.start * stride;
    source.read(&spec.name, start, &mut bytes)?;
    let mut values = vec![0.0; rows.len() * spec.cols];
    spec.format.dequantize(&bytes, &mut values);
    Ok(values)
}
