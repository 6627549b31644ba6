//! The forward pass as data: a flat list of fused phases over named weights.
//!
//! `forthwith-models` writes a [`Program`] once at load. Backends execute it, the planner sums
//! bytes and operations over it, `inspect` prints it. A phase knows weights by [`WeightId`] and
//! data by a fixed set of buffers, one row per token of the step:
//!
//! | buffer | width | written by | read by |
//! |---|---|---|---|
//! | residual | `hidden` | embed, output residual, down residual, experts | norms |
//! | qkv | `(heads + 2·kv_heads)·head_dim` | qkv projection | attention |
//! | attended | `heads·head_dim` | attention | output residual |
//! | gated | `feed_forward` | gate and up, or up alone | down residual |
//! | output | `vocab`, or as wide as the pool | logits or pool (listed rows only) | the engine |
//!
//! Each buffer has one writer between two of its readers, so phases that read the same residual may
//! stand in any order: a family whose feed-forward layer works beside attention lists its `up`
//! before the attention's output joins the residual.

mod experts;
mod texts;

pub use experts::Experts;
pub use texts::{HeadLayer, Output, Pool, Pooling, RelativeBias};

use crate::format::Format;
use crate::units::{Bytes, Tokens};
use std::fmt;

/// An index into [`Program::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightId(pub usize);

/// A weight that a program needs, as its file holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// The tensor's name in the file.
    pub name: String,
    /// Where the weight begins in that tensor, in rows, or in elements for a vector: 0 unless the
    /// tensor holds several weights, one after the other.
    pub first: usize,
    /// Outputs of a matrix product, or 1 for a vector.
    pub rows: usize,
    /// Inputs of a matrix product, or the vector's length.
    pub cols: usize,
    /// How it is stored.
    pub format: Format,
}

impl WeightSpec {
    /// The stored size.
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.rows as u64 * self.format.row_bytes(self.cols) as u64)
    }
}

/// A whole model, ready to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The architecture's name, for messages.
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the logits.
    pub vocab: usize,
    /// Positions that the model was trained for.
    pub context: Tokens,
    /// The weights that the phases name.
    pub weights: Vec<WeightSpec>,
    /// The rotary embeddings that the attention phases name.
    pub ropes: Vec<Rope>,
    /// What each attention layer caches; [`Attention::layer`] indexes it.
    pub kv_layers: Vec<KvLayer>,
    /// The phases in order.
    pub phases: Vec<Phase>,
}

/// What one attention layer keeps per position: a key and a value of `kv_heads × head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Key-value heads.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// The layer looks back at most this far, itself included; `None` is everything.
    pub window: Option<Tokens>,
}

/// One fused phase.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// `residual = scale · table[token]`
    Embed(Embed),
    /// `qkv = [Wq; Wk; Wv] · norm(residual)`
    QkvProjection(QkvProjection),
    /// Norms of heads, rotary embedding, write to the KV cache, attention over it.
    Attention(Attention),
    /// `residual += scale · W · attended`, with a norm before or after that.
    OutputResidual(ProjectionResidual),
    /// `gated = activation(Wg · n) ⊙ (Wu · n)` with `n = norm(residual)`
    GateUp(GateUp),
    /// `gated = activation(W · norm(residual))`
    Up(Up),
    /// `residual += scale · W · gated`, with a norm before or after that.
    DownResidual(ProjectionResidual),
    /// `residual += scale · Σ weight_e · Wd_e · (activation(Wg_e · n) ⊙ (Wu_e · n))` over the experts
    /// `e` that a router chooses, with `n = norm(residual)`.
    Experts(Experts),
    /// `logits = softcap(scale · W · norm(residual))` for the listed rows.
    Logits(Logits),
    /// One vector for each text or token: a row of the residual or their mean, through the layers of
    /// a head.
    Pool(Pool),
}

/// A matrix product and what is added to it: `W · x + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// `[outputs, inputs]`
    pub weight: WeightId,
    /// One number per output.
    pub bias: Option<WeightId>,
}

impl From<WeightId> for Linear {
    fn from(weight: WeightId) -> Self {
        Self { weight, bias: None }
    }
}

/// A norm over the elements of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// What the row is divided by.
    pub kind: NormKind,
    /// One factor per element.
    pub weight: WeightId,
    /// One number per element, added last.
    pub bias: Option<WeightId>,
    /// Added to the mean square.
    pub eps: f32,
}

/// The kinds of norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) · weight`. Source: Zhang & Sennrich 2019, arXiv:1910.07467.
    RootMeanSquare,
    /// The same of `x − mean(x)`. Source: Ba et al. 2016, arXiv:1607.06450.
    Layer,
}

/// Parameters of [`Phase::Embed`].
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// `[vocab, hidden]`
    pub table: WeightId,
    /// Multiplies the row; 1 for most families.
    pub scale: f32,
    /// `[positions, hidden]`, a learned row for each position, added next.
    pub positions: Option<WeightId>,
    /// `[types, hidden]`, a row for the first and the second text of a pair, added next.
    pub token_types: Option<WeightId>,
    /// Norm of the sum.
    pub norm: Option<Norm>,
}

/// Parameters of [`Phase::QkvProjection`].
#[derive(Clone, Debug, PartialEq)]
pub struct QkvProjection {
    /// Norm of the residual.
    pub norm: Option<Norm>,
    /// `[heads·head_dim, hidden]`
    pub query: Linear,
    /// `[kv_heads·head_dim, hidden]`
    pub key: Linear,
    /// `[kv_heads·head_dim, hidden]`
    pub value: Linear,
}

/// Parameters of [`Phase::Attention`].
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Index into [`Program::kv_layers`].
    pub layer: usize,
    /// Query heads; a multiple of the layer's `kv_heads`. Query head `h` reads kv head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// Norm of each run of query elements as long as its weight: of each head, or of all together.
    pub query_norm: Option<Norm>,
    /// The same of the key elements.
    pub key_norm: Option<Norm>,
    /// Index into [`Program::ropes`].
    pub rope: Option<usize>,
    /// Multiplies `q · k`.
    pub scale: f32,
    /// `softcap · tanh(score / softcap)` when present.
    pub softcap: Option<f32>,
    /// Tokens see only what stands before them, themselves included. If not, a step must hold whole
    /// sequences, and the layer's window reaches as far ahead as back.
    pub causal: bool,
    /// Added to the scores.
    pub relative_bias: Option<RelativeBias>,
}

/// Parameters of [`Phase::OutputResidual`] and [`Phase::DownResidual`].
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectionResidual {
    /// `[hidden, inputs]`
    pub projection: Linear,
    /// Norm of the projection before it is added.
    pub post_norm: Option<Norm>,
    /// Multiplies what is added; 1 for most families.
    pub scale: f32,
    /// Norm of the residual after the addition.
    pub sum_norm: Option<Norm>,
}

/// Parameters of [`Phase::GateUp`].
#[derive(Clone, Debug, PartialEq)]
pub struct GateUp {
    /// Norm of the residual.
    pub norm: Option<Norm>,
    /// `[feed_forward, hidden]`
    pub gate: Linear,
    /// `[feed_forward, hidden]`
    pub up: Linear,
    /// Applied to the gate.
    pub activation: Activation,
}

/// Parameters of [`Phase::Up`].
#[derive(Clone, Debug, PartialEq)]
pub struct Up {
    /// Norm of the residual.
    pub norm: Option<Norm>,
    /// `[feed_forward, hidden]`
    pub up: Linear,
    /// Applied to the product.
    pub activation: Activation,
}

/// Parameters of [`Phase::Logits`].
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// Norm of the residual.
    pub norm: Option<Norm>,
    /// `[vocab, hidden]`; the embedding table again when tied.
    pub head: Linear,
    /// Multiplies the logits; 1 for most families.
    pub scale: f32,
    /// `softcap · tanh(logit / softcap)` when present.
    pub softcap: Option<f32>,
}

/// A non-linearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(−x))`
    Silu,
    /// `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`
    GeluTanh,
    /// `x/2 · (1 + erf(x/√2))`
    Gelu,
    /// `max(x, 0)`
    Relu,
    /// `tanh(x)`
    Tanh,
}

/// Which elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Elements `2i` and `2i + 1`.
    Adjacent,
    /// Elements `i` and `i + rotated/2`.
    Halves,
}

/// A rotary position embedding: pair `i` turns by `position · inverse_frequencies[i]`.
///
/// The first `2·inverse_frequencies.len()` elements of a head rotate; the rest pass through.
/// Source: Su et al. 2021, arXiv:2104.09864.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which elements form a pair.
    pub pairing: Pairing,
    /// Radians per position of each pair, scaling included.
    pub inverse_frequencies: Vec<f64>,
    /// Multiplies the rotated elements; 1 unless a scaling method says otherwise.
    pub magnitude: f32,
}

/// What a phase moves and computes for one token, caches and weights in full; of experts those that
/// one token uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Weight bytes read once per step, however many tokens ride in it.
    pub weight_bytes: Bytes,
    /// Multiply-adds per token, without attention over the context.
    pub multiply_adds: u64,
    /// Multiply-adds per token and cached position.
    pub multiply_adds_per_position: u64,
}

impl Phase {
    /// The phase's name in listings and timings.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "embed",
            Self::QkvProjection(_) => "norm + qkv",
            Self::Attention(_) => "attention",
            Self::OutputResidual(_) => "output + residual",
            Self::GateUp(_) => "norm + gate, up",
            Self::Up(_) => "norm + up",
            Self::DownResidual(_) => "down + residual",
            Self::Experts(_) => "norm + experts",
            Self::Logits(_) => "norm + logits",
            Self::Pool(_) => "pool",
        }
    }

    /// The products that the phase computes.
    pub fn products(&self) -> Vec<Linear> {
        match self {
            Self::Embed(_) | Self::Attention(_) => vec![],
            Self::QkvProjection(phase) => vec![phase.query, phase.key, phase.value],
            Self::OutputResidual(phase) | Self::DownResidual(phase) => vec![phase.projection],
            Self::GateUp(phase) => vec![phase.gate, phase.up],
            Self::Up(phase) => vec![phase.up],
            Self::Experts(phase) => [phase.router, phase.gate, phase.up, phase.down]
                .map(Linear::from)
                .to_vec(),
            Self::Logits(phase) => vec![phase.head],
            Self::Pool(phase) => phase.layers.iter().map(|layer| layer.linear).collect(),
        }
    }

    /// The matrices that the phase multiplies by.
    pub fn matrices(&self) -> Vec<WeightId> {
        let products = self.products().into_iter();
        products.map(|product| product.weight).collect()
    }

    /// The norms that the phase applies.
    pub fn norms(&self) -> Vec<Norm> {
        let norms = match self {
            Self::Embed(phase) => vec![phase.norm],
            Self::QkvProjection(phase) => vec![phase.norm],
            Self::Attention(phase) => vec![phase.query_norm, phase.key_norm],
            Self::OutputResidual(phase) | Self::DownResidual(phase) => {
                vec![phase.post_norm, phase.sum_norm]
            }
            Self::GateUp(phase) => vec![phase.norm],
            Self::Up(phase) => vec![phase.norm],
            Self::Experts(phase) => vec![phase.norm],
            Self::Logits(phase) => vec![phase.norm],
            Self::Pool(phase) => {
                let layers = phase.layers.iter().map(|layer| layer.norm);
                std::iter::once(phase.norm).chain(layers).collect()
            }
        };
        norms.into_iter().flatten().collect()
    }
}

impl Program {
    /// The spec of a weight.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0]
    }

    /// What one phase costs.
    pub fn cost(&self, phase: &Phase) -> Cost {
        if let Phase::Experts(phase) = phase {
            return self.cost_of_experts(phase);
        }
        let mut cost = Cost::default();
        for id in phase.matrices() {
            let weight = self.weight(id);
            cost.weight_bytes += weight.bytes();
            cost.multiply_adds += weight.rows as u64 * weight.cols as u64;
        }
        match phase {
            Phase::Embed(embed) => {
                let table = self.weight(embed.table);
                cost.weight_bytes = Bytes::new(table.format.row_bytes(table.cols) as u64);
            }
            Phase::Attention(attention) => {
                let head_dim = self.kv_layers[attention.layer].head_dim;
                cost.multiply_adds_per_position = 2 * attention.heads as u64 * head_dim as u64;
            }
            _ => {}
        }
        cost
    }

    /// Key and value elements that one position occupies over all layers.
    pub fn kv_elements_per_token(&self) -> usize {
        self.kv_layers
            .iter()
            .map(|layer| 2 * layer.kv_heads * layer.head_dim)
            .sum()
    }

    /// The stored size of all weights.
    pub fn weight_bytes(&self) -> Bytes {
        self.weights.iter().map(WeightSpec::bytes).sum()
    }

    /// Parameters over all weights.
    pub fn parameters(&self) -> u64 {
        self.weights
            .iter()
            .map(|weight| weight.rows as u64 * weight.cols as u64)
            .sum()
    }

    /// The widest qkv, attended and gated rows that any phase writes.
    pub fn buffer_widths(&self) -> BufferWidths {
        let mut widths = BufferWidths::default();
        for phase in &self.phases {
            match phase {
                Phase::QkvProjection(p) => {
                    let width: usize = [p.query, p.key, p.value]
                        .iter()
                        .map(|product| self.weight(product.weight).rows)
                        .sum();
                    widths.qkv = widths.qkv.max(width);
                }
                Phase::OutputResidual(p) => {
                    widths.attended = widths.attended.max(self.weight(p.projection.weight).cols);
                }
                Phase::GateUp(GateUp { up, .. }) | Phase::Up(Up { up, .. }) => {
                    widths.gated = widths.gated.max(self.weight(up.weight).rows);
                }
                _ => {}
            }
        }
        widths
    }
}

/// Widths of the buffers of a step, in elements per token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferWidths {
    /// Queries, keys and values side by side.
    pub qkv: usize,
    /// Attention's output, heads side by side.
    pub attended: usize,
    /// The feed-forward layer's inner width.
    pub gated: usize,
}

impl fmt::Display for Program {
    /// One line per distinct run of phases: `30 × attention …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, phase) in self.phases.iter().enumerate() {
            let cost = self.cost(phase);
            write!(f, "{index:4}  {:18}", phase.name())?;
            for id in phase.matrices() {
                let weight = self.weight(id);
                write!(
                    f,
                    "  {} [{}, {}] {}",
                    weight.name, weight.rows, weight.cols, weight.format
                )?;
            }
            if let Phase::Attention(attention) = phase {
                let layer = self.kv_layers[attention.layer];
                write!(
                    f,
                    "  heads {}:{} × {}",
                    attention.heads, layer.kv_heads, layer.head_dim
                )?;
                if let Some(window) = layer.window {
                    write!(f, "  window {window}")?;
                }
            }
            if let Phase::Experts(experts) = phase {
                write!(f, "  {} of {}", experts.used, self.experts(experts))?;
            }
            writeln!(f, "  ({})", cost.weight_bytes)?;
        }
        Ok(())
    }
}
