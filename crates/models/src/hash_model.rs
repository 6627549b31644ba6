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
        input.check(self.vocab(), self.cache.geometry(), self.max_step_tokens)?;
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
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
