//! Logits as a request wants them changed: first a bias for some tokens, then all others forbidden
//! where only some are allowed, then those that end the answer while it is too short, those that would
//! complete a forbidden run, and those that would repeat one.

use forthwith_core::request::{LogitEdits, StopRules};
use forthwith_core::units::TokenId;

/// Changes the logits of the token after `tokens`, the first `prompt` of them the prompt.
///
/// A forbidden token gets minus infinity.
pub(super) fn apply(
    logits: &mut [f32],
    (edits, stop): (&LogitEdits, &StopRules),
    (tokens, prompt): (&[TokenId], usize),
) {
    let answer = &tokens[prompt..];
    for &(id, bias) in &edits.bias {
        logits[id.index()] += bias;
    }
    if let Some(allowed) = &edits.allowed {
        let kept: Vec<f32> = allowed.iter().map(|id| logits[id.index()]).collect();
        logits.fill(f32::NEG_INFINITY);
        for (id, logit) in allowed.iter().zip(kept) {
            logits[id.index()] = logit;
        }
    }
    let mut forbid = |id: TokenId| logits[id.index()] = f32::NEG_INFINITY;
    if edits.forbids_end(answer.len()) {
        stop.ending().for_each(&mut forbid);
    }
    for run in &edits.forbidden {
        if let Some((&last, before)) = run.split_last()
            && answer.ends_with(before)
        {
            forbid(last);
        }
    }
    let size = edits.no_repeat_ngram_size as usize;
    if size > 0 && tokens.len() >= size {
        let end = &tokens[tokens.len() - (size - 1)..];
        for run in tokens.windows(size) {
            if run.starts_with(end) {
                forbid(run[size - 1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_biased_then_chosen_from_then_kept_from_ending() {
        let id = TokenId::new;
        let stop = StopRules {
            end_tokens: vec![id(0)],
            stop_token_ids: vec![id(3)],
            ignore_end: false,
        };
        let edits = LogitEdits {
            bias: vec![(id(1), 2.5), (id(4), -1.0)],
            allowed: Some(vec![id(0), id(1), id(3), id(1)]),
            min_tokens: 2,
            ..LogitEdits::default()
        };
        let after = |stop: &StopRules, generated: usize| {
            let mut logits = [1.0, 2.0, 3.0, 4.0, 5.0];
            let tokens = [id(2); 8];
            apply(&mut logits, (&edits, stop), (&tokens[..3 + generated], 3));
            logits
        };
        let never = f32::NEG_INFINITY;
        assert_eq!(after(&stop, 1), [never, 4.5, never, never, never]);
        assert_eq!(after(&stop, 2), [1.0, 4.5, never, 4.0, never]);
        let on = StopRules {
            ignore_end: true,
            ..stop
        };
        assert_eq!(after(&on, 0), [1.0, 4.5, never, never, never]);
    }

    /// The tokens of 0 to 5 that may come next.
    fn possible(edits: &LogitEdits, tokens: &[u32], prompt: usize) -> Vec<usize> {
        let tokens: Vec<TokenId> = tokens.iter().copied().map(TokenId::new).collect();
        let mut logits = [0.0; 6];
        apply(
            &mut logits,
            (edits, &StopRules::default()),
            (&tokens, prompt),
        );
        (0..6).filter(|&id| logits[id] == 0.0).collect()
    }

    #[test]
    fn forbidden_runs_are_not_completed_and_count_from_the_answer_on() {
        let run = |ids: &[u32]| ids.iter().copied().map(TokenId::new).collect();
        let edits = LogitEdits {
            forbidden: vec![run(&[5]), run(&[1, 2]), run(&[1, 1, 3])],
            ..LogitEdits::default()
        };
        assert_eq!(possible(&edits, &[0], 1), [0, 1, 2, 3, 4]);
        assert_eq!(possible(&edits, &[1, 1], 2), [0, 1, 2, 3, 4]);
        assert_eq!(possible(&edits, &[0, 1], 1), [0, 1, 3, 4]);
        assert_eq!(possible(&edits, &[0, 1, 1], 1), [0, 1, 4]);
        assert_eq!(possible(&edits, &[1, 1, 0], 0), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn runs_of_a_size_occur_once_in_prompt_and_answer() {
        let of = |size| LogitEdits {
            no_repeat_ngram_size: size,
            ..LogitEdits::default()
        };
        let tokens = [1, 2, 3, 1, 2];
        assert_eq!(possible(&of(1), &tokens, 2), [0, 4, 5]);
        assert_eq!(possible(&of(2), &tokens, 2), [0, 1, 2, 4, 5]);
        assert_eq!(possible(&of(3), &tokens, 2), [0, 1, 2, 4, 5]);
        assert_eq!(possible(&of(3), &[1, 2, 3, 4, 2], 2), [0, 1, 2, 3, 4, 5]);
        assert_eq!(possible(&of(6), &tokens, 2), [0, 1, 2, 3, 4, 5]);
        assert_eq!(possible(&of(0), &tokens, 2), [0, 1, 2, 3, 4, 5]);
        assert_eq!(possible(&of(u32::MAX), &tokens, 2), [0, 1, 2, 3, 4, 5]);
    }
}
