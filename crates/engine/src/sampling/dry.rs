//! A penalty for going on with a repetition, the longer it is the more: DRY ("don't repeat yourself").
//!
//! Where the end of the text, `n` tokens of it, occurred before, the token that came next then is
//! about to repeat. Its logit falls by `multiplier · base^(n − allowed_length)`, with the largest such
//! `n`. No repetition is followed over a breaker.
//!
//! Source: the sampler of this name in text-generation-webui (pull request 5677) and llama.cpp
//! (pull request 9702), whose limits are kept: the power stays below what a single-precision number
//! holds, and a token that is a breaker by itself is never penalized.

use forthwith_core::request::{Breakers, Dry};
use forthwith_core::units::TokenId;

use super::exact::{ln, whole_power};
use super::penalties::{Logits, last};

/// No penalty is larger, so that logits stay finite.
const LARGEST: f64 = 1e38;

/// The logarithm of the largest power that is taken.
const LARGEST_EXPONENT: f64 = 88.722_839_1;

/// Finds repetitions; keeps its buffers.
#[derive(Default)]
pub(super) struct Repetitions {
    /// Of each place, counted from the end: how many tokens up to there equal the last ones.
    lengths: Vec<u32>,
    /// Tokens that would go on with a repetition, and its length.
    next: Vec<(TokenId, u32)>,
}

impl Repetitions {
    /// Lowers the logits of tokens that would go on with a repetition.
    ///
    /// # Cost   linear in the tokens, and a sort of those that are penalized
    pub(super) fn penalize<L: Logits + ?Sized>(
        &mut self,
        logits: &mut L,
        dry: &Dry,
        tokens: &[TokenId],
    ) {
        self.find(dry, last(tokens, dry.last));
        for of_token in self.next.chunk_by(|a, b| a.0 == b.0) {
            // The longest one stands last.
            let (token, length) = of_token[of_token.len() - 1];
            let breaks = dry.breakers.tails(token).any(<[TokenId]>::is_empty);
            if let Some(logit) = logits.of(token).filter(|_| !breaks) {
                *logit -= penalty(dry, length);
            }
        }
    }

    /// Lists what would go on with a repetition that is long enough, in order of token and length.
    fn find(&mut self, dry: &Dry, tokens: &[TokenId]) {
        self.next.clear();
        let least = dry.allowed_length as usize;
        if tokens.len() <= least {
            return;
        }
        let longest = since_breaker(tokens, &dry.breakers);
        if longest < least {
            return;
        }
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        self.measure(tokens);
        for (back, &length) in self.lengths.iter().enumerate().skip(1) {
            let length = length.min(longest);
            if length >= dry.allowed_length {
                self.next.push((tokens[tokens.len() - back], length));
            }
        }
        self.next.sort_unstable();
    }

    /// Measures, for each place, how far the text before it equals the text before the end: the
    /// Z-algorithm (Gusfield 1997, *Algorithms on strings, trees and sequences*), from behind.
    fn measure(&mut self, tokens: &[TokenId]) {
        let count = tokens.len();
        let from_end = |place: usize| tokens[count - 1 - place];
        self.lengths.clear();
        self.lengths.resize(count, 0);
        // The known repetition that reaches farthest: from `start` to before `end`.
        let (mut start, mut end) = (0, 0);
        for place in 1..count {
            let mut length = 0;
            if place < end {
                length = (self.lengths[place - start] as usize).min(end - place);
            }
            if place + length >= end {
                while place + length < count && from_end(length) == from_end(place + length) {
                    length += 1;
                }
                (start, end) = (place, place + length);
            }
            self.lengths[place] = u32::try_from(length).unwrap_or(u32::MAX);
        }
    }
}

/// How many tokens come after the last breaker; all, if there is none.
fn since_breaker(tokens: &[TokenId], breakers: &Breakers) -> usize {
    for (index, &token) in tokens.iter().enumerate().rev() {
        let after = &tokens[index + 1..];
        let tails = breakers.tails(token).filter(|tail| after.starts_with(tail));
        if let Some(longest) = tails.map(<[TokenId]>::len).max() {
            return after.len() - longest;
        }
    }
    tokens.len()
}

fn penalty(dry: &Dry, length: u32) -> f32 {
    let base = f64::from(dry.base);
    let mut exponent = length - dry.allowed_length;
    if base > 1.000_001 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 2^27"
        )]
        let largest = (LARGEST_EXPONENT / ln(base)) as u32;
        if largest > 0 {
            exponent = exponent.min(largest);
        }
    }
    let penalty = f64::from(dry.multiplier) * whole_power(base, exponent);
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest")]
    let penalty = penalty.min(LARGEST) as f32;
    penalty
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forthwith_core::request::Filters;
    use proptest::prelude::*;

    use super::*;

    fn ids(tokens: &[u32]) -> Vec<TokenId> {
        tokens.iter().copied().map(TokenId::new).collect()
    }

    fn dry(breakers: &[&[u32]]) -> Dry {
        let runs = breakers.iter().map(|run| {
            let run = ids(run);
            (run[0], run[1..].to_vec())
        });
        Dry {
            multiplier: 1.0,
            base: 2.0,
            breakers: Arc::new(Breakers::new(runs.collect())),
            ..Filters::default().dry
        }
    }

    /// What is subtracted from each of eight tokens.
    fn penalties(dry: &Dry, tokens: &[u32]) -> Vec<f32> {
        let mut logits = [0.0_f32; 8];
        Repetitions::default().penalize(&mut logits[..], dry, &ids(tokens));
        logits.iter().map(|logit| 0.0 - logit).collect()
    }

    #[test]
    fn worked_by_hand() {
        let plain = dry(&[]);
        let none = [0.0; 8];
        // 1 2 came before 3, and is at the end: 2 tokens, so the base to the power of 0.
        let text = [1, 2, 3, 1, 2];
        assert_eq!(penalties(&plain, &text)[..5], [0.0, 0.0, 0.0, 1.0, 0.0]);
        // 0 1 2 came before 3: one more.
        assert_eq!(penalties(&plain, &[0, 1, 2, 3, 0, 1, 2])[3], 2.0);
        // 1 2 came before 3 and before 4, 0 1 2 before 4 only.
        let text = [1, 2, 3, 0, 1, 2, 4, 0, 1, 2];
        assert_eq!(
            penalties(&plain, &text)[..6],
            [0.0, 0.0, 0.0, 1.0, 2.0, 0.0]
        );
        // Repetitions overlap: 5 5 5 stands at the end and one before it.
        assert_eq!(penalties(&plain, &[5, 5, 5, 5])[5], 2.0);
        // A single token is free, and so is what the window does not show.
        assert_eq!(penalties(&plain, &[2, 3, 2]), none);
        let short = Dry {
            last: Some(4),
            ..plain.clone()
        };
        assert_eq!(penalties(&short, &[1, 2, 3, 1, 2]), none);
        let shorter = Dry {
            allowed_length: 1,
            ..plain.clone()
        };
        assert_eq!(penalties(&shorter, &[2, 3, 2])[3], 1.0);
        let never = Dry {
            last: Some(0),
            ..plain
        };
        assert_eq!(penalties(&never, &[5; 9]), none);
    }

    #[test]
    fn breakers_end_what_is_followed() {
        let text = [0, 1, 2, 3, 0, 1, 2];
        assert_eq!(penalties(&dry(&[&[7]]), &text)[3], 2.0);
        // Only 1 2 count after a 0, and nothing after a 1 2.
        assert_eq!(penalties(&dry(&[&[0]]), &text)[3], 1.0);
        assert_eq!(penalties(&dry(&[&[1, 2]]), &text), [0.0; 8]);
        // 0 1 does not stand at the end, 0 5 nowhere.
        assert_eq!(penalties(&dry(&[&[0, 1]]), &text), [0.0; 8]);
        assert_eq!(penalties(&dry(&[&[0, 5]]), &text)[3], 2.0);
        // A token that is a breaker by itself is left alone, one that begins a breaker is not.
        assert_eq!(penalties(&dry(&[&[3]]), &text), [0.0; 8]);
        assert_eq!(penalties(&dry(&[&[3, 6]]), &text)[3], 2.0);
    }

    #[test]
    fn powers_stay_finite() {
        let mut steep = dry(&[]);
        steep.base = 100.0;
        steep.multiplier = 100.0;
        let penalty = penalties(&steep, &[5; 400])[5];
        assert!(penalty.is_finite() && penalty > 1e37);
        steep.base = 1.0;
        assert_eq!(penalties(&steep, &[5; 400])[5], 100.0);
    }

    proptest! {
        #[test]
        fn equals_the_definition(
            tokens in prop::collection::vec(0_u32..3, 0..40),
            allowed_length in 0_u32..5,
            last in prop::option::of(0_u32..50),
            breaker in prop::collection::vec(0_u32..4, 1..3),
        ) {
            let dry = Dry { allowed_length, last, ..dry(&[&breaker]) };
            let from = tokens.len() - tokens.len().min(last.map_or(usize::MAX, |last| last as usize));
            let text = &tokens[from..];
            // The place after the last whole breaker.
            let after = (0..text.len()).rev().find(|&at| text[at..].starts_with(&breaker));
            let longest = after.map_or(text.len(), |at| text.len() - at - breaker.len());
            let mut expected = [0.0_f32; 8];
            for end in 1..text.len() {
                let alike = |length: &usize| text[..end].ends_with(&text[text.len() - length..]);
                let length = (0..=longest.min(end)).rev().find(alike).unwrap();
                let next = text[end] as usize;
                let counts = length >= allowed_length as usize && longest >= allowed_length as usize;
                if counts && text.len() > allowed_length as usize && breaker != [text[end]] {
                    let exponent = i32::try_from(length).unwrap() - i32::try_from(allowed_length).unwrap();
                    expected[next] = expected[next].max(2.0_f32.powi(exponent));
                }
            }
            prop_assert_eq!(penalties(&dry, &tokens), expected);
        }
    }
}
