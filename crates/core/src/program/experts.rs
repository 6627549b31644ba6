//! Mixtures of experts: feed-forward layers of many parts, of which each token uses a few.

use super::{Activation, Cost, Norm, Phase, Program, WeightId, WeightSpec};

/// Parameters of [`Phase::Experts`].
///
/// A router scores all experts for a token; the `used` highest scores choose, the first among
/// equals. What an expert counts is its part of the softmax over all scores. Answers are added in
/// the order of the experts' numbers.
///
/// # Source     Shazeer et al. 2017, arXiv:1701.06538; Jiang et al. 2024, arXiv:2401.04088
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Norm of the residual.
    pub norm: Option<Norm>,
    /// `[experts, hidden]`
    pub router: WeightId,
    /// `[experts·feed_forward, hidden]`, one expert after the other.
    pub gate: WeightId,
    /// `[experts·feed_forward, hidden]`
    pub up: WeightId,
    /// `[experts·hidden, feed_forward]`
    pub down: WeightId,
    /// How many experts answer a token, at least 1 and at most all.
    pub used: usize,
    /// What the used experts count is divided by its sum.
    pub normalized: bool,
    /// Applied to the gate.
    pub activation: Activation,
    /// Multiplies what is added; 1 for most families.
    pub scale: f32,
}

impl Program {
    /// The experts of a phase.
    pub fn experts(&self, phase: &Experts) -> usize {
        self.weight(phase.router).rows
    }

    /// The most experts that any phase chooses among and chooses, 0 without experts.
    pub fn most_experts(&self) -> (usize, usize) {
        let mut most = (0, 0);
        for phase in &self.phases {
            if let Phase::Experts(phase) = phase {
                most.0 = most.0.max(self.experts(phase));
                most.1 = most.1.max(phase.used);
            }
        }
        most
    }

    /// What a phase costs one token: the router and the experts that it uses.
    pub(super) fn cost_of_experts(&self, phase: &Experts) -> Cost {
        let all = self.experts(phase).max(1) as u64;
        let router = self.weight(phase.router);
        let parts = [phase.gate, phase.up, phase.down].map(|id| self.weight(id));
        let elements = |weight: &WeightSpec| weight.rows as u64 * weight.cols as u64;
        let stored: u64 = parts.iter().map(|part| part.bytes().get()).sum();
        let products: u64 = parts.iter().map(|part| elements(part)).sum();
        let used = phase.used as u64;
        Cost {
            weight_bytes: router.bytes() + crate::units::Bytes::new(stored / all * used),
            multiply_adds: elements(router) + products / all * used,
            multiply_adds_per_position: 0,
        }
    }
}
