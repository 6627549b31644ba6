//! The suite's cases: each stresses one possibility of a phase, some several together.

use crate::format::Format;
use crate::program::{Activation, NormKind, Pairing, Pooling};
use crate::units::Tokens;

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
    pub(super) format: Format,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) window: Option<Tokens>,
    pub(super) softcap: Option<f32>,
    pub(super) qk_norm: Option<HeadNorm>,
    pub(super) norms: Norms,
    pub(super) rope: Option<Pairing>,
    pub(super) feed_forward: FeedForward,
    pub(super) activation: Activation,
    pub(super) tied: bool,
    /// Every product and every norm of the mean adds something.
    pub(super) biases: bool,
    /// Learned positions.
    pub(super) positions: bool,
    /// What the logits and each addition to the residual are multiplied by.
    pub(super) scale: f32,
    /// What tokens see of what stands after them.
    pub(super) sight: Sight,
    /// What becomes of texts, if the answer is not logits.
    pub(super) vectors: Option<Vectors>,
}

/// What tokens see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// What stands before them.
    Back,
    /// What stands after them as well.
    Around,
    /// The same, with a bias of scores that depends on the distance.
    Relative,
}

/// A text's answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    pub(super) pooling: Pooling,
    /// Outputs of the head, which has a layer more before them; the pooled row itself if 0.
    pub(super) outputs: usize,
}

/// What a norm of queries and keys covers.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeadNorm {
    Each,
    Together,
}

/// Where norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Norms {
    /// Before each part, of this kind.
    Before(NormKind),
    /// Before and after each part.
    Around,
    /// After each part alone.
    After,
    /// After each addition, of the mean.
    Sum,
}

/// The shape of the feed-forward layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeedForward {
    Gated,
    Plain,
    /// Plain, and beside attention in place of after it.
    Beside,
    /// Of many experts, of which a token uses so many.
    Experts {
        all: usize,
        used: usize,
    },
}

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
        qk_norm: None,
        norms: Norms::Before(NormKind::RootMeanSquare),
        rope: None,
        feed_forward: FeedForward::Gated,
        activation: Activation::Silu,
        tied: true,
        biases: false,
        positions: false,
        scale: 1.0,
        sight: Sight::Back,
        vectors: None,
    }
}

/// The plain case under another name.
fn named(name: &str) -> Case {
    Case {
        name: name.to_owned(),
        ..plain()
    }
}

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![plain()];
    cases.extend(of_attention());
    cases.extend(of_layers());
    cases.extend(of_experts());
    cases.extend(of_texts());
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

/// Experts in place of the feed-forward layers.
fn of_experts() -> Vec<Case> {
    vec![
        Case {
            feed_forward: FeedForward::Experts { all: 6, used: 2 },
            ..named("two of six experts")
        },
        Case {
            feed_forward: FeedForward::Experts { all: 19, used: 3 },
            activation: Activation::GeluTanh,
            scale: 0.3,
            ..named("three of nineteen experts, their parts of all")
        },
        Case {
            feed_forward: FeedForward::Experts { all: 7, used: 7 },
            format: Format::Q4_0,
            tolerance: 4e-2,
            ..named("all of seven experts in Q4_0")
        },
    ]
}

/// Heads, positions and what a token sees.
fn of_attention() -> Vec<Case> {
    vec![
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
            qk_norm: Some(HeadNorm::Each),
            rope: Some(Pairing::Halves),
            ..named("normed queries and keys")
        },
        Case {
            qk_norm: Some(HeadNorm::Together),
            kv_heads: 2,
            rope: Some(Pairing::Halves),
            ..named("queries and keys normed over all heads")
        },
        Case {
            positions: true,
            ..named("learned positions")
        },
    ]
}

/// Norms, products, feed-forward layers and the output head.
fn of_layers() -> Vec<Case> {
    vec![
        Case {
            norms: Norms::Around,
            ..named("post norms")
        },
        Case {
            norms: Norms::After,
            ..named("post norms alone")
        },
        Case {
            norms: Norms::Before(NormKind::Layer),
            ..named("layer norms")
        },
        Case {
            activation: Activation::GeluTanh,
            ..named("gelu")
        },
        Case {
            activation: Activation::Gelu,
            ..named("exact gelu")
        },
        Case {
            activation: Activation::Relu,
            ..named("relu")
        },
        Case {
            feed_forward: FeedForward::Plain,
            activation: Activation::Gelu,
            ..named("a plain feed-forward layer")
        },
        Case {
            feed_forward: FeedForward::Beside,
            ..named("a feed-forward layer beside attention")
        },
        Case {
            biases: true,
            kv_heads: 2,
            ..named("biases")
        },
        Case {
            scale: 0.3,
            norms: Norms::Around,
            ..named("scaled additions and logits")
        },
        Case {
            norms: Norms::Before(NormKind::Layer),
            biases: true,
            positions: true,
            tied: false,
            feed_forward: FeedForward::Plain,
            activation: Activation::GeluTanh,
            format: Format::Q8_0,
            tolerance: 4e-2,
            ..named("the second generation's shape")
        },
        Case {
            tied: false,
            ..named("an output head of its own")
        },
    ]
}

/// Models that answer with vectors.
fn of_texts() -> Vec<Case> {
    let vectors = |pooling, outputs| Some(Vectors { pooling, outputs });
    vec![
        Case {
            vectors: vectors(Pooling::Last, 0),
            ..named("the last token of a decoder")
        },
        Case {
            vectors: vectors(Pooling::Last, 1),
            ..named("one score from a decoder")
        },
        Case {
            sight: Sight::Around,
            norms: Norms::Sum,
            biases: true,
            positions: true,
            feed_forward: FeedForward::Plain,
            activation: Activation::Gelu,
            vectors: vectors(Pooling::Mean, 0),
            ..named("the mean of an encoder")
        },
        Case {
            sight: Sight::Relative,
            norms: Norms::Sum,
            vectors: vectors(Pooling::First, 3),
            ..named("an encoder with a relative bias")
        },
        Case {
            sight: Sight::Around,
            window: Some(Tokens::new(7)),
            rope: Some(Pairing::Halves),
            norms: Norms::Before(NormKind::Layer),
            vectors: vectors(Pooling::Each, 5),
            ..named("labels of tokens that see a window both ways")
        },
        Case {
            sight: Sight::Around,
            format: Format::Q8_0,
            tolerance: 4e-2,
            norms: Norms::Sum,
            vectors: vectors(Pooling::Mean, 2),
            ..named("an encoder in Q8_0")
        },
    ]
}
