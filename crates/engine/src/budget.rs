//! The one arithmetic of memory: weights, workspace, reserve, and what is left for the KV cache.
//!
//! The engine allocates what the ledger says and the planner prints the same ledger, so that they
//! cannot disagree.

use std::fmt;

use forthwith_core::units::{Blocks, Bytes, Tokens};

use crate::sampling::Sampler;

/// The bytes of a step's logits, `rows` times `vocab`, and of what each thread needs to choose from them.
pub fn sampling_bytes(vocab: usize, rows: usize, threads: usize) -> Bytes {
    let logits = rows.saturating_mul(vocab).saturating_mul(size_of::<f32>());
    let choosing = threads.saturating_mul(Sampler::bytes(vocab));
    Bytes::new(logits.saturating_add(choosing) as u64)
}

/// How much memory the KV cache gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvMemory {
    /// This much.
    Exact(Bytes),
    /// This share, in percent, of what weights, workspace and reserve leave free.
    Share(u8),
}

/// What a ledger is made from.
#[derive(Clone, Copy, Debug)]
pub struct MemoryNeeds {
    /// Memory that may be used in all.
    pub available: Bytes,
    /// The weights, as the backend keeps them.
    pub weights: Bytes,
    /// Buffers for one step.
    pub workspace: Bytes,
    /// Left for everything else in the process.
    pub reserve: Bytes,
    /// One block of the cache, all layers.
    pub block_bytes: Bytes,
    /// Positions in one block.
    pub block_size: Tokens,
    /// The longest request.
    pub context: Tokens,
    /// Requests that run at the same time.
    pub max_running: usize,
    /// How the cache's share is decided.
    pub kv: KvMemory,
}

/// Where the memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Memory that may be used in all.
    pub available: Bytes,
    /// The weights.
    pub weights: Bytes,
    /// Buffers for one step.
    pub workspace: Bytes,
    /// Left for everything else.
    pub reserve: Bytes,
    /// Blocks of the KV cache.
    pub blocks: Blocks,
    /// One block of the cache, all layers.
    pub block_bytes: Bytes,
    /// Positions in one block.
    pub block_size: Tokens,
}

/// The memory does not even hold a cache of one block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// What is free is used up before the cache gets its share.
    #[error(
        "no memory is left for the KV cache: weights {weights}, workspace {workspace} and reserve \
         {reserve} of {available}, one cache block needs {block_bytes}; \
         use a smaller model or give the cache memory with --kv-memory"
    )]
    NothingLeft {
        /// The weights.
        weights: Bytes,
        /// Buffers for one step.
        workspace: Bytes,
        /// Left for everything else.
        reserve: Bytes,
        /// Memory that may be used in all.
        available: Bytes,
        /// One block of the cache.
        block_bytes: Bytes,
    },
    /// The cache was given less than one block.
    #[error(
        "the KV cache was given {given}, one block of {block_size} tokens needs {block_bytes}; \
         give at least that much"
    )]
    TooSmall {
        /// What was asked for.
        given: Bytes,
        /// One block of the cache.
        block_bytes: Bytes,
        /// Positions in one block.
        block_size: Tokens,
    },
}

impl MemoryNeeds {
    fn refusal(&self) -> BudgetError {
        match self.kv {
            KvMemory::Exact(given) => BudgetError::TooSmall {
                given,
                block_bytes: self.block_bytes,
                block_size: self.block_size,
            },
            KvMemory::Share(_) => BudgetError::NothingLeft {
                weights: self.weights,
                workspace: self.workspace,
                reserve: self.reserve,
                available: self.available,
                block_bytes: self.block_bytes,
            },
        }
    }
}

impl Ledger {
    /// Divides the memory. The cache never gets more blocks than `max_running` requests of full
    /// length could use.
    pub fn new(needs: &MemoryNeeds) -> Result<Self, BudgetError> {
        let fixed = needs.weights + needs.workspace + needs.reserve;
        let kv = match needs.kv {
            KvMemory::Exact(bytes) => bytes.get(),
            KvMemory::Share(percent) => {
                needs.available.saturating_sub(fixed).get() / 100 * u64::from(percent.min(100))
            }
        };
        let affordable = usize::try_from(kv / needs.block_bytes.get().max(1)).unwrap_or(usize::MAX);
        let per_request = needs.context.blocks_needed(needs.block_size).get();
        let useful = per_request.saturating_mul(needs.max_running);
        // Block ids have 32 bits.
        let blocks = affordable.min(useful).min(u32::MAX as usize);
        if blocks == 0 {
            return Err(needs.refusal());
        }
        Ok(Self {
            available: needs.available,
            weights: needs.weights,
            workspace: needs.workspace,
            reserve: needs.reserve,
            blocks: Blocks::new(blocks),
            block_bytes: needs.block_bytes,
            block_size: needs.block_size,
        })
    }

    /// The KV cache.
    pub fn kv(&self) -> Bytes {
        self.blocks * self.block_bytes
    }

    /// Tokens that the KV cache holds.
    pub fn kv_tokens(&self) -> Tokens {
        self.blocks.tokens(self.block_size)
    }

    /// Everything together.
    pub fn total(&self) -> Bytes {
        self.weights + self.workspace + self.reserve + self.kv()
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "weights {} + KV cache {} ({} blocks of {} tokens, {} tokens) + workspace {} + \
             reserve {} = {} of {}",
            self.weights,
            self.kv(),
            self.blocks,
            self.block_size,
            self.kv_tokens(),
            self.workspace,
            self.reserve,
            self.total(),
            self.available,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn needs() -> MemoryNeeds {
        MemoryNeeds {
            available: Bytes::new(1000 * MIB),
            weights: Bytes::new(300 * MIB),
            workspace: Bytes::new(50 * MIB),
            reserve: Bytes::new(50 * MIB),
            block_bytes: Bytes::new(2 * MIB),
            block_size: Tokens::new(32),
            context: Tokens::new(3200),
            max_running: 8,
            kv: KvMemory::Share(50),
        }
    }

    #[test]
    fn logits_and_samplers_add_up() {
        // A row is 4 bytes a token; a sampler counts, adjusts, shares and lists candidates.
        assert_eq!(sampling_bytes(1000, 1, 0), Bytes::new(4000));
        // Besides 20 for each token, what is kept of pieces and stretches, and two tables of 24 KiB.
        assert_eq!(
            sampling_bytes(1000, 3, 2),
            Bytes::new(12_000 + 2 * (20_000 + 252 + 144 + 2 * 24 * 1024))
        );
    }

    #[test]
    fn a_share_of_what_is_left() {
        let ledger = Ledger::new(&needs()).unwrap();
        assert_eq!(ledger.blocks, Blocks::new(150));
        assert_eq!(
            ledger.to_string(),
            "weights 300.0 MiB + KV cache 300.0 MiB (150 blocks of 32 tokens, 4800 tokens) + \
             workspace 50.0 MiB + reserve 50.0 MiB = 700.0 MiB of 1000.0 MiB"
        );
    }

    #[test]
    fn never_more_than_the_requests_can_use() {
        let few = MemoryNeeds {
            max_running: 1,
            ..needs()
        };
        assert_eq!(Ledger::new(&few).unwrap().blocks, Blocks::new(100));
    }

    #[test]
    fn nothing_left_is_an_error_with_the_numbers() {
        let heavy = MemoryNeeds {
            weights: Bytes::new(950 * MIB),
            ..needs()
        };
        let error = Ledger::new(&heavy).unwrap_err().to_string();
        assert!(error.contains("weights 950.0 MiB"), "{error}");
        let exact = MemoryNeeds {
            kv: KvMemory::Exact(Bytes::new(9 * MIB)),
            ..heavy
        };
        assert_eq!(Ledger::new(&exact).unwrap().blocks, Blocks::new(4));
        let little = MemoryNeeds {
            kv: KvMemory::Exact(Bytes::new(MIB)),
            ..heavy
        };
        assert_eq!(
            Ledger::new(&little).unwrap_err().to_string(),
            "the KV cache was given 1.0 MiB, one block of 32 tokens needs 2.0 MiB; \
             give at least that much"
        );
    }
}
