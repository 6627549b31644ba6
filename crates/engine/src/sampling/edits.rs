//! Logits as a request wants them changed: first a bias for some tokens, then all others forbidden
//! where only some are allowed, then those that end the answer while it is too short.

use forthwith_core::request::{LogitEdits, StopRules};

/// Changes the logits of the token after `generated` tokens of the answer.
///
/// A forbidden token gets minus infinity.
pub(super) fn apply(logits: &mut [f32], edits: &LogitEdits, stop: &StopRules, generated: usize) {
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
    if edits.forbids_end(generated) {
        for id in stop.ending() {
            logits[id.index()] = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forthwith_core::units::TokenId;

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
        };
        let after = |stop: &StopRules, generated| {
            let mut logits = [1.0, 2.0, 3.0, 4.0, 5.0];
            apply(&mut logits, &edits, stop, generated);
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
}
