//! What programs for whole texts have beyond those that generate: a bias of scores by distance, and
//! an end in vectors.

use super::{Activation, Linear, Norm, Phase, Program, WeightId};

/// A learned number for each head and each bucket of distances between query and key.
///
/// A quarter of the buckets are one distance each, another quarter grows in powers up to
/// `max_distance`, and the same again for keys that stand after the query.
/// Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelativeBias {
    /// `[buckets, heads]`; a multiple of 4 buckets, at least 8
    pub table: WeightId,
    /// Distances from here on share the last bucket.
    pub max_distance: usize,
}

impl RelativeBias {
    /// The row of the table for a key `distance` positions after the query.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "distances are small, and the logarithm is not negative"
    )]
    pub fn bucket(&self, distance: isize, buckets: usize) -> usize {
        let half = buckets / 2;
        let exact = half / 2;
        let (first, distance) = (if distance > 0 { half } else { 0 }, distance.unsigned_abs());
        if distance < exact {
            return first + distance;
        }
        // Single floats, as in the models' own code: at powers the rounding decides the bucket.
        let ratio = (distance as f32 / exact as f32).ln()
            / (self.max_distance as f64 / exact as f64).ln() as f32;
        let further = (ratio * (half - exact) as f32) as usize;
        first + (exact + further).min(half - 1)
    }
}

/// Parameters of [`Phase::Pool`].
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Norm of the residual.
    pub norm: Option<Norm>,
    /// Which rows of a text count.
    pub pooling: Pooling,
    /// What a head does with them, one layer after the other.
    pub layers: Vec<HeadLayer>,
}

/// Which rows of a text become its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first token's.
    First,
    /// The last token's.
    Last,
    /// The mean of all.
    Mean,
    /// None: each token has a vector of its own.
    Each,
}

/// One layer of a head: `norm(activation(W · x + bias))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadLayer {
    /// `[outputs, inputs]`; a single output is allowed.
    pub linear: Linear,
    /// Applied to the product.
    pub activation: Option<Activation>,
    /// Applied last.
    pub norm: Option<Norm>,
}

/// What a program answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A row of logits for each listed token.
    Logits,
    /// A vector for each text, or for each token.
    Vectors {
        /// Numbers in one vector.
        width: usize,
        /// Whether each token has one.
        each_token: bool,
        /// Whether a step must hold whole texts.
        whole: bool,
    },
}

impl Program {
    /// What the program answers with.
    pub fn output(&self) -> Output {
        let Some(Phase::Pool(pool)) = self.phases.last() else {
            return Output::Logits;
        };
        let last = pool.layers.last();
        let sees_ahead =
            |phase: &Phase| matches!(phase, Phase::Attention(attention) if !attention.causal);
        Output::Vectors {
            width: last.map_or(self.hidden, |layer| self.weight(layer.linear.weight).rows),
            each_token: pool.pooling == Pooling::Each,
            whole: matches!(pool.pooling, Pooling::Mean | Pooling::First)
                || self.phases.iter().any(sees_ahead),
        }
    }
}
