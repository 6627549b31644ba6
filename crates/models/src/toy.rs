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
        input.check(self)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use forthwith_core::executor::Segment;

    /// Decodes greedily, one token a step, through a table of scattered blocks.
    fn continue_greedily(prompt: &str, max_tokens: usize) -> String {
        let toy = Arc::new(Toy::embedded());
        let mut executor = Arc::clone(&toy).executor(Blocks::new(4));
        let table = [BlockId::new(2), BlockId::new(0)];
        let word_id = |word| toy.id(word).unwrap_or_else(|| toy.unknown());
        let mut text: Vec<TokenId> = prompt.split(' ').map(word_id).collect();
        let mut fed = 0;
        let mut logits = Vec::new();
        for _ in 0..max_tokens {
            let tokens = &text[fed..];
            let segment = Segment {
                tokens: tokens.len(),
                position: fed,
                blocks: &table,
                second_from: None,
            };
            let input = StepInput {
                tokens,
                segments: &[segment],
                output_rows: &[tokens.len() - 1],
            };
            executor.step(&input, &mut logits).unwrap();
            fed = text.len();
            let best = (0..logits.len())
                .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
                .unwrap();
            text.push(token_id(best));
            if toy.end_tokens().contains(&token_id(best)) {
                break;
            }
        }
        let shown = text.iter().filter(|id| !toy.hidden().contains(id));
        let words: Vec<&str> = shown.map(|id| toy.words()[id.index()].as_str()).collect();
        words.join(" ")
    }

    #[test]
    fn counts_what_follows_in_order_of_first_appearance() {
        let toy = Toy::embedded();
        let the = [("gpu", 2), ("weights", 1), ("answer", 2), ("server", 1)];
        assert_eq!(
            toy.follows("the"),
            the.map(|(word, count)| (word.to_owned(), count))
        );
        assert_eq!(toy.follows("answer"), [(".".to_owned(), 2)]);
        assert_eq!(toy.follows("."), [("the".to_owned(), 2)]);
        assert!(toy.follows("cat").is_empty());
        assert!(toy.follows(UNKNOWN).is_empty());
    }

    #[test]
    fn words_are_numbered_by_first_appearance() {
        let toy = Toy::embedded();
        let words = [
            "the", "gpu", "reads", "weights", ".", "writes", "answer", "server", "streams",
            UNKNOWN, END,
        ];
        assert_eq!(toy.words(), words);
        assert_eq!(toy.unknown(), TokenId::new(9));
        assert_eq!(toy.end_tokens(), [TokenId::new(4), TokenId::new(10)]);
        assert_eq!(toy.hidden(), [TokenId::new(9), TokenId::new(10)]);
        let odd = Toy::train("a <end> b <unk> a");
        assert_eq!(odd.words(), ["a", "b", UNKNOWN, END]);
        assert_eq!(Toy::train("").words(), [UNKNOWN, END]);
    }

    #[test]
    fn greedy_continuations_are_those_of_the_text() {
        let check = |prompt, max_tokens, expected| {
            assert_eq!(continue_greedily(prompt, max_tokens), expected);
        };
        check("the server", 6, "the server streams the gpu reads the gpu");
        check("gpu", 6, "gpu reads the gpu reads the gpu");
        check("the answer", 6, "the answer .");
        check("the cat", 6, "the");
    }

    #[test]
    fn logits_are_shares_and_the_first_seen_wins_ties() {
        let toy = Toy::embedded();
        let mut logits = Vec::new();
        toy.extend_logits(toy.id("the").unwrap(), &mut logits);
        let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
        let share = |word: &str| logits[toy.id(word).unwrap().index()].exp() / total;
        for (word, expected) in [
            ("gpu", 2.0),
            ("answer", 2.0),
            ("weights", 1.0),
            ("reads", 0.0),
        ] {
            assert!((share(word) - expected / 6.0).abs() < 1e-6, "{word}");
        }
        let logit = |word: &str| logits[toy.id(word).unwrap().index()];
        assert_eq!(logit("answer").next_up().to_bits(), logit("gpu").to_bits());
        assert_eq!(
            logit("server").next_up().to_bits(),
            logit("weights").to_bits()
        );
    }

    #[test]
    fn a_wrong_step_is_refused() {
        let mut executor = Arc::new(Toy::embedded()).executor(Blocks::new(1));
        let mut step = |token: u32, blocks: &[BlockId]| {
            let segment = Segment {
                tokens: 1,
                position: 0,
                blocks,
                second_from: None,
            };
            let tokens = [TokenId::new(token)];
            let input = StepInput {
                tokens: &tokens,
                segments: &[segment],
                output_rows: &[0],
            };
            executor.step(&input, &mut Vec::new())
        };
        assert!(step(0, &[BlockId::new(0)]).is_ok());
        assert!(step(11, &[BlockId::new(0)]).is_err());
        assert!(step(0, &[BlockId::new(1)]).is_err());
        assert!(step(0, &[]).is_err());
    }
}
