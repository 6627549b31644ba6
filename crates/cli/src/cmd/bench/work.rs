//! What the phases of a step read and multiply, by the model's shapes.

use forthwith_core::program::{Phase, Program};
use forthwith_cpu::{BLOCK_SIZE, KvFormat, PHASE_NAMES, kv_block_bytes, phase_kind};
use std::sync::Arc;

/// Bytes and operations of each kind of phase. Weights count as stored in the file and once, keys
/// and values as they lie in the cache; a product that is added to a sum is two operations.
pub(super) struct Work {
    program: Arc<Program>,
    /// Bytes of one position of the cache for each element of a head, keys and values together.
    element_pair: f64,
}

pub(super) type PhaseWork = [(u64, u64); PHASE_NAMES.len()];

impl Work {
    pub(super) fn new(program: &Arc<Program>, format: KvFormat) -> Self {
        let layers = program.kv_layers.iter();
        let elements: usize = layers.map(|layer| layer.kv_heads * layer.head_dim).sum();
        let block = number(kv_block_bytes(program, format).get());
        let positions = number(BLOCK_SIZE.get() as u64);
        Self {
            program: Arc::clone(program),
            element_pair: block / positions / number(elements.max(1) as u64),
        }
    }

    /// The work of `(rows, position, tokens)`: so many tokens of each of so many sequences, from a
    /// position on. Logits are of the last token of each.
    pub(super) fn of(&self, (rows, position, tokens): (usize, usize, usize)) -> PhaseWork {
        let mut sums = PhaseWork::default();
        for phase in &self.program.phases {
            let sum = &mut sums[phase_kind(phase)];
            let all = rows * tokens;
            let mut add = |tokens: usize| {
                for id in phase.matrices() {
                    let weight = &self.program.weights[id.0];
                    sum.0 += weight.bytes().get();
                    sum.1 += 2 * (weight.rows * weight.cols * tokens) as u64;
                }
            };
            match phase {
                Phase::Embed(phase) => {
                    let table = &self.program.weights[phase.table.0];
                    sum.0 += (table.format.row_bytes(table.cols) * all) as u64;
                }
                Phase::QkvProjection(_)
                | Phase::OutputResidual(_)
                | Phase::DownResidual(_)
                | Phase::GateUp(_)
                | Phase::Up(_) => add(all),
                Phase::Experts(experts) => {
                    // Tokens choose for themselves: few read each its own, many read all.
                    let cost = self.program.cost(&Phase::Experts(experts.clone()));
                    let stored = phase.matrices().into_iter();
                    let stored = stored.map(|id| self.program.weight(id).bytes().get());
                    sum.0 += stored
                        .sum::<u64>()
                        .min(cost.weight_bytes.get() * all as u64);
                    sum.1 += 2 * cost.multiply_adds * all as u64;
                }
                Phase::Logits(_) | Phase::Pool(_) => add(rows),
                Phase::Attention(phase) => {
                    let layer = self.program.kv_layers[phase.layer];
                    let window = layer
                        .window
                        .map_or(usize::MAX, forthwith_core::units::Tokens::get);
                    let seen = |at: usize| (at + 1).min(window);
                    let pairs: usize = (position..position + tokens).map(seen).sum();
                    let read = seen(position + tokens - 1) * layer.kv_heads * layer.head_dim * rows;
                    sum.0 += whole(number(read as u64) * self.element_pair);
                    sum.1 += (4 * rows * pairs * phase.heads * layer.head_dim) as u64;
                }
            }
        }
        sums
    }
}

/// A count as a number; exact below 2⁵³.
#[expect(clippy::cast_precision_loss, reason = "for reports only")]
pub(super) fn number(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes of a cache are positive and far from the limit"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use forthwith_models::testing::tiny_llama;
    use forthwith_weights::WeightFile;

    #[test]
    fn work_follows_from_the_shapes() {
        let bytes = tiny_llama(1).to_bytes();
        let file = WeightFile::from_bytes("tiny.gguf".as_ref(), bytes).unwrap();
        let program = Arc::new(forthwith_models::build(&file).unwrap());
        let work = Work::new(&program, KvFormat::named("f32").unwrap());
        let (one, four) = (work.of((1, 7, 1)), work.of((4, 7, 1)));
        for kind in 0..PHASE_NAMES.len() {
            assert_eq!(four[kind].1, 4 * one[kind].1, "{}", PHASE_NAMES[kind]);
        }
        let layer = program.kv_layers[0];
        let layers = program.kv_layers.len() as u64;
        // Eight positions, keys and values, four bytes each.
        let expected = 8 * 2 * 4 * (layer.kv_heads * layer.head_dim) as u64 * layers;
        assert_eq!(one[2].0, expected);
        assert_eq!(four[2].0, 4 * expected);
        assert_eq!(four[1].0, one[1].0, "weights are read once");
        // A prompt of eight tokens looks back on 1 + 2 + … + 8 positions.
        assert_eq!(work.of((1, 0, 8))[2].1 * 8, one[2].1 * 36);
    }
}
