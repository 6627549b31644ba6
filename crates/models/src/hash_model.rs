//! A model whose next token hashes everything before it, for tests of schedulers and caches.
//!
//! It has no weights and no language. Its logits after a text are a pure function of the whole
//! text ([`HashModel::logits_after`]), but its executor computes them only from what the blocks
//! hold, so the two agree exactly when the engine kept every block table right.

use crate::token_cache::{TokenCache, for_each_logit_row};
use forthwith_core::executor::{Executor, KvGeometry, Segment, StepError, StepInput};
use forthwith_core::units::{BlockId, Blocks, TokenId, Tokens};

/// The function from a text to its next-token logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashModel {
    /// The number of tokens it knows, at least 1.
    pub vocab: u32,
    /// Models with different seeds speak differently.
    pub seed: u64,
}

/// How much an executor of a [`HashModel`] can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashCapacity {
    /// Positions in one block, at least 1.
    pub block_size: Tokens,
    /// Blocks of the cache.
    pub blocks: Blocks,
    /// The most tokens in one step.
    pub max_step_tokens: Tokens,
}

impl HashModel {
    /// The logits after a text: `vocab` distinct-looking values in `[-8, 8)`.
    pub fn logits_after(&self, text: &[TokenId]) -> Vec<f32> {
        let mut logits = Vec::new();
        let state = text
            .iter()
            .fold(self.start(), |state, &token| absorb(state, token));
        self.extend_logits(state, &mut logits);
        logits
    }

    /// The `count` most likely tokens after a text, one after another: what greedy decoding must
    /// say. Among equal logits the lowest id wins.
    pub fn continue_greedily(&self, text: &[TokenId], count: usize) -> Vec<TokenId> {
        let mut all = text.to_vec();
        for _ in 0..count {
            let best = most_likely(&self.logits_after(&all));
            all.push(best);
        }
        all.split_off(text.len())
    }

    /// An executor of this model with an empty cache.
    pub fn executor(self, capacity: HashCapacity) -> HashExecutor {
        HashExecutor {
            model: self,
            cache: TokenCache::new(capacity.block_size, capacity.blocks),
            max_step_tokens: capacity.max_step_tokens,
        }
    }

    fn start(&self) -> u64 {
        mix(self.seed)
    }

    fn extend_logits(&self, state: u64, logits: &mut Vec<f32>) {
        logits.extend((0..self.vocab).map(|token| logit(mix(state ^ mix(u64::from(token))))));
    }
}

/// Runs a [`HashModel`] from block tables.
#[derive(Debug)]
pub struct HashExecutor {
    model: HashModel,
    cache: TokenCache,
    max_step_tokens: Tokens,
}

impl HashExecutor {
    /// The hash of everything up to and including `position`, read from the blocks.
    fn state_at(&self, segment: &Segment<'_>, position: usize) -> Result<u64, StepError> {
        (0..=position).try_fold(self.model.start(), |state, at| {
            Ok(absorb(state, self.cache.read(segment.blocks, at)?))
        })
    }
}

impl Executor for HashExecutor {
    fn vocab(&self) -> usize {
        TokenId::new(self.model.vocab).index()
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.cache.geometry()
    }

    fn max_step_tokens(&self) -> Tokens {
        self.max_step_tokens
    }

    fn step(&mut self, input: &StepInput<'_>, logits: &mut Vec<f32>) -> Result<(), StepError> {
        input.check(self)?;
        self.cache.write(input)?;
        logits.clear();
        for_each_logit_row(input, |segment, position| {
            let state = self.state_at(segment, position)?;
            self.model.extend_logits(state, logits);
            Ok(())
        })
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.cache.copy_block(from, to);
    }
}

fn most_likely(logits: &[f32]) -> TokenId {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(logits) {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    TokenId::new(best.0)
}

/// Spreads the upper 23 bits over `[-8, 8)`, exactly.
fn logit(hash: u64) -> f32 {
    let fraction = u32::try_from(hash >> 41).expect("23 bits are left");
    (f32::from_bits(0x3f80_0000 | fraction) - 1.5) * 16.0
}

fn absorb(state: u64, token: TokenId) -> u64 {
    mix(state ^ u64::from(token.get()).wrapping_add(1))
}

/// The finalizer of `SplitMix64` (Steele, Lea and Flood 2014): every input bit moves every output bit.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MODEL: HashModel = HashModel { vocab: 50, seed: 7 };

    fn executor() -> HashExecutor {
        MODEL.executor(HashCapacity {
            block_size: Tokens::new(4),
            blocks: Blocks::new(8),
            max_step_tokens: Tokens::new(64),
        })
    }

    fn ids(tokens: &[u32]) -> Vec<TokenId> {
        tokens.iter().copied().map(TokenId::new).collect()
    }

    fn table(blocks: &[u32]) -> Vec<BlockId> {
        blocks.iter().copied().map(BlockId::new).collect()
    }

    /// Runs one segment and returns the logits after its last token.
    fn run(
        executor: &mut HashExecutor,
        tokens: &[TokenId],
        position: usize,
        blocks: &[BlockId],
    ) -> Result<Vec<f32>, StepError> {
        let segment = Segment {
            tokens: tokens.len(),
            position,
            blocks,
            second_from: None,
        };
        let input = StepInput {
            tokens,
            segments: &[segment],
            output_rows: &[tokens.len() - 1],
        };
        let mut logits = Vec::new();
        executor.step(&input, &mut logits).map(|()| logits)
    }

    proptest! {
        #[test]
        fn any_split_into_steps_gives_the_same_logits(
            text in prop::collection::vec(0_u32..50, 1..24),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            order in Just(vec![0_u32, 1, 2, 3, 4, 5, 6, 7]).prop_shuffle(),
        ) {
            let text = ids(&text);
            let blocks = table(&order);
            let mut borders: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).collect();
            borders.extend([0, text.len()]);
            borders.sort_unstable();
            borders.dedup();
            let mut executor = executor();
            for border in borders.windows(2) {
                let logits = run(&mut executor, &text[border[0]..border[1]], border[0], &blocks);
                prop_assert_eq!(logits.unwrap(), MODEL.logits_after(&text[..border[1]]));
            }
        }
    }

    #[test]
    fn a_wrong_block_changes_the_answer_or_fails() {
        let mut executor = executor();
        let text = ids(&[1, 2, 3, 4, 5]);
        let other = ids(&[9, 9, 9, 9, 9]);
        run(&mut executor, &text, 0, &table(&[0, 1])).unwrap();
        run(&mut executor, &other, 0, &table(&[2, 3])).unwrap();
        let next = ids(&[6]);
        let right = MODEL.logits_after(&ids(&[1, 2, 3, 4, 5, 6]));
        assert_ne!(
            run(&mut executor, &next, 5, &table(&[2, 1])).unwrap(),
            right
        );
        assert!(run(&mut executor, &next, 5, &table(&[0, 5])).is_err());
        assert_eq!(
            run(&mut executor, &next, 5, &table(&[0, 1])).unwrap(),
            right
        );
    }

    #[test]
    fn a_copied_block_continues_its_own_way() {
        let mut executor = executor();
        run(&mut executor, &ids(&[1, 2]), 0, &table(&[0])).unwrap();
        executor.copy_block(BlockId::new(0), BlockId::new(6));
        let a = run(&mut executor, &ids(&[3]), 2, &table(&[0])).unwrap();
        let b = run(&mut executor, &ids(&[4]), 2, &table(&[6])).unwrap();
        assert_eq!(a, MODEL.logits_after(&ids(&[1, 2, 3])));
        assert_eq!(b, MODEL.logits_after(&ids(&[1, 2, 4])));
    }

    #[test]
    fn segments_may_share_what_they_read_but_not_what_they_write() {
        let mut executor = executor();
        run(&mut executor, &ids(&[1, 2, 3, 4]), 0, &table(&[0])).unwrap();
        let tokens = ids(&[5, 6]);
        let (first, second) = (table(&[0, 1]), table(&[0, 2]));
        let segment = |blocks| Segment {
            tokens: 1,
            position: 4,
            blocks,
            second_from: None,
        };
        let mut logits = Vec::new();
        let segments = [segment(&first[..]), segment(&second[..])];
        let input = StepInput {
            tokens: &tokens,
            segments: &segments,
            output_rows: &[0, 1],
        };
        executor.step(&input, &mut logits).unwrap();
        assert_eq!(logits[..50], MODEL.logits_after(&ids(&[1, 2, 3, 4, 5])));
        assert_eq!(logits[50..], MODEL.logits_after(&ids(&[1, 2, 3, 4, 6])));
        let shared = [segment(&first[..]), segment(&first[..])];
        let input = StepInput {
            segments: &shared,
            ..input
        };
        assert!(executor.step(&input, &mut logits).is_err());
    }

    #[test]
    fn greedy_text_depends_on_every_token() {
        let text = ids(&[1, 2, 3]);
        let answer = MODEL.continue_greedily(&text, 10);
        assert_eq!(answer.len(), 10);
        assert_ne!(MODEL.continue_greedily(&ids(&[2, 2, 3]), 10), answer);
        let other = HashModel { seed: 8, ..MODEL };
        assert_ne!(other.continue_greedily(&text, 10), answer);
    }
}
