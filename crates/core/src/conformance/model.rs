//! The suite's models: a few layers of random weights, each case stressing one phase.

use super::cases::{Case, FeedForward, HeadNorm, Norms, Sight, Vectors};
use crate::format::Format;
use crate::program::{
    Activation, Attention, Embed, Experts, GateUp, HeadLayer, KvLayer, Linear, Logits, Norm,
    NormKind, Phase, Pool, Program, ProjectionResidual, QkvProjection, RelativeBias, Rope, Up,
    WeightId, WeightSpec,
};
use crate::shape::{TensorView, WeightSource};
use crate::units::{TokenId, Tokens};
use std::sync::Arc;

const HIDDEN: usize = 256;
const FEED_FORWARD: usize = 512;
/// Inside an expert.
const EXPERT: usize = 256;
const VOCAB: usize = 77;
const LAYERS: usize = 2;
const CONTEXT: usize = 512;
/// Learned positions; some tests go beyond the context.
const POSITIONS: usize = 768;

/// A random model of a case, its own weight source.
pub struct TinyModel {
    /// The model's program.
    pub program: Arc<Program>,
    data: Vec<Vec<u8>>,
    random: u64,
}

impl WeightSource for TinyModel {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let index = self
            .program
            .weights
            .iter()
            .position(|weight| weight.name == name)?;
        let WeightSpec {
            name,
            rows,
            cols,
            format,
            ..
        } = &self.program.weights[index];
        let bytes = &self.data[index];
        Some(TensorView {
            name,
            format: *format,
            rows: *rows,
            cols: *cols,
            bytes,
        })
    }
}

/// Weights in the making.
struct Weights {
    specs: Vec<WeightSpec>,
    data: Vec<Vec<u8>>,
    random: u64,
}

/// The next number of a small generator (xorshift*), in −1..1.
#[expect(clippy::cast_precision_loss, reason = "24 bits")]
pub(super) fn noise(state: &mut u64) -> f32 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / 8_388_608.0 - 1.0
}

impl Weights {
    fn matrix(&mut self, name: String, rows: usize, cols: usize, format: Format) -> WeightId {
        let size = (3.0 / f32::from(u16::try_from(cols).expect("small"))).sqrt();
        let values: Vec<f32> = (0..rows * cols)
            .map(|_| noise(&mut self.random) * size)
            .collect();
        self.data.push(super::encode(format, &values));
        self.specs.push(WeightSpec {
            name,
            first: 0,
            rows,
            cols,
            format,
        });
        WeightId(self.specs.len() - 1)
    }

    /// Numbers around `center`.
    fn vector(&mut self, name: String, cols: usize, center: f32) -> WeightId {
        let values: Vec<f32> = (0..cols)
            .map(|_| center + 0.3 * noise(&mut self.random))
            .collect();
        self.data.push(Format::F32.quantize(&values));
        self.specs.push(WeightSpec {
            name,
            first: 0,
            rows: 1,
            cols,
            format: Format::F32,
        });
        WeightId(self.specs.len() - 1)
    }

    fn norm(&mut self, name: String, cols: usize, kind: NormKind, biased: bool) -> Norm {
        let bias = format!("{name} bias");
        Norm {
            kind,
            weight: self.vector(name, cols, 1.0),
            bias: biased.then(|| self.vector(bias, cols, 0.0)),
            eps: 1e-5,
        }
    }
}

/// The weights of one case.
struct Maker<'a> {
    case: &'a Case,
    weights: &'a mut Weights,
    layer: usize,
}

impl Maker<'_> {
    fn name(&self, what: &str) -> String {
        format!("layer {} {what}", self.layer)
    }

    fn linear(&mut self, what: &str, rows: usize, cols: usize, format: Format) -> Linear {
        let (name, biased) = (self.name(what), self.case.biases);
        let bias = format!("{name} bias");
        Linear {
            weight: self.weights.matrix(name, rows, cols, format),
            bias: biased.then(|| self.weights.vector(bias, rows, 0.0)),
        }
    }

    /// The norm before a part, where the case has it.
    fn before(&mut self, what: &str) -> Option<Norm> {
        let kind = match self.case.norms {
            Norms::Before(kind) => kind,
            Norms::Around => NormKind::RootMeanSquare,
            Norms::After | Norms::Sum => return None,
        };
        let (name, biased) = (self.name(what), self.case.biases);
        let biased = biased && kind == NormKind::Layer;
        Some(self.weights.norm(name, HIDDEN, kind, biased))
    }

    /// The norm after a part, where the case has it.
    fn after(&mut self, what: &str) -> Option<Norm> {
        let has = matches!(self.case.norms, Norms::Around | Norms::After);
        let name = self.name(what);
        has.then(|| {
            self.weights
                .norm(name, HIDDEN, NormKind::RootMeanSquare, false)
        })
    }

    /// The norm after an addition, where the case has it.
    fn after_sum(&mut self, what: &str) -> Option<Norm> {
        let name = self.name(what);
        (self.case.norms == Norms::Sum)
            .then(|| self.weights.norm(name, HIDDEN, NormKind::Layer, true))
    }

    /// The bias of scores, where the case has it.
    fn relative_bias(&mut self) -> Option<RelativeBias> {
        let (name, heads) = (self.name("relative bias"), self.case.heads);
        (self.case.sight == Sight::Relative).then(|| RelativeBias {
            table: self.weights.matrix(name, 16, heads, Format::F32),
            max_distance: 40,
        })
    }

    /// The norm of queries or keys of so many heads.
    fn of_heads(&mut self, what: &str, heads: usize) -> Option<Norm> {
        let width = match self.case.qk_norm? {
            HeadNorm::Each => self.case.head_dim,
            HeadNorm::Together => heads * self.case.head_dim,
        };
        let name = self.name(what);
        let kind = NormKind::RootMeanSquare;
        Some(self.weights.norm(name, width, kind, false))
    }
}

impl TinyModel {
    /// Builds the model; the same case gives the same weights.
    ///
    /// # Panics
    /// Never for the cases of [`cases`].
    pub fn new(case: &Case) -> Self {
        let mut weights = Weights {
            specs: vec![],
            data: vec![],
            random: 0x5eed,
        };
        let table = weights.matrix("embedding".to_owned(), VOCAB, HIDDEN, case.format);
        let positions = "positions".to_owned();
        let mut phases = vec![Phase::Embed(Embed {
            table,
            scale: 3.0,
            positions: case
                .positions
                .then(|| weights.matrix(positions, POSITIONS, HIDDEN, Format::F32)),
            token_types: case
                .vectors
                .map(|_| weights.matrix("types".to_owned(), 2, HIDDEN, Format::F32)),
            norm: (case.norms == Norms::Sum)
                .then(|| weights.norm("embedding norm".to_owned(), HIDDEN, NormKind::Layer, true)),
        })];
        for layer in 0..LAYERS {
            let weights = &mut weights;
            layer_phases(
                &mut Maker {
                    case,
                    weights,
                    layer,
                },
                &mut phases,
            );
        }
        phases.push(match case.vectors {
            None => logits(case, table, &mut weights),
            Some(vectors) => pool(case, vectors, &mut weights),
        });
        let kv = KvLayer {
            kv_heads: case.kv_heads,
            head_dim: case.head_dim,
            window: case.window,
        };
        let ropes = case.rope.map(|pairing| Rope {
            pairing,
            inverse_frequencies: (0..case.head_dim / 2)
                .map(|i| 0.85_f64.powi(i32::try_from(i).expect("small")))
                .collect(),
            magnitude: 1.0,
        });
        let program = Arc::new(Program {
            architecture: "conformance".to_owned(),
            hidden: HIDDEN,
            vocab: VOCAB,
            context: Tokens::new(CONTEXT),
            weights: weights.specs,
            ropes: ropes.into_iter().collect(),
            kv_layers: vec![kv; LAYERS],
            phases,
        });
        Self {
            program,
            data: weights.data,
            random: weights.random,
        }
    }

    /// Random tokens.
    ///
    /// # Panics
    /// Never; token ids of the suite are small.
    pub fn tokens(&self, count: usize) -> Vec<TokenId> {
        let mut random = self.random;
        let mut token = || {
            noise(&mut random);
            TokenId::new(u32::try_from(random % VOCAB as u64).expect("small"))
        };
        (0..count).map(|_| token()).collect()
    }
}

/// A pooled row, and with outputs a head of two layers.
fn pool(case: &Case, vectors: Vectors, weights: &mut Weights) -> Phase {
    let normed = case.norms != Norms::Sum;
    let kind = NormKind::RootMeanSquare;
    let norm = normed.then(|| weights.norm("final norm".to_owned(), HIDDEN, kind, false));
    let mut layers = vec![];
    if vectors.outputs > 0 {
        let matrix = |weights: &mut Weights, name: &str, rows| Linear {
            weight: weights.matrix(name.to_owned(), rows, HIDDEN, Format::F32),
            bias: Some(weights.vector(format!("{name} bias"), rows, 0.0)),
        };
        let norm = "head norm".to_owned();
        layers.push(HeadLayer {
            linear: matrix(weights, "dense", HIDDEN),
            activation: Some(Activation::Tanh),
            norm: Some(weights.norm(norm, HIDDEN, NormKind::Layer, true)),
        });
        layers.push(HeadLayer {
            linear: matrix(weights, "outputs", vectors.outputs),
            activation: None,
            norm: None,
        });
    }
    Phase::Pool(Pool {
        norm,
        pooling: vectors.pooling,
        layers,
    })
}

fn logits(case: &Case, table: WeightId, weights: &mut Weights) -> Phase {
    let kind = match case.norms {
        Norms::Before(kind) => kind,
        Norms::Around | Norms::After | Norms::Sum => NormKind::RootMeanSquare,
    };
    let biased = case.biases && kind == NormKind::Layer;
    let norm = weights.norm("final norm".to_owned(), HIDDEN, kind, biased);
    let weight = if case.tied {
        table
    } else {
        weights.matrix("head".to_owned(), VOCAB, HIDDEN, case.format)
    };
    let bias = "head bias".to_owned();
    Phase::Logits(Logits {
        norm: Some(norm),
        head: Linear {
            weight,
            bias: case.biases.then(|| weights.vector(bias, VOCAB, 0.0)),
        },
        scale: case.scale,
        softcap: case.softcap,
    })
}

fn layer_phases(make: &mut Maker<'_>, phases: &mut Vec<Phase>) {
    let case = make.case;
    let (queries, keys) = (case.heads * case.head_dim, case.kv_heads * case.head_dim);
    phases.push(Phase::QkvProjection(QkvProjection {
        norm: make.before("attention norm"),
        query: make.linear("query", queries, HIDDEN, case.format),
        key: make.linear("key", keys, HIDDEN, case.format),
        value: make.linear("value", keys, HIDDEN, case.format),
    }));
    if case.feed_forward == FeedForward::Beside {
        phases.push(feed_forward(make));
    }
    phases.push(Phase::Attention(Attention {
        layer: make.layer,
        heads: case.heads,
        query_norm: make.of_heads("query norm", case.heads),
        key_norm: make.of_heads("key norm", case.kv_heads),
        rope: case.rope.map(|_| 0),
        scale: 1.0 / f32::from(u16::try_from(case.head_dim).expect("small")).sqrt(),
        softcap: case.softcap,
        causal: case.sight == Sight::Back,
        relative_bias: make.relative_bias(),
    }));
    // Blocks of 256 do not divide every width of the attention output.
    let fits = queries % case.format.info().elements == 0;
    let output_format = if fits { case.format } else { Format::F32 };
    phases.push(Phase::OutputResidual(ProjectionResidual {
        projection: make.linear("output", HIDDEN, queries, output_format),
        post_norm: make.after("output norm"),
        scale: case.scale,
        sum_norm: make.after_sum("attention sum norm"),
    }));
    if let FeedForward::Experts { all, used } = case.feed_forward {
        phases.push(experts(make, all, used));
        return;
    }
    if case.feed_forward != FeedForward::Beside {
        phases.push(feed_forward(make));
    }
    phases.push(Phase::DownResidual(ProjectionResidual {
        projection: make.linear("down", HIDDEN, FEED_FORWARD, case.format),
        post_norm: make.after("down norm"),
        scale: case.scale,
        sum_norm: make.after_sum("feed-forward sum norm"),
    }));
}

fn experts(make: &mut Maker<'_>, all: usize, used: usize) -> Phase {
    let case = make.case;
    let mut matrix = |what: &str, rows, cols, format| {
        let name = make.name(what);
        make.weights.matrix(name, rows, cols, format)
    };
    let router = matrix("router", all, HIDDEN, Format::F32);
    let gate = matrix("gates", all * EXPERT, HIDDEN, case.format);
    let up = matrix("ups", all * EXPERT, HIDDEN, case.format);
    let down = matrix("downs", all * HIDDEN, EXPERT, case.format);
    Phase::Experts(Experts {
        norm: make.before("feed-forward norm"),
        router,
        gate,
        up,
        down,
        used,
        normalized: used.is_multiple_of(2),
        activation: case.activation,
        scale: case.scale,
    })
}

fn feed_forward(make: &mut Maker<'_>) -> Phase {
    let case = make.case;
    let norm = make.before("feed-forward norm");
    if case.feed_forward == FeedForward::Gated {
        return Phase::GateUp(GateUp {
            norm,
            gate: make.linear("gate", FEED_FORWARD, HIDDEN, case.format),
            up: make.linear("up", FEED_FORWARD, HIDDEN, case.format),
            activation: case.activation,
        });
    }
    Phase::Up(Up {
        norm,
        up: make.linear("up", FEED_FORWARD, HIDDEN, case.format),
        activation: case.activation,
    })
}
