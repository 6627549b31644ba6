//! What a sequence takes from others and what it makes known to them.

use forthwith_core::units::{BlockId, Tokens};

use super::Sequence;
use crate::kv::{BlockHash, BlockPool, Content, Known, Published, ReuseStop};

/// What a sequence shares with others.
#[derive(Debug)]
pub(super) struct Sharing {
    /// Whether it looks for blocks of others and makes its own known.
    pub(super) open: bool,
    /// The hash of the text up to the end of each full block, as far as it was needed.
    chain: Vec<BlockHash>,
    /// How many blocks of the table, from the first, are known to others.
    pub(super) published: usize,
    /// Prompt tokens that were found and never computed here.
    pub(super) cached: usize,
    pub(super) stop: ReuseStop,
}

impl Sharing {
    pub(super) fn new(open: bool) -> Self {
        Self {
            open,
            chain: Vec::new(),
            published: 0,
            cached: 0,
            stop: ReuseStop::NotBegun,
        }
    }

    /// Takes what is known already of the text.
    pub(super) fn know(&mut self, chain: Vec<BlockHash>) {
        self.chain = chain;
    }
}

/// Where a sequence can begin, beside the blocks that it shares.
pub(crate) struct Start {
    /// How many of these blocks can be found by anybody.
    published: usize,
    stop: ReuseStop,
    /// The leader's block that holds the rest of the prompt.
    pub(crate) copied: Option<BlockId>,
}

impl Start {
    /// Begins where the leader has come to, if it still runs, or with what is known to all.
    pub(crate) fn find(
        sequence: &mut Sequence,
        running: &[Sequence],
        pool: &BlockPool,
        shared: &mut Vec<BlockId>,
    ) -> Self {
        let is_leader = |other: &&Sequence| Some(other.id) == sequence.leader && other.has_prompt();
        if sequence.generated() == 0
            && let Some(leader) = running.iter().find(is_leader)
        {
            let (whole, copied) = leader.lend(pool);
            shared.clear();
            shared.extend_from_slice(whole);
            return Self {
                published: leader.sharing.published.min(whole.len()),
                stop: ReuseStop::EndOfPrompt,
                copied,
            };
        }
        let stop = sequence.find_shared(pool, shared);
        Self {
            published: shared.len(),
            stop,
            copied: None,
        }
    }
}

impl Sequence {
    /// Finds the blocks of others that hold the beginning of this text, and leaves at least one
    /// token to compute. Tells why there are no more.
    fn find_shared(&mut self, pool: &BlockPool, found: &mut Vec<BlockId>) -> ReuseStop {
        found.clear();
        if !self.sharing.open || !pool.index().is_enabled() {
            return ReuseStop::Bypassed;
        }
        for block in 0..self.skippable() / pool.block_size().get() {
            let content = self.content(block, found.last().copied(), pool);
            match pool.index().find(&content) {
                Known::As(other) => found.push(other),
                Known::No if pool.index().was_evicted(content.hash) => {
                    return ReuseStop::Evicted(block);
                }
                Known::No | Known::Collides if block == 0 => return ReuseStop::NothingCached,
                Known::No | Known::Collides => return ReuseStop::DiffersAtBlock(block),
            }
        }
        if self.needs_rows() {
            return ReuseStop::RowsWanted;
        }
        ReuseStop::EndOfPrompt
    }

    /// What a follower, which needs all of the prompt but its last token, takes from this
    /// sequence: whole blocks to share, then perhaps one to copy.
    pub(crate) fn lend(&self, pool: &BlockPool) -> (&[BlockId], Option<BlockId>) {
        let (size, wanted) = (pool.block_size().get(), self.request.prompt().len() - 1);
        let (whole, rest) = self.table.blocks().split_at(wanted / size);
        (
            whole,
            rest.first()
                .copied()
                .filter(|_| !wanted.is_multiple_of(size)),
        )
    }

    /// Counts the tokens of a block that is a copy of its leader's, as [`Sequence::begin_with`] does.
    pub(crate) fn begin_inside_copy(&mut self) -> usize {
        self.computed = self.request.prompt().len() - 1;
        self.count_found(ReuseStop::EndOfPrompt)
    }

    /// Counts each token of the prompt once: as found, if it was never computed here. Whoever was sent
    /// away in the middle may find more when it returns.
    fn count_found(&mut self, stop: ReuseStop) -> usize {
        let reached = self.computed.min(self.request.prompt().len());
        let found = reached.saturating_sub(self.prompt_reached);
        if found > 0 || self.sharing.stop == ReuseStop::NotBegun {
            self.sharing.stop = stop;
        }
        self.prompt_reached += found;
        self.sharing.cached += found;
        found
    }

    /// Starts from blocks of others that hold the beginning of this text. Returns how many prompt
    /// tokens need not be computed because of it.
    pub(crate) fn begin_with(
        &mut self,
        blocks: &[BlockId],
        start: &Start,
        pool: &mut BlockPool,
    ) -> usize {
        self.reserve(pool);
        self.table.share(blocks, pool);
        self.computed = blocks.len() * pool.block_size().get();
        self.sharing.published = start.published;
        self.count_found(start.stop)
    }

    /// Gets memory for all that the answer may become, so that no step has to. Who has not run has
    /// none; what is never used costs addresses only.
    fn reserve(&mut self, pool: &BlockPool) {
        let longest = self.request.prompt().len() + self.request.max_tokens().get();
        let size = pool.block_size();
        self.tokens
            .reserve_exact(longest.saturating_sub(self.tokens.len()));
        self.table.reserve(Tokens::new(longest).blocks_needed(size));
        let chain = &mut self.sharing.chain;
        chain.reserve_exact((longest / size.get()).saturating_sub(chain.len()));
    }

    /// Whether there is a full block that others do not know.
    pub(crate) fn can_publish(&self, pool: &BlockPool) -> bool {
        let end = (self.sharing.published + 1) * pool.block_size().get();
        self.sharing.open && pool.index().is_enabled() && end <= self.computed
    }

    /// Makes full blocks known to others, and gives up those that others hold as well.
    pub(crate) fn publish(&mut self, pool: &mut BlockPool) {
        while self.can_publish(pool) {
            let block = self.sharing.published;
            let own = self.table.blocks()[block];
            let parent = block
                .checked_sub(1)
                .map(|parent| self.table.blocks()[parent]);
            let content = self.content(block, parent, pool);
            match pool.publish(own, &content) {
                Published::Now => {}
                Published::Before(other) => self.table.replace(block, other, pool),
                Published::Never => {
                    self.sharing.open = false;
                    return;
                }
            }
            self.sharing.published += 1;
        }
    }

    /// Checks that what it made known is known as its own text, and that what it will write is its own.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn check_sharing(&self, pool: &BlockPool) {
        let size = pool.block_size().get();
        assert!(self.sharing.published * size <= self.computed);
        let known = &self.table.blocks()[..self.sharing.published];
        let mut parent = None;
        for &block in known {
            assert!(pool.index().holds(block), "a block is no longer known");
            let is_child = pool.index().parent(block) == parent;
            assert!(is_child, "a block is known after another text");
            parent = Some(block);
        }
        for &block in &self.table.blocks()[self.computed / size..] {
            assert!(
                pool.is_private(block),
                "a block that others read is written"
            );
        }
    }

    /// What a full block of this text holds.
    fn content(&mut self, block: usize, parent: Option<BlockId>, pool: &BlockPool) -> Content<'_> {
        let (size, hasher) = (pool.block_size().get(), pool.index().hasher());
        while self.sharing.chain.len() <= block {
            let next = self.sharing.chain.len();
            let text = match self.sharing.chain.last() {
                Some(&text) => text,
                None => hasher.root(self.request.cache_salt()),
            };
            let tokens = &self.tokens[next * size..(next + 1) * size];
            self.sharing.chain.push(hasher.extend(text, tokens));
        }
        Content {
            hash: self.sharing.chain[block],
            parent,
            tokens: &self.tokens[block * size..(block + 1) * size],
            salt: self.request.cache_salt(),
        }
    }
}
