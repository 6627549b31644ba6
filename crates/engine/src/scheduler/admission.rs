//! Who may join: a pure policy over numbers.

use std::time::Duration;

use forthwith_core::request::GenerationRequest;
use forthwith_core::units::{Blocks, Tokens};

use crate::cost::Outlook;
use crate::group::Submission;
use crate::handle::SubmitError;

/// What the cache can hold at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) blocks: Blocks,
    pub(crate) block_size: Tokens,
}

impl Capacity {
    /// The longest sequence that fits the whole cache.
    pub(crate) fn tokens(self) -> Tokens {
        self.blocks.tokens(self.block_size)
    }

    /// Refuses requests of which one could not finish even with the cache to itself.
    pub(crate) fn check_all(self, choices: &[Submission]) -> Result<(), SubmitError> {
        choices
            .iter()
            .try_for_each(|(request, _)| self.check(request))
    }

    /// Refuses a request that could not finish even with the cache to itself.
    fn check(self, request: &GenerationRequest) -> Result<(), SubmitError> {
        let prompt = Tokens::new(request.prompt().len());
        // The last token of an answer is never fed back, so it needs no place.
        let longest = prompt + request.max_tokens() - Tokens::new(1);
        let needed = longest.blocks_needed(self.block_size);
        if needed <= self.blocks {
            return Ok(());
        }
        Err(SubmitError::TooLarge {
            prompt,
            max_tokens: request.max_tokens(),
            needed,
            blocks: self.blocks,
            capacity: self.tokens(),
        })
    }
}

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) requests: usize,
    pub(crate) tokens: Tokens,
}

/// How much waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLoad {
    pub(crate) requests: usize,
    pub(crate) tokens: Tokens,
}

impl QueueLimits {
    /// Refuses requests beyond what may wait, and those that would be answered too late for them.
    /// An empty queue takes a prompt of any length. Tells when the first token is expected.
    pub(crate) fn check(
        self,
        load: QueueLoad,
        outlook: &Outlook,
        coming: &[Submission],
    ) -> Result<Option<Duration>, SubmitError> {
        let prompts = coming.iter().map(|(request, _)| request.prompt().len());
        let longest = prompts.max().unwrap_or(0);
        let tokens = load.tokens + Tokens::new(longest);
        let few = load.requests + coming.len() <= self.requests;
        if !few || (tokens > self.tokens && load.requests > 0) {
            return Err(SubmitError::Busy {
                waiting: load.requests,
                limit: self.requests,
                waiting_tokens: load.tokens,
                token_limit: self.tokens,
                retry_after: outlook.room(load.requests, load.tokens.get()),
            });
        }
        let expected = outlook.first_token(longest, load.requests, load.tokens.get());
        let limits = coming.iter().map(|(request, _)| request.scheduling());
        let limit = limits.filter_map(|s| s.max_time_to_first_token).min();
        match (expected, limit) {
            (Some(expected), Some(limit)) if expected > limit => {
                Err(SubmitError::TooSlow { expected, limit })
            }
            _ => Ok(expected),
        }
    }
}

/// Whether a sequence that needs `needed` blocks now may join `running` others.
///
/// Beside the blocks for its known tokens, one block for each sequence that would then run must
/// stay free, and at least `reserve`, so that a newcomer is not sent away again by its neighbours'
/// next tokens. Alone, a sequence may have everything: whatever waits first always runs in the end.
pub(crate) fn may_join(needed: Blocks, free: Blocks, running: usize, reserve: Blocks) -> bool {
    if running == 0 {
        return needed <= free;
    }
    needed + reserve.max(Blocks::new(running + 1)) <= free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_takes_all_in_company_leaves_a_block_each() {
        let blocks = Blocks::new;
        let none = Blocks::ZERO;
        assert!(may_join(blocks(10), blocks(10), 0, blocks(5)));
        assert!(!may_join(blocks(11), blocks(10), 0, none));
        assert!(may_join(blocks(7), blocks(10), 2, none));
        assert!(!may_join(blocks(8), blocks(10), 2, none));
        assert!(may_join(blocks(5), blocks(10), 2, blocks(5)));
        assert!(!may_join(blocks(6), blocks(10), 2, blocks(5)));
    }
}
