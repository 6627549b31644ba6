//! Who may join: a pure policy over numbers.

use forthwith_core::request::{GenerationRequest, Wanted};
use forthwith_core::units::{Blocks, Tokens};

use crate::group::{Expectation, Submission};
use crate::handle::SubmitError;
use crate::kv::Foreseen;
use crate::outlook::{Load, Newcomer, Outlook};

/// What the cache can hold at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) blocks: Blocks,
    pub(crate) block_size: Tokens,
    /// Whether the model answers with vectors, and with nothing else.
    pub(crate) vectors: bool,
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
        if matches!(request.wanted(), Wanted::Vectors { .. }) != self.vectors {
            return Err(SubmitError::WrongKind);
        }
        let prompt = Tokens::new(request.prompt().len());
        // The last token of an answer is never fed back, so it needs no place.
        let answer = request.max_tokens().max(Tokens::new(1));
        let longest = prompt + answer - Tokens::new(1);
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
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueLoad {
    pub(crate) requests: usize,
    pub(crate) tokens: Tokens,
}

impl QueueLimits {
    /// Refuses requests beyond what may wait. An empty queue takes a prompt of any length.
    pub(crate) fn check(
        self,
        load: QueueLoad,
        outlook: &Outlook,
        coming: &[Submission],
    ) -> Result<(), SubmitError> {
        // The choices of one prompt compute it once.
        let tokens = |(request, _): &Submission| {
            let length = request.prompt().len();
            match request.wanted() {
                Wanted::Tokens => (length, 0),
                Wanted::Vectors { .. } | Wanted::Scores(_) => (0, length),
            }
        };
        let all = |(longest, sum): (usize, usize), (prompt, text): (usize, usize)| {
            (longest.max(prompt), sum + text)
        };
        let (longest, sum) = coming.iter().map(tokens).fold((0, 0), all);
        let tokens = load.tokens + Tokens::new(longest + sum);
        let few = load.requests + coming.len() <= self.requests;
        if few && (tokens <= self.tokens || load.requests == 0) {
            return Ok(());
        }
        Err(SubmitError::Busy {
            waiting: load.requests,
            limit: self.requests,
            waiting_tokens: load.tokens,
            token_limit: self.tokens,
            retry_after: outlook.time_to_room(Load {
                requests: load.requests,
                tokens: load.tokens.get(),
            }),
        })
    }
}

/// Says when the first token of requests that come together is expected, and refuses them if that is
/// too late for one of them.
pub(crate) fn expect(
    coming: &[Submission],
    foreseen: Vec<Foreseen>,
    outlook: &Outlook,
    unseen: impl Fn(i32) -> Load,
) -> Result<Expectation, SubmitError> {
    let requests = || coming.iter().map(|(request, _)| request);
    let newcomers = requests()
        .zip(&foreseen)
        .map(|(request, foreseen)| Newcomer {
            priority: request.scheduling().priority,
            tenant: request.scheduling().tenant,
            prompt: request.prompt().len() - foreseen.cached,
            cached: foreseen.cached,
        });
    let longest = newcomers.max_by_key(|newcomer| newcomer.prompt);
    let first_token =
        longest.and_then(|newcomer| outlook.first_token(&newcomer, unseen(newcomer.priority)));
    let limit = requests().filter_map(|request| request.scheduling().max_time_to_first_token);
    match (first_token, limit.min()) {
        (Some(expected), Some(limit)) if expected > limit => {
            Err(SubmitError::TooSlow { expected, limit })
        }
        _ => Ok(Expectation {
            foreseen,
            first_token,
        }),
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
