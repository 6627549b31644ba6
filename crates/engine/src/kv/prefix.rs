//! Which full blocks hold which text, so that a later request can share them.
//!
//! A block is known by the hash of all tokens up to its end, keyed and salted, and by its parent,
//! the block before it. A hash only finds a candidate: it is taken if its parent is the block that
//! was matched before, and its tokens (for a first block, the salt too) are the same one by one.
//! So equal hashes of different texts cost a miss and never a wrong answer, and a salt is a wall.
//!
//! Only whole texts from the start are indexed: whoever holds a block holds all blocks before it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::Arc;

use forthwith_core::units::{BlockId, TokenId};

use super::texts::{BlockHash, Marks, Preview, TextHasher, Unhashed};

/// Whether and how blocks are shared between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixCacheConfig {
    /// Whether computed blocks are found again.
    pub enabled: bool,
    /// The key of the hash.
    pub key: PrefixKey,
    /// How many bits of the hash are used: 128, or fewer to test what happens when hashes collide.
    pub hash_bits: u32,
}

/// A secret of one engine: without it nobody can choose texts whose hashes collide.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefixKey(pub [u64; 2]);

impl fmt::Debug for PrefixKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrefixKey(..)")
    }
}

impl Default for PrefixCacheConfig {
    /// Sharing, with a key that everybody knows. Servers want
    /// [`PrefixCacheConfig::keyed_at_random`].
    fn default() -> Self {
        Self {
            enabled: true,
            key: PrefixKey::default(),
            hash_bits: 128,
        }
    }
}

impl PrefixCacheConfig {
    /// Sharing, with a key of this process alone. The key never changes an answer.
    pub fn keyed_at_random() -> Self {
        // The standard library seeds its hash tables from the system's randomness.
        let random = || RandomState::new().build_hasher().finish();
        Self {
            key: PrefixKey([random(), random()]),
            ..Self::default()
        }
    }
}

/// Why no more of a prompt was found in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReuseStop {
    /// The request has not joined a step.
    #[default]
    NotBegun,
    /// The request or the engine does not share.
    Bypassed,
    /// Nobody with this salt has computed the prompt's first block.
    NothingCached,
    /// Other prompts agree up to this block, counted from 0, and nobody has computed it.
    DiffersAtBlock(usize),
    /// This block was known until its memory was needed.
    Evicted(usize),
    /// Log-probabilities of the tokens that follow are wanted, and only computing them tells.
    RowsWanted,
    /// Everything was found that can be: whole blocks, with a token left to compute.
    EndOfPrompt,
}

/// What a block holds: the text of its parent and then its own tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    pub(crate) hash: BlockHash,
    pub(crate) parent: Option<BlockId>,
    pub(crate) tokens: &'a [TokenId],
    pub(crate) salt: Option<&'a [u8]>,
}

/// What the index knows of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// This block holds it.
    As(BlockId),
    /// Another content has the same hash.
    Collides,
    No,
}

#[derive(Debug)]
struct Node {
    hash: BlockHash,
    parent: Option<BlockId>,
    /// Of a first block; its children are told apart by their parent.
    salt: Option<Box<[u8]>>,
}

#[derive(Debug)]
pub(crate) struct PrefixIndex {
    enabled: bool,
    hasher: TextHasher,
    block_size: usize,
    marks: Arc<Marks>,
    by_hash: HashMap<BlockHash, BlockId, BuildHasherDefault<Unhashed>>,
    /// For each block that is indexed, what it holds.
    nodes: Vec<Option<Node>>,
    tokens: Vec<TokenId>,
    evicted: Evicted,
}

impl PrefixIndex {
    pub(crate) fn new(config: PrefixCacheConfig, block_size: usize, blocks: usize) -> Self {
        Self {
            enabled: config.enabled,
            hasher: TextHasher::new(config),
            block_size,
            marks: Arc::new(Marks::new(blocks)),
            // Twice what it holds: a table that is at most half full clears itself of the traces of
            // what was removed without new memory.
            by_hash: HashMap::with_capacity_and_hasher(2 * blocks, BuildHasherDefault::default()),
            nodes: std::iter::repeat_with(|| None).take(blocks).collect(),
            tokens: vec![TokenId::new(0); blocks * block_size],
            evicted: Evicted::new(blocks),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.by_hash.clear();
        self.marks.clear_all();
        self.nodes.fill_with(|| None);
        self.evicted.clear();
    }

    /// How texts are named.
    pub(crate) fn hasher(&self) -> TextHasher {
        self.hasher
    }

    /// What other threads see of the index.
    pub(crate) fn preview(&self) -> Preview {
        let hasher = self.enabled.then_some(self.hasher);
        Preview::new(hasher, self.block_size, Arc::clone(&self.marks))
    }

    pub(crate) fn find(&self, content: &Content<'_>) -> Known {
        let Some(&block) = self.by_hash.get(&content.hash) else {
            return Known::No;
        };
        let same = self.nodes[block.index()].as_ref().is_some_and(|node| {
            node.parent == content.parent
                && self.tokens_of(block) == content.tokens
                && (node.parent.is_some() || node.salt.as_deref() == content.salt)
        });
        if same {
            Known::As(block)
        } else {
            Known::Collides
        }
    }

    /// Whether a text was known and given up for its memory.
    pub(crate) fn was_evicted(&self, hash: BlockHash) -> bool {
        self.evicted.set.contains(&hash)
    }

    /// Notes what a block holds; nothing may be known under the content's hash.
    pub(crate) fn insert(&mut self, block: BlockId, content: &Content<'_>) {
        self.evicted.forget(content.hash);
        let start = block.index() * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(content.tokens);
        let first = content.parent.is_none();
        self.nodes[block.index()] = Some(Node {
            hash: content.hash,
            parent: content.parent,
            salt: content.salt.filter(|_| first).map(Box::from),
        });
        self.by_hash.insert(content.hash, block);
        self.marks.set(content.hash);
    }

    /// Forgets what a block holds, because it will hold something else.
    pub(crate) fn evict(&mut self, block: BlockId) {
        if let Some(node) = self.nodes[block.index()].take() {
            self.by_hash.remove(&node.hash);
            self.marks.clear(node.hash);
            self.evicted.note(node.hash);
        }
    }

    pub(crate) fn holds(&self, block: BlockId) -> bool {
        self.nodes[block.index()].is_some()
    }

    pub(crate) fn parent(&self, block: BlockId) -> Option<BlockId> {
        self.nodes[block.index()].as_ref()?.parent
    }

    fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        let start = block.index() * self.block_size;
        &self.tokens[start..start + self.block_size]
    }

    /// Checks that hashes and blocks point at each other and that parents are known.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn check_invariants(&self) {
        let mut known = 0;
        for node in self.nodes.iter().flatten() {
            known += 1;
            assert!(self.by_hash.contains_key(&node.hash), "a block is lost");
            let parent_known = node.parent.is_none_or(|parent| self.holds(parent));
            assert!(parent_known, "a block outlives its parent");
        }
        assert_eq!(known, self.by_hash.len(), "a hash leads nowhere");
    }
}

/// The hashes that were given up last, as many as there are blocks.
#[derive(Debug)]
struct Evicted {
    set: HashSet<BlockHash, BuildHasherDefault<Unhashed>>,
    order: VecDeque<BlockHash>,
    limit: usize,
}

impl Evicted {
    fn new(limit: usize) -> Self {
        Self {
            // Twice what it holds, as above.
            set: HashSet::with_capacity_and_hasher(2 * (limit + 1), BuildHasherDefault::default()),
            order: VecDeque::with_capacity(limit + 1),
            limit,
        }
    }

    fn note(&mut self, hash: BlockHash) {
        if self.set.insert(hash) {
            self.order.push_back(hash);
        }
        while self.order.len() > self.limit {
            if let Some(oldest) = self.order.pop_front() {
                self.set.remove(&oldest);
            }
        }
    }

    /// What is known again leaves the set; its place in the order is left to run out.
    fn forget(&mut self, hash: BlockHash) {
        self.set.remove(&hash);
    }

    fn clear(&mut self) {
        self.set.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId::new).collect()
    }

    fn index(hash_bits: u32) -> PrefixIndex {
        let config = PrefixCacheConfig {
            hash_bits,
            ..PrefixCacheConfig::default()
        };
        PrefixIndex::new(config, 2, 4)
    }

    fn content<'a>(
        index: &PrefixIndex,
        salt: Option<&'a [u8]>,
        tokens: &'a [TokenId],
    ) -> Content<'a> {
        Content {
            hash: index.hasher().extend(index.hasher().root(salt), tokens),
            parent: None,
            tokens,
            salt,
        }
    }

    #[test]
    fn a_salt_is_a_wall_even_when_all_hashes_collide() {
        for bits in [0, 1, 128] {
            let mut index = index(bits);
            let text = tokens(&[1, 2]);
            let salted = content(&index, Some(b"a"), &text);
            index.insert(BlockId::new(3), &salted);
            assert_eq!(index.find(&salted), Known::As(BlockId::new(3)));
            for salt in [None, Some(&b"b"[..]), Some(&b""[..])] {
                let known = index.find(&content(&index, salt, &text));
                assert!(!matches!(known, Known::As(_)), "{bits} bits, {salt:?}");
            }
        }
    }

    #[test]
    fn the_same_tokens_after_another_text_are_another_content() {
        let mut index = index(0);
        let (text, next) = (tokens(&[1, 2]), tokens(&[3, 4]));
        let first = content(&index, None, &text);
        index.insert(BlockId::new(0), &first);
        let child = Content {
            hash: index.hasher().extend(first.hash, &next),
            parent: Some(BlockId::new(0)),
            tokens: &next,
            salt: None,
        };
        assert_eq!(index.find(&child), Known::Collides);
        let orphan = Content {
            parent: None,
            ..child
        };
        assert_eq!(index.find(&orphan), Known::Collides);
    }

    #[test]
    fn remembers_what_it_gave_up() {
        let mut index = index(128);
        let text = tokens(&[1, 2]);
        let content = content(&index, None, &text);
        index.insert(BlockId::new(1), &content);
        index.evict(BlockId::new(1));
        assert_eq!(index.find(&content), Known::No);
        assert!(index.was_evicted(content.hash));
        index.insert(BlockId::new(2), &content);
        assert!(!index.was_evicted(content.hash));
        index.check_invariants();
    }

    #[test]
    fn a_key_hides_itself() {
        let config = PrefixCacheConfig::keyed_at_random();
        assert_ne!(config.key, PrefixCacheConfig::keyed_at_random().key);
        assert_eq!(format!("{:?}", config.key), "PrefixKey(..)");
    }
}
