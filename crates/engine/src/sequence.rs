//! One request's state: its tokens, its blocks and how far the model has come.
//!
//! Prefill, decode and the recomputation after a preemption are one thing here: tokens that are
//! known but not yet computed. A sequence that lost its blocks starts again with the tokens it
//! has; the answer so far has become part of what is prefilled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use forthwith_core::request::GenerationRequest;
use forthwith_core::units::{BlockId, SeqId, TokenId, Tokens};

use crate::event::{Event, EventSink, FinishReason, Finished, Timings, TokenEvent};
use crate::kv::{BlockHash, BlockPool, BlockTable, Content, Known, Published, ReuseStop};
use crate::sampling::Choice;

/// How a sequence ended.
#[derive(Debug)]
pub(crate) enum End {
    Finished(FinishReason),
    Failed(String),
}

/// When things happened to a request.
#[derive(Clone, Copy, Debug)]
struct Stamps {
    arrived: Duration,
    admitted: Option<Duration>,
    first_token: Option<Duration>,
    /// How long after the arrival the first token was expected.
    expected: Option<Duration>,
}

/// What a sequence shares with others.
#[derive(Debug)]
struct Sharing {
    /// Whether it looks for blocks of others and makes its own known.
    open: bool,
    /// The hash of the text up to the end of each full block, as far as it was needed.
    chain: Vec<BlockHash>,
    /// How many blocks of the table, from the first, are known to others.
    published: usize,
    /// Prompt tokens that were found when the sequence first joined.
    cached: usize,
    stop: ReuseStop,
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

/// Where a sequence stands among those that run or have run: the last one is sent away first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: i32,
    /// Which sequence of the engine this was to join.
    joined: u64,
}

/// One answer in the making.
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) request: GenerationRequest,
    /// The prompt, then the answer so far.
    pub(crate) tokens: Vec<TokenId>,
    /// How many of `tokens` the cache holds.
    pub(crate) computed: usize,
    pub(crate) table: BlockTable,
    pub(crate) end: Option<End>,
    joined: Option<u64>,
    /// Who computes the prompt for this sequence.
    pub(crate) leader: Option<SeqId>,
    /// Those who wait until this sequence has computed its prompt, which is theirs as well.
    pub(crate) followers: Vec<Sequence>,
    sharing: Sharing,
    /// The most prompt tokens that were ever computed.
    prompt_reached: usize,
    stamps: Stamps,
    sink: Option<Box<dyn EventSink>>,
}

impl Sequence {
    pub(crate) fn new(
        id: SeqId,
        request: GenerationRequest,
        sink: Box<dyn EventSink>,
        arrived: Duration,
    ) -> Self {
        Self {
            id,
            tokens: request.prompt().to_vec(),
            computed: 0,
            table: BlockTable::default(),
            end: None,
            joined: None,
            leader: None,
            followers: Vec::new(),
            sharing: Sharing {
                open: !request.bypasses_cache(),
                chain: Vec::new(),
                published: 0,
                cached: 0,
                stop: ReuseStop::NotBegun,
            },
            request,
            prompt_reached: 0,
            stamps: Stamps {
                arrived,
                admitted: None,
                first_token: None,
                expected: None,
            },
            sink: Some(sink),
        }
    }

    /// Says how long after its arrival the first token is expected.
    pub(crate) fn expect_first_token(&mut self, expected: Option<Duration>) {
        self.stamps.expected = expected;
    }

    /// Whether the other's prompt can be computed as part of this one.
    pub(crate) fn may_lead(&self, other: &Self) -> bool {
        let (own, others) = (&self.request, &other.request);
        self.sharing.open
            && other.sharing.open
            && own.prompt() == others.prompt()
            && own.cache_salt() == others.cache_salt()
            && own.scheduling() == others.scheduling()
    }

    /// The highest id of the sequence and its followers.
    pub(crate) fn last_id(&self) -> SeqId {
        self.followers.last().map_or(self.id, |last| last.id)
    }

    /// Whether the whole prompt is in the cache.
    pub(crate) fn has_prompt(&self) -> bool {
        self.computed >= self.request.prompt().len()
    }

    /// Tokens that are known but not yet computed, at least one while the sequence lives.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// All tokens known so far.
    pub(crate) fn length(&self) -> Tokens {
        Tokens::new(self.tokens.len())
    }

    /// Tokens of the answer so far.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.request.prompt().len()
    }

    /// Notes that the sequence joins a step; whether for the first time.
    pub(crate) fn mark_admitted(&mut self, now: Duration) -> bool {
        let first = self.stamps.admitted.is_none();
        self.stamps.admitted.get_or_insert(now);
        first
    }

    /// Gives the sequence its place among those that run, once and for all.
    pub(crate) fn join(&mut self, joined: u64) {
        self.joined.get_or_insert(joined);
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.joined.is_some()
    }

    pub(crate) fn rank(&self) -> Rank {
        Rank {
            priority: self.request.scheduling().priority,
            joined: self.joined.unwrap_or(u64::MAX),
        }
    }

    /// How long the first token was expected to take, and how long it took, if it has just come.
    pub(crate) fn first_token_times(&self) -> Option<(Duration, Duration)> {
        let Stamps {
            arrived,
            first_token,
            expected,
            ..
        } = self.stamps;
        let just_come = self.generated() == 1;
        just_come.then_some((expected?, first_token?.saturating_sub(arrived)))
    }

    /// When the request ends if it has not begun.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let patience = self.request.scheduling().max_queue_time?;
        Some(self.stamps.arrived.saturating_add(patience))
    }

    pub(crate) fn remove_follower(&mut self, id: SeqId) -> Option<Sequence> {
        let index = self.followers.iter().position(|other| other.id == id)?;
        Some(self.followers.remove(index))
    }

    /// The first follower, who computes the prompt for the others if this sequence ends.
    pub(crate) fn take_heir(&mut self) -> Option<Sequence> {
        let mut followers = std::mem::take(&mut self.followers).into_iter();
        let mut heir = followers.next()?;
        heir.leader = None;
        heir.joined = self.joined;
        heir.followers = followers.collect();
        for follower in &mut heir.followers {
            follower.leader = Some(heir.id);
        }
        Some(heir)
    }

    /// Finds the blocks of others that hold the beginning of this text, and leaves at least one
    /// token to compute. Tells why there are no more.
    fn find_shared(&mut self, pool: &BlockPool, found: &mut Vec<BlockId>) -> ReuseStop {
        found.clear();
        if !self.sharing.open || !pool.index().is_enabled() {
            return ReuseStop::Bypassed;
        }
        for block in 0..(self.tokens.len() - 1) / pool.block_size().get() {
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

    /// Counts the tokens of a block that is a copy of its leader's.
    pub(crate) fn begin_inside_copy(&mut self) -> usize {
        let wanted = self.request.prompt().len() - 1;
        let copied = wanted - self.computed;
        self.computed = wanted;
        if self.prompt_reached >= wanted {
            return 0;
        }
        self.prompt_reached = wanted;
        self.sharing.cached = wanted;
        copied
    }

    /// Starts from blocks of others that hold the beginning of this text. Returns how many prompt
    /// tokens need not be computed because of it.
    pub(crate) fn begin_with(
        &mut self,
        blocks: &[BlockId],
        start: &Start,
        pool: &mut BlockPool,
    ) -> usize {
        self.table.share(blocks, pool);
        self.computed = blocks.len() * pool.block_size().get();
        self.sharing.published = start.published;
        if self.sharing.stop != ReuseStop::NotBegun {
            return 0;
        }
        self.sharing.stop = start.stop;
        self.sharing.cached = self.computed;
        self.prompt_reached = self.computed;
        self.sharing.cached
    }

    /// Makes full blocks known to others, and gives up those that others hold as well.
    pub(crate) fn publish(&mut self, pool: &mut BlockPool) {
        if !pool.index().is_enabled() {
            return;
        }
        while self.sharing.open
            && (self.sharing.published + 1) * pool.block_size().get() <= self.computed
        {
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

    /// Checks that what it will write is its own.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn check_sharing(&self, pool: &BlockPool) {
        let size = pool.block_size().get();
        assert!(self.sharing.published * size <= self.computed);
        for &block in &self.table.blocks()[self.computed / size..] {
            assert!(
                pool.is_private(block),
                "a block that others read is written"
            );
        }
    }

    /// What a full block of this text holds.
    fn content(&mut self, block: usize, parent: Option<BlockId>, pool: &BlockPool) -> Content<'_> {
        let size = pool.block_size().get();
        while self.sharing.chain.len() <= block {
            let next = self.sharing.chain.len();
            let text = match self.sharing.chain.last() {
                Some(&text) => text,
                None => pool.index().root(self.request.cache_salt()),
            };
            let tokens = &self.tokens[next * size..(next + 1) * size];
            self.sharing.chain.push(pool.index().extend(text, tokens));
        }
        Content {
            hash: self.sharing.chain[block],
            parent,
            tokens: &self.tokens[block * size..(block + 1) * size],
            salt: self.request.cache_salt(),
        }
    }

    /// Counts tokens as computed; returns how many prompt tokens were computed for the first time.
    pub(crate) fn advance(&mut self, tokens: usize) -> usize {
        self.computed += tokens;
        let reached = self.computed.min(self.request.prompt().len());
        let fresh = reached.saturating_sub(self.prompt_reached);
        self.prompt_reached += fresh;
        fresh
    }

    /// Appends a chosen token, tells the owner, and ends the sequence if this token ends it.
    pub(crate) fn accept(&mut self, choice: Choice, now: Duration) {
        self.stamps.first_token.get_or_insert(now);
        self.tokens.push(choice.token);
        self.end = self.end_after(choice.token).map(End::Finished);
        self.send(Event::Token(TokenEvent {
            token: choice.token,
            logprob: choice.logprob,
        }));
        if self.sink.is_none() {
            self.end = Some(End::Finished(FinishReason::Cancelled));
        }
    }

    fn end_after(&self, token: TokenId) -> Option<FinishReason> {
        let stop = self.request.stop();
        let ends = !stop.ignore_end && stop.end_tokens.contains(&token);
        if ends || stop.stop_token_ids.contains(&token) {
            return Some(FinishReason::End(token));
        }
        (self.generated() >= self.request.max_tokens().get()).then_some(FinishReason::Length)
    }

    /// Gives the blocks back and forgets what was computed.
    pub(crate) fn release(&mut self, pool: &mut BlockPool) {
        std::mem::take(&mut self.table).release(pool);
        self.computed = 0;
        self.sharing.published = 0;
    }

    /// Forgets the blocks without giving them back, for a pool that is about to be reset.
    pub(crate) fn forget_blocks(&mut self) {
        self.table = BlockTable::default();
        self.computed = 0;
        self.sharing.published = 0;
    }

    /// Tells the owner how the sequence ended. Only the first end is told.
    pub(crate) fn send_end(&mut self, end: End, now: Duration) {
        let event = match end {
            End::Failed(message) => Event::Failed(message),
            End::Finished(reason) => Event::Finished(Finished {
                reason,
                timings: self.timings(now),
                prompt_tokens: Tokens::new(self.request.prompt().len()),
                cached_tokens: Tokens::new(self.sharing.cached),
                reuse_stop: self.sharing.stop,
                completion_tokens: Tokens::new(self.generated()),
            }),
        };
        self.send(event);
        if let Some(sink) = self.sink.take() {
            discard(sink);
        }
    }

    fn timings(&self, now: Duration) -> Timings {
        let Stamps {
            arrived,
            admitted,
            first_token,
            expected: _,
        } = self.stamps;
        let joined = admitted.unwrap_or(now);
        let answered = first_token.unwrap_or(now);
        Timings {
            queue: joined.saturating_sub(arrived),
            prefill: answered.saturating_sub(joined),
            decode: now.saturating_sub(answered),
        }
    }

    /// Sends an event. A sink that panics is dropped: its owner's fault must not become others'.
    fn send(&mut self, event: Event) {
        if let Some(mut sink) = self.sink.take() {
            match catch_unwind(AssertUnwindSafe(|| sink.send(event))) {
                Ok(()) => self.sink = Some(sink),
                Err(_) => discard(sink),
            }
        }
    }
}

/// Drops a sink whose drop may panic.
fn discard(sink: Box<dyn EventSink>) {
    // The panic hook has reported it; there is nothing to add.
    let _ = catch_unwind(AssertUnwindSafe(move || drop(sink)));
}
