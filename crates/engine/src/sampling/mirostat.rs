//! Mirostat: drops surprising tokens, so that the mean surprise of the answer's tokens nears a target.
//!
//! The bound `mu` belongs to the sequence. It begins at twice the target and, with each token of the
//! surprise `s` in bits, moves by `eta · (target − s)`.
//!
//! Source: Basu et al. 2021, arXiv:2007.14966, with the details of llama.cpp: the first version looks at
//! the 100 most likely tokens, and the surprise is that among the tokens that are left.

use std::f64::consts::LN_2;

use forthwith_core::request::Mirostat;

use super::exact::{exp, ln};
use super::filters::{Candidate, by_likelihood};
use super::list::{List, Shares};

/// So many of the most likely tokens tell how fast probabilities fall.
const ESTIMATED_FROM: usize = 100;

/// The bound before the first token.
pub(crate) fn first_bound(settings: Mirostat) -> f64 {
    2.0 * f64::from(settings.tau)
}

/// Drops surprising tokens. `top` is overwritten.
pub(super) fn shorten(
    list: &mut List<'_>,
    settings: Mirostat,
    (bound, vocab): (f64, usize),
    top: &mut Vec<Candidate>,
) {
    if settings.version == 1 {
        let kept = estimated_length(list, (bound, vocab), top);
        list.keep_most_likely(kept);
    } else {
        drop_above(list, bound);
    }
}

/// The bound for the next token after this one was drawn from the list.
pub(super) fn next_bound(
    settings: Mirostat,
    bound: f64,
    list: &List<'_>,
    (token, shares): (&Candidate, &Shares),
) -> f64 {
    let depth = shares.depth(token, list.temperature());
    let surprise = (depth + shares.least_surprise()) / LN_2;
    let error = surprise - f64::from(settings.tau);
    bound - f64::from(settings.eta) * error
}

/// Keeps tokens of at most so many bits of surprise, the most likely one at least.
fn drop_above(list: &mut List<'_>, bound: f64) {
    let shares = list.weigh();
    let deepest = bound * LN_2 - shares.least_surprise();
    if deepest < 0.0 {
        list.keep_most_likely(1);
        return;
    }
    let temperature = list.temperature();
    list.retain(|candidate| shares.depth(candidate, temperature) <= deepest);
}

/// How many tokens to keep if probabilities fall as in Zipf's law, with the exponent that fits the
/// most likely ones best: `((e · 2^mu) / (1 − V^−e))^(1 / s)` with `e = s − 1`.
fn estimated_length(
    list: &List<'_>,
    (bound, vocab): (f64, usize),
    top: &mut Vec<Candidate>,
) -> usize {
    top.clear();
    top.extend_from_slice(list.candidates());
    if top.len() > ESTIMATED_FROM {
        top.select_nth_unstable_by(ESTIMATED_FROM - 1, by_likelihood);
        top.truncate(ESTIMATED_FROM);
    }
    top.sort_unstable_by(by_likelihood);
    let (mut of_both, mut of_squares) = (0.0, 0.0);
    for (rank, pair) in (1_u32..).zip(top.windows(2)) {
        let fall = ln(f64::from(rank + 1) / f64::from(rank));
        let drop = f64::from(pair[0].logit) - f64::from(pair[1].logit);
        of_both += fall * drop / f64::from(list.temperature());
        of_squares += fall * fall;
    }
    if of_squares <= 0.0 {
        return 1;
    }
    let exponent = of_both / of_squares;
    #[expect(clippy::cast_precision_loss, reason = "ids have 32 bits")]
    let most = ln(vocab as f64);
    // The logarithm of the length; a fall of nothing makes it infinite.
    let length = (bound * LN_2 + ln_of_ratio(exponent - 1.0, most)) / exponent;
    if length >= most {
        return list.len();
    }
    if length > 0.0 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 1 and the vocabulary; whole tokens count"
        )]
        return exp(length) as usize;
    }
    1
}

/// `ln (e / (1 − V^−e))`, which nears `−ln ln V` where `e` nears 0.
fn ln_of_ratio(epsilon: f64, ln_vocab: f64) -> f64 {
    let power = epsilon * ln_vocab;
    // A vocabulary of one has no law to follow.
    if ln_vocab <= 0.0 {
        return 0.0;
    }
    if power.max(-power) < 1e-9 {
        return -ln(ln_vocab);
    }
    if power > 0.0 {
        return ln(epsilon / (1.0 - exp(-power)));
    }
    // The same with both sides of the fraction negative.
    ln(-epsilon / (exp(-power) - 1.0))
}
