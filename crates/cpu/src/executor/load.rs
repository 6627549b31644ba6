//! Loading: every weight of the program checked, repacked on all threads.

use super::attention::HeadBias;
use super::places::Places;
use super::workspace::{Sizes, Workspace};
use super::{Cpu, CpuConfig, Weight};
use crate::kv::{BLOCK_SIZE, KvCache, MAX_HEAD_DIM};
use crate::memory::OutOfMemory;
use crate::quant::LANES;
use crate::quant::kernels::Form;
use crate::quant::matrix::{Packer, stored_bytes};
use crate::team::Team;
use forthwith_core::format::Format;
use forthwith_core::program::{Attention, Embed, Experts, Phase, Program, WeightId, WeightSpec};
use forthwith_core::shape::{ReadError, TensorView, WeightSource};
use forthwith_core::units::{Bytes, Tokens};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// A program cannot be loaded into this backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The source lacks a weight that the program names.
    #[error("tensor `{0}` is missing")]
    Missing(String),
    /// The source holds a weight in another shape or format than the program says.
    #[error("tensor `{name}`: expected [{}, {}] {}, found [{}, {}] {}",
        .expected.rows, .expected.cols, .expected.format, .found.0, .found.1, .found.2)]
    Mismatch {
        /// The tensor.
        name: String,
        /// What the program says.
        expected: WeightSpec,
        /// What the source holds: rows, columns, format.
        found: (usize, usize, Format),
    },
    /// The source's bytes could not be read.
    #[error("cannot read tensor `{name}`: {reason}")]
    Read {
        /// The tensor.
        name: String,
        /// What went wrong.
        reason: ReadError,
    },
    /// The backend cannot run something that the program asks for.
    #[error("the CPU backend cannot run {0}")]
    Unsupported(String),
    /// The system refused memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The system refused a thread.
    #[error("cannot start the thread team: {0}")]
    Threads(#[from] std::io::Error),
}

impl Cpu {
    /// Loads a program's weights; `progress(done, total)` is called after each weight.
    pub fn load(
        program: Arc<Program>,
        source: &dyn WeightSource,
        config: &CpuConfig,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Self, LoadError> {
        check(&program, config.context)?;
        let threads = config.threads.max(1);
        let total = program.weights.len();
        let matrices = program.weights.iter().filter(|spec| spec.rows > 1);
        let mut packer = Packer::new(matrices.map(stored_bytes).sum())?;
        let mut team = Team::new(threads)?;
        let mut vectors = Vec::with_capacity(total);
        for (index, spec) in program.weights.iter().enumerate() {
            let view = find(source, spec)?;
            let part = Part {
                source,
                start: first_byte(spec),
            };
            let read = if spec.rows == 1 {
                read_vector(&view, &part).map(Some)
            } else {
                packer.pack(&view, &part, &mut team).map(|()| None)
            };
            vectors.push(read.map_err(|reason| LoadError::Read {
                name: spec.name.clone(),
                reason,
            })?);
            progress(index + 1, total);
        }
        let weights = gather(vectors, packer);
        let context = config.context.min(config.kv_blocks.tokens(BLOCK_SIZE));
        let sizes = Sizes::of(&program, config.max_step_tokens, context);
        Ok(Self {
            isa: config.isa,
            kv: KvCache::new(&program, config.kv_format, config.kv_blocks)?,
            workspace: Workspace::new(sizes, threads)?,
            places: Places::new(config.max_step_tokens),
            team,
            counters: counters(&program),
            biases: biases(&program, &weights, context),
            max_step_tokens: config.max_step_tokens,
            context,
            profile: None,
            weights,
            program,
        })
    }
}

/// A counter for each phase, more for experts, and one for each layer of a head, which is the last
/// phase.
fn counters(program: &Program) -> Vec<AtomicUsize> {
    let layers = program.phases.last().map_or(0, |phase| match phase {
        Phase::Pool(pool) => pool.layers.len(),
        _ => 0,
    });
    let more = match program.most_experts() {
        (0, _) => layers,
        _ => super::experts::COUNTERS * program.phases.len(),
    };
    let count = program.phases.len() + more;
    (0..count).map(|_| AtomicUsize::new(0)).collect()
}

/// The relative biases of attention phases, for texts of up to `context`.
fn biases(program: &Program, weights: &[Weight], context: Tokens) -> BTreeMap<WeightId, HeadBias> {
    let mut biases = BTreeMap::new();
    for phase in &program.phases {
        if let Phase::Attention(Attention {
            relative_bias: Some(bias),
            ..
        }) = phase
            && let Weight::Matrix(table) = &weights[bias.table.0]
        {
            let spread = || HeadBias::new(bias, table, context.get());
            biases.entry(bias.table).or_insert_with(spread);
        }
    }
    biases
}

/// A source of which one tensor begins at a later byte.
struct Part<'a> {
    source: &'a dyn WeightSource,
    start: usize,
}

impl WeightSource for Part<'_> {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.source.tensor(name)
    }

    fn read(&self, name: &str, offset: usize, out: &mut [u8]) -> Result<(), ReadError> {
        self.source
            .read(name, self.start.saturating_add(offset), out)
    }
}

/// Where a weight begins in its tensor.
pub(crate) fn first_byte(spec: &WeightSpec) -> usize {
    match spec.rows {
        1 => spec.format.row_bytes(spec.first),
        _ => spec.first * spec.format.row_bytes(spec.cols),
    }
}

fn read_vector(view: &TensorView<'_>, source: &dyn WeightSource) -> Result<Vec<f32>, ReadError> {
    let mut bytes = vec![0; view.format.row_bytes(view.cols)];
    source.read(view.name, 0, &mut bytes)?;
    let bytes = &bytes[..];
    Ok(TensorView { bytes, ..*view }.to_f32())
}

/// All weights in the program's order: vectors where they are, packed matrices in between.
fn gather(vectors: Vec<Option<Vec<f32>>>, packer: Packer) -> Vec<Weight> {
    let mut matrices = packer.finish();
    let mut next = || Weight::Matrix(matrices.next().expect("one for each that was packed"));
    let weights = vectors.into_iter();
    weights
        .map(|vector| vector.map_or_else(&mut next, Weight::Vector))
        .collect()
}

/// The bytes of all weights as this backend keeps them.
pub fn weight_bytes(program: &Program) -> Bytes {
    let kept = program.weights.iter().map(kept_bytes);
    Bytes::new(kept.sum::<usize>() as u64)
}

fn kept_bytes(spec: &WeightSpec) -> usize {
    match spec.rows {
        1 => spec.cols * size_of::<f32>(),
        _ => stored_bytes(spec),
    }
}

/// Weights that are kept in another form than the file's, because no kernel reads them as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// The format in the file.
    pub format: Format,
    /// What they become.
    pub form: &'static str,
    /// Their size in the file.
    pub stored: Bytes,
    /// Their size in memory.
    pub memory: Bytes,
}

impl fmt::Display for Expansion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            format,
            form,
            stored,
            memory,
        } = self;
        write!(
            f,
            "no kernel reads {format} as stored; kept as {form}: {memory} in memory for {stored} in the file"
        )
    }
}

/// What loading a program expands, one entry for each format.
pub fn expansions(program: &Program) -> Vec<Expansion> {
    let mut all: BTreeMap<Format, Expansion> = BTreeMap::new();
    for spec in &program.weights {
        let Some(form) = Form::expansion(spec.format) else {
            continue;
        };
        // Vectors always become F32, which loses nothing but where matrices lose it too.
        if spec.rows == 1 && !Form::of(spec.format).reads_plain() {
            continue;
        }
        let memory = Bytes::new(kept_bytes(spec) as u64);
        let entry = all.entry(spec.format).or_insert(Expansion {
            format: spec.format,
            form,
            stored: Bytes::ZERO,
            memory: Bytes::ZERO,
        });
        entry.stored += spec.bytes();
        entry.memory += memory;
    }
    all.into_values().collect()
}

/// Finds a weight, which may be a part of a tensor, and holds it against its spec.
pub(crate) fn find<'a>(
    source: &'a dyn WeightSource,
    spec: &WeightSpec,
) -> Result<TensorView<'a>, LoadError> {
    let view = source
        .tensor(&spec.name)
        .ok_or_else(|| LoadError::Missing(spec.name.clone()))?;
    let fits = match spec.rows {
        1 => view.rows == 1 && spec.first.saturating_add(spec.cols) <= view.cols,
        rows => view.cols == spec.cols && spec.first.saturating_add(rows) <= view.rows,
    };
    if !fits || view.format != spec.format {
        return Err(LoadError::Mismatch {
            name: spec.name.clone(),
            expected: spec.clone(),
            found: (view.rows, view.cols, view.format),
        });
    }
    let start = first_byte(spec);
    let size = spec.rows * spec.format.row_bytes(spec.cols);
    Ok(TensorView {
        rows: spec.rows,
        cols: spec.cols,
        bytes: &view.bytes[start..start + size],
        ..view
    })
}

/// Each expert's rows are whole groups.
fn check_experts(program: &Program, phase: &Experts) -> Result<(), LoadError> {
    let (all, hidden) = (program.experts(phase), program.hidden);
    let [gate, up, down] = [phase.gate, phase.up, phase.down].map(|id| program.weight(id));
    let inner = down.cols;
    let whole = inner.is_multiple_of(LANES) && hidden.is_multiple_of(LANES);
    let fits = gate.rows == all * inner && up.rows == all * inner && down.rows == all * hidden;
    if whole && fits && (1..=all).contains(&phase.used) {
        return Ok(());
    }
    let used = phase.used;
    Err(LoadError::Unsupported(format!(
        "{used} of {all} experts of {inner} elements in a width of {hidden}; the kernels need \
         multiples of {LANES}"
    )))
}

/// What the kernels rely on.
fn check(program: &Program, context: Tokens) -> Result<(), LoadError> {
    for (index, layer) in program.kv_layers.iter().enumerate() {
        if !layer.head_dim.is_multiple_of(8) || !(8..=MAX_HEAD_DIM).contains(&layer.head_dim) {
            return Err(LoadError::Unsupported(format!(
                "layer {index}: heads of {} elements; the kernels need a multiple of 8 up to \
                 {MAX_HEAD_DIM}",
                layer.head_dim
            )));
        }
    }
    for phase in &program.phases {
        if let Phase::Embed(Embed {
            positions: Some(positions),
            ..
        }) = phase
        {
            let learned = Tokens::new(program.weight(*positions).rows);
            if context > learned {
                return Err(LoadError::Unsupported(format!(
                    "a context of {context}: the model learned {learned} positions"
                )));
            }
        }
        for (index, id) in phase.matrices().into_iter().enumerate() {
            let weight = program.weight(id);
            let blocks = !Form::of(weight.format).reads_plain();
            let least = match phase {
                Phase::Pool(pool) if index + 1 == pool.layers.len() => 1,
                _ => 2,
            };
            let whole_blocks = !blocks || weight.cols.is_multiple_of(32);
            if weight.rows < least || (weight.rows > 1 && !whole_blocks) {
                return Err(LoadError::Unsupported(format!(
                    "a product with tensor `{}` of shape [{}, {}]",
                    weight.name, weight.rows, weight.cols
                )));
            }
        }
        if let Phase::Experts(experts) = phase {
            check_experts(program, experts)?;
        }
        if let Phase::Attention(attention) = phase {
            let layer = program.kv_layers[attention.layer];
            let turned = attention
                .rope
                .map_or(0, |rope| 2 * program.ropes[rope].inverse_frequencies.len());
            let divides = layer.kv_heads > 0 && attention.heads.is_multiple_of(layer.kv_heads);
            let table = attention
                .relative_bias
                .map(|bias| program.weight(bias.table));
            let biased = table.is_none_or(|table| {
                table.cols == attention.heads && table.rows >= 8 && table.rows.is_multiple_of(4)
            });
            if !divides || !biased || turned > layer.head_dim {
                return Err(LoadError::Unsupported(format!(
                    "attention with {} heads over {} kv heads of {}, {turned} elements rotated",
                    attention.heads, layer.kv_heads, layer.head_dim
                )));
            }
        }
    }
    Ok(())
}
