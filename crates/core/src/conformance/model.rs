//! The suite's models: a few layers of random weights, each case stressing one phase.

use crate::format::Format;
use crate::program::{
    Activation, Attention, Embed, GateUp, KvLayer, Logits, Norm, Pairing, Phase, Program,
    ProjectionResidual, QkvProjection, Rope, WeightId, WeightSpec,
};
use crate::shape::{TensorView, WeightSource};
use crate::units::{TokenId, Tokens};
use std::sync::Arc;

/// One model of the suite.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is stressed, for messages.
    pub name: String,
    /// The largest difference from the reference, as a share of the largest logit.
    ///
    /// Float weights leave the rounding of sums and of the half-precision cache; with integer
    /// weights a sum at a rounding border may also move an activation by one step of 127.
    pub tolerance: f32,
    format: Format,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<Tokens>,
    softcap: Option<f32>,
    qk_norm: bool,
    post_norm: bool,
    rope: Option<Pairing>,
    activation: Activation,
    tied: bool,
}

const HIDDEN: usize = 256;
const FEED_FORWARD: usize = 512;
const VOCAB: usize = 77;
const LAYERS: usize = 2;

/// A small model with nothing special about it.
fn plain() -> Case {
    Case {
        name: "plain".to_owned(),
        tolerance: 2e-3,
        format: Format::F32,
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
        window: None,
        softcap: None,
        qk_norm: false,
        post_norm: false,
        rope: None,
        activation: Activation::Silu,
        tied: true,
    }
}

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    let plain = plain();
    let named = |name: &str| Case {
        name: name.to_owned(),
        ..plain.clone()
    };
    let mut cases = vec![
        Case {
            rope: Some(Pairing::Adjacent),
            ..named("rotary, adjacent pairs")
        },
        Case {
            rope: Some(Pairing::Halves),
            ..named("rotary, halves")
        },
        Case {
            heads: 6,
            kv_heads: 2,
            head_dim: 40,
            ..named("grouped queries of 40")
        },
        Case {
            kv_heads: 1,
            head_dim: 256,
            ..named("one kv head of 256")
        },
        Case {
            window: Some(Tokens::new(9)),
            ..named("a window of 9")
        },
        Case {
            window: Some(Tokens::new(33)),
            kv_heads: 2,
            ..named("a window of 33")
        },
        Case {
            softcap: Some(3.0),
            ..named("soft caps")
        },
        Case {
            qk_norm: true,
            rope: Some(Pairing::Halves),
            ..named("normed queries and keys")
        },
        Case {
            post_norm: true,
            ..named("post norms")
        },
        Case {
            activation: Activation::GeluTanh,
            ..named("gelu")
        },
        Case {
            tied: false,
            ..named("an output head of its own")
        },
        plain.clone(),
    ];
    cases.extend(Format::ALL.iter().map(|&format| Case {
        format,
        tolerance: if format.info().affine.is_some() {
            4e-2
        } else {
            2e-3
        },
        rope: Some(Pairing::Halves),
        kv_heads: 2,
        ..named(&format!("weights in {format}"))
    }));
    cases
}

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
            rows,
            cols,
            format,
        });
        WeightId(self.specs.len() - 1)
    }

    fn norm(&mut self, name: String, cols: usize) -> Norm {
        let values: Vec<f32> = (0..cols)
            .map(|_| 1.0 + 0.3 * noise(&mut self.random))
            .collect();
        self.data.push(Format::F32.quantize(&values));
        self.specs.push(WeightSpec {
            name,
            rows: 1,
            cols,
            format: Format::F32,
        });
        Norm {
            weight: WeightId(self.specs.len() - 1),
            eps: 1e-5,
        }
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
        let mut phases = vec![Phase::Embed(Embed { table, scale: 3.0 })];
        for layer in 0..LAYERS {
            layer_phases(case, layer, &mut weights, &mut phases);
        }
        let norm = weights.norm("final norm".to_owned(), HIDDEN);
        let head = if case.tied {
            table
        } else {
            weights.matrix("head".to_owned(), VOCAB, HIDDEN, case.format)
        };
        phases.push(Phase::Logits(Logits {
            norm,
            head,
            softcap: case.softcap,
        }));
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
            context: Tokens::new(512),
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

fn layer_phases(case: &Case, layer: usize, weights: &mut Weights, phases: &mut Vec<Phase>) {
    let name = |what: &str| format!("layer {layer} {what}");
    let (queries, keys) = (case.heads * case.head_dim, case.kv_heads * case.head_dim);
    phases.push(Phase::QkvProjection(QkvProjection {
        norm: weights.norm(name("attention norm"), HIDDEN),
        query: weights.matrix(name("query"), queries, HIDDEN, case.format),
        key: weights.matrix(name("key"), keys, HIDDEN, case.format),
        value: weights.matrix(name("value"), keys, HIDDEN, case.format),
    }));
    let mut head_norm = |what: &str| {
        case.qk_norm
            .then(|| weights.norm(name(what), case.head_dim))
    };
    phases.push(Phase::Attention(Attention {
        layer,
        heads: case.heads,
        query_norm: head_norm("query norm"),
        key_norm: head_norm("key norm"),
        rope: case.rope.map(|_| 0),
        scale: 1.0 / f32::from(u16::try_from(case.head_dim).expect("small")).sqrt(),
        softcap: case.softcap,
    }));
    // Blocks of 256 do not divide every width of the attention output.
    let fits = queries % case.format.info().elements == 0;
    let output_format = if fits { case.format } else { Format::F32 };
    phases.push(Phase::OutputResidual(ProjectionResidual {
        projection: weights.matrix(name("output"), HIDDEN, queries, output_format),
        post_norm: case
            .post_norm
            .then(|| weights.norm(name("output norm"), HIDDEN)),
    }));
    phases.push(Phase::GateUp(GateUp {
        norm: weights.norm(name("feed-forward norm"), HIDDEN),
        gate: weights.matrix(name("gate"), FEED_FORWARD, HIDDEN, case.format),
        up: weights.matrix(name("up"), FEED_FORWARD, HIDDEN, case.format),
        activation: case.activation,
    }));
    phases.push(Phase::DownResidual(ProjectionResidual {
        projection: weights.matrix(name("down"), HIDDEN, FEED_FORWARD, case.format),
        post_norm: case
            .post_norm
            .then(|| weights.norm(name("down norm"), HIDDEN)),
    }));
}
