//! The names of texts: a keyed hash for each beginning of a prompt that ends with a full block, and
//! marks by which any thread can tell which of them are known.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forthwith_core::request::GenerationRequest;
use forthwith_core::units::TokenId;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::prefix::PrefixCacheConfig;
use crate::group::Submission;

/// The hash of a text that ends with a full block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHash(u128);

impl Hash for BlockHash {
    /// A keyed hash needs no other to be spread over a table.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(halves(self.0)[0]);
    }
}

/// Takes a [`BlockHash`] as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unhashed(u64);

impl Hasher for Unhashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only block hashes are looked up")
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The low half and the high half.
fn halves(value: u128) -> [u64; 2] {
    [value, value >> 64]
        .map(|half| u64::try_from(half & u128::from(u64::MAX)).expect("64 bits are left"))
}

/// Names texts with the engine's key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextHasher {
    key: [u64; 2],
    /// Bits of the hash that are left out.
    surplus: u32,
}

impl TextHasher {
    pub(crate) fn new(config: PrefixCacheConfig) -> Self {
        Self {
            key: config.key.0,
            surplus: 128_u32.saturating_sub(config.hash_bits),
        }
    }

    /// The hash of the empty text.
    pub(crate) fn root(&self, salt: Option<&[u8]>) -> BlockHash {
        let mut hash = self.begin();
        hash.write(&[u8::from(salt.is_some())]);
        hash.write(salt.unwrap_or_default());
        self.cut(&hash)
    }

    /// The hash of a text and one more block.
    pub(crate) fn extend(&self, text: BlockHash, tokens: &[TokenId]) -> BlockHash {
        let mut hash = self.begin();
        hash.write(&text.0.to_le_bytes());
        let (pairs, rest) = tokens.as_chunks::<2>();
        for [first, second] in pairs {
            let pair = u64::from(first.get()) | (u64::from(second.get()) << 32);
            hash.write(&pair.to_le_bytes());
        }
        for token in rest {
            hash.write(&token.get().to_le_bytes());
        }
        self.cut(&hash)
    }

    fn begin(&self) -> SipHasher13 {
        let [first, second] = self.key;
        SipHasher13::new_with_keys(first, second)
    }

    fn cut(&self, hash: &SipHasher13) -> BlockHash {
        BlockHash(
            hash.finish128()
                .as_u128()
                .checked_shr(self.surplus)
                .unwrap_or(0),
        )
    }
}

/// Which texts are known, without a lock and nearly always right.
///
/// Each text has one place, which the last to come holds; what reads it decides about time, never
/// about content.
#[derive(Debug)]
pub(crate) struct Marks(Box<[AtomicU64]>);

impl Marks {
    /// Room for the texts of this many blocks.
    pub(crate) fn new(blocks: usize) -> Self {
        let places = (2 * blocks).next_power_of_two();
        Self((0..places).map(|_| AtomicU64::new(0)).collect())
    }

    fn place(&self, text: BlockHash) -> (&AtomicU64, u64) {
        let [low, high] = halves(text.0);
        let place = usize::try_from(low % self.0.len() as u64).expect("a place is an index");
        // Zero is nobody's mark.
        (&self.0[place], high | 1)
    }

    pub(crate) fn set(&self, text: BlockHash) {
        let (place, mark) = self.place(text);
        place.store(mark, Ordering::Relaxed);
    }

    pub(crate) fn clear(&self, text: BlockHash) {
        let (place, mark) = self.place(text);
        if place.load(Ordering::Relaxed) == mark {
            place.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn clear_all(&self) {
        let places = self.0.iter();
        places.for_each(|place| place.store(0, Ordering::Relaxed));
    }

    fn has(&self, text: BlockHash) -> bool {
        let (place, mark) = self.place(text);
        place.load(Ordering::Relaxed) == mark
    }
}

/// What a request will find in the cache, for whoever asks on any thread.
#[derive(Clone, Debug)]
pub(crate) struct Preview {
    /// `None` if the engine does not share.
    hasher: Option<TextHasher>,
    block_size: usize,
    marks: Arc<Marks>,
}

/// What is known of a request's prompt before the engine has seen it.
#[derive(Debug, Default)]
pub(crate) struct Foreseen {
    /// The names of its full blocks.
    pub(crate) chain: Vec<BlockHash>,
    /// How many of its tokens the cache holds, if nothing happens in between.
    pub(crate) cached: usize,
}

impl Preview {
    pub(super) fn new(hasher: Option<TextHasher>, block_size: usize, marks: Arc<Marks>) -> Self {
        Self {
            hasher,
            block_size,
            marks,
        }
    }

    /// Looks prompts up; takes nothing.
    pub(crate) fn of_all(&self, choices: &[Submission]) -> Vec<Foreseen> {
        choices
            .iter()
            .map(|(request, _)| self.of(request))
            .collect()
    }

    fn of(&self, request: &GenerationRequest) -> Foreseen {
        let Some(hasher) = self.hasher.filter(|_| !request.bypasses_cache()) else {
            return Foreseen::default();
        };
        let prompt = request.prompt();
        let mut chain = Vec::with_capacity(prompt.len() / self.block_size);
        let mut text = hasher.root(request.cache_salt());
        for tokens in prompt.chunks_exact(self.block_size) {
            text = hasher.extend(text, tokens);
            chain.push(text);
        }
        // A known block's predecessors are known, even where another text took a place.
        let usable = &chain[..request.skippable() / self.block_size];
        let last = usable.iter().rposition(|&text| self.marks.has(text));
        Foreseen {
            cached: last.map_or(0, |block| (block + 1) * self.block_size),
            chain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hasher() -> TextHasher {
        TextHasher::new(PrefixCacheConfig::default())
    }

    #[test]
    fn marks_come_and_go() {
        let marks = Marks::new(64);
        let texts: Vec<BlockHash> = (0..64)
            .map(|id| hasher().extend(hasher().root(None), &[TokenId::new(id)]))
            .collect();
        for &text in &texts {
            marks.set(text);
        }
        let seen = texts.iter().filter(|&&text| marks.has(text)).count();
        // Two in one place: at half load about a fifth.
        assert!(seen > 40, "{seen}");
        for &text in &texts {
            marks.clear(text);
        }
        assert!(!texts.iter().any(|&text| marks.has(text)));
        marks.set(texts[0]);
        marks.clear_all();
        assert!(!marks.has(texts[0]));
    }

    #[test]
    fn another_text_in_the_same_place_is_not_cleared() {
        let marks = Marks::new(0);
        let [a, b] = [1, 2].map(|id| hasher().extend(hasher().root(None), &[TokenId::new(id)]));
        marks.set(a);
        marks.set(b);
        marks.clear(a);
        assert!(marks.has(b) && !marks.has(a));
    }
}
