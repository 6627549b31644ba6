//! The counting language model of the introductory texts.
//!
//! Training counts which word follows which; inference looks the last word up. It is a real model
//! in small: it runs through the same engine, sampler and stop rules as any other, needs no file,
//! and shows the difference between training and inference.

use crate::token_cache::{TokenCache, for_each_logit_row};
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::units::{BlockId, Blocks, TokenId, Tokens};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the embedded toy was trained on.
pub const CORPUS: &str = "the gpu reads the weights . the gpu writes the answer . \
                          the server streams the answer .";

/// Stands for any word that training did not see; it is followed by [`END`] alone.
pub const UNKNOWN: &str = "<unk>";
/// Follows a word that nothing followed in training; ends the answer unseen.
pub const END: &str = "<end>";
/// Ends the answer and is shown.
pub const FULL_STOP: &str = ".";

/// Positions in one block of the toy's cache.
pub const BLOCK_SIZE: Tokens = Tokens::new(32);
const MAX_STEP_TOKENS: Tokens = Tokens::new(512);

/// The trained counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toy {
    words: Vec<String>,
    /// `follows[current]` lists each next word with its count, in order of first appearance.
    follows: Vec<Vec<(TokenId, u64)>>,
}

impl Toy {
    /// The model trained on [`CORPUS`].
    pub fn embedded() -> Self {
        Self::train(CORPUS)
    }

    /// Counts the pairs of neighbouring words. Words get ids in order of first appearance;
    /// [`UNKNOWN`] and [`END`] come last and are dropped from the corpus.
    pub fn train(corpus: &str) -> Self {
        let mut words: Vec<String> = Vec::new();
        let mut ids: BTreeMap<&str, TokenId> = BTreeMap::new();
        let mut text: Vec<TokenId> = Vec::new();
        for word in corpus
            .split_whitespace()
            .filter(|&word| word != UNKNOWN && word != END)
        {
            text.push(*ids.entry(word).or_insert_with(|| {
                words.push(word.to_owned());
                token_id(words.len() - 1)
            }));
        }
        words.extend([UNKNOWN.to_owned(), END.to_owned()]);
        let mut follows: Vec<Vec<(TokenId, u64)>> = vec![Vec::new(); words.len()];
        for pair in text.windows(2) {
            let counts = &mut follows[pair[0].index()];
            match counts.iter_mut().find(|(next, _)| *next == pair[1]) {
                Some((_, count)) => *count += 1,
                None => counts.push((pair[1], 1)),
            }
        }
        Self { words, follows }
    }

    /// All words in order of their ids.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The id of [`UNKNOWN`].
    pub fn unknown(&self) -> TokenId {
        token_id(self.words.len() - 2)
    }

    /// The tokens that end an answer: [`FULL_STOP`], if training saw one, and [`END`].
    pub fn end_tokens(&self) -> Vec<TokenId> {
        self.id(FULL_STOP).into_iter().chain([self.end()]).collect()
    }

    /// The tokens that are never shown: [`UNKNOWN`] and [`END`].
    pub fn hidden(&self) -> Vec<TokenId> {
        vec![self.unknown(), self.end()]
    }

    /// What followed a word in training and how often, in order of first appearance.
    pub fn follows(&self, word: &str) -> Vec<(String, u64)> {
        let counts = self
            .id(word)
            .map_or(&[][..], |id| &self.follows[id.index()]);
        counts
            .iter()
            .map(|&(next, count)| (self.words[next.index()].clone(), count))
            .collect()
    }

    /// An executor of this model with an empty cache of so many blocks.
    pub fn executor(self: Arc<Self>, blocks: Blocks) -> ToyExecutor {
        ToyExecutor {
            cache: TokenCache::new(BLOCK_SIZE, blocks),
            toy: self,
        }
    }

    fn id(&self, word: &str) -> Option<TokenId> {
        self.words
            .iter()
            .position(|known| known == word)
            .map(token_id)
    }

    fn end(&self) -> TokenId {
        token_id(self.words.len() - 1)
    }

    /// Appends the logits after a word: `1 + ln(count)` for its followers, minus infinity for the
    /// rest, so that softmax gives back the counted shares.
    ///
    /// Among equal counts each later follower lies one unit in the last place lower, so that the
    /// first seen wins a tie; the added 1 keeps that unit a normal number when the count is 1.
    fn extend_logits(&self, last: TokenId, logits: &mut Vec<f32>) {
        let start = logits.len();
        logits.resize(start + self.words.len(), f32::NEG_INFINITY);
        let row = &mut logits[start..];
        let counts = &self.follows[last.index()];
        if counts.is_empty() {
            row[self.end().index()] = 1.0;
        }
        for (index, &(next, count)) in counts.iter().enumerate() {
            let earlier_ties = counts[..index].iter().filter(|(_, other)| *other == count);
            row[next.index()] = earlier_ties.fold(log_count(count), |logit, _| logit.next_down());
        }
    }
}

/// Runs a [`Toy`] from block tables.
#[derive(Debug)]
pub struct ToyExecutor {
    toy: Arc<Toy>,
    cache: TokenCache,
}

impl Executor for ToyExecutor {
    fn vocab(&self) -> usize {
        self.toy.words.len()
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.cache.geometry()
    }

    fn max_step_tokens(&self) -> Tokens {
        MAX_STEP_TOKENS
    }

    fn step(&mut self, input: &StepInput<'_>, logits: &mut Vec<f32>) -> Result<(), StepError> {
        input.check(self.vocab(), self.cache.geometry(), MAX_STEP_TOKENS)?;
        self.cache.write(input)?;
        logits.clear();
        for_each_logit_row(input, |segment, position| {
            let last = self.cache.read(segment.blocks, position)?;
            self.toy.extend_logits(last, logits);
            Ok(())
        })
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.cache.copy_block(from, to);
    }
}

fn token_id(index: usize) -> TokenId {
    TokenId::new(u32::try_from(index).expect("a corpus has fewer than 2^32 words"))
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a logit needs no more than a float's precision"
)]
fn log_count(count: u64) -> f32 {
    (1.0 + (count as f64).ln()) as f32
}
