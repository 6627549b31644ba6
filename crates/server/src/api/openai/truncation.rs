//! Prompts that are cut at their beginning because the call asks for it, and what is said of it.

use forthwith_core::units::TokenId;

use super::wire::Integer;
use crate::error::ApiError;

/// How much of a prompt is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// So many of its last tokens.
    Last(usize),
    /// As many as the context holds beside the answer.
    Fitting,
}

/// What is left of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) tokens: Vec<TokenId>,
    /// What its reader should know.
    pub(crate) warning: Option<String>,
}

impl Truncation {
    pub(crate) fn read(written: Option<Integer>, context: usize) -> Result<Option<Self>, ApiError> {
        let Some(Integer(count)) = written else {
            return Ok(None);
        };
        if count == -1 {
            return Ok(Some(Self::Fitting));
        }
        let kept = usize::try_from(count).ok();
        let kept = kept.filter(|kept| (1..context).contains(kept));
        let refused = || {
            let most = context - 1;
            let message = format!(
                "truncate_prompt_tokens is {count}, allowed is 1 to {most}, or -1 for what the context \
                 holds beside the answer"
            );
            ApiError::field("truncate_prompt_tokens", message)
        };
        kept.map(Self::Last).ok_or_else(refused).map(Some)
    }

    /// How many tokens are kept at most, of a context and beside an answer of this length.
    fn most(self, context: usize, max_tokens: Option<u64>) -> usize {
        match self {
            Self::Last(count) => count,
            Self::Fitting => {
                let answer = usize::try_from(max_tokens.unwrap_or(1)).unwrap_or(usize::MAX);
                // An answer that fills the context is refused by its own name.
                match context.saturating_sub(answer.max(1)) {
                    0 => usize::MAX,
                    room => room,
                }
            }
        }
    }
}

impl Kept {
    pub(crate) fn of(
        mut tokens: Vec<TokenId>,
        truncation: Option<Truncation>,
        (context, max_tokens): (usize, Option<u64>),
    ) -> Self {
        let length = tokens.len();
        let most = truncation.map_or(length, |truncation| truncation.most(context, max_tokens));
        if most >= length {
            let warning = None;
            return Self { tokens, warning };
        }
        tokens.drain(..length - most);
        let warning = Some(format!(
            "the prompt of {length} tokens was truncated to its last {most}, as \
             truncate_prompt_tokens asks"
        ));
        Self { tokens, warning }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(truncation: Option<Truncation>, max_tokens: Option<u64>) -> (Vec<u32>, bool) {
        let prompt = (0..10).map(TokenId::new).collect();
        let kept = Kept::of(prompt, truncation, (12, max_tokens));
        let ids = kept.tokens.iter().map(|id| id.get()).collect();
        (ids, kept.warning.is_some())
    }

    #[test]
    fn the_last_tokens_are_kept_and_a_cut_is_said() {
        let all: Vec<u32> = (0..10).collect();
        assert_eq!(kept(None, None), (all.clone(), false));
        assert_eq!(kept(Some(Truncation::Last(10)), None), (all.clone(), false));
        assert_eq!(kept(Some(Truncation::Last(2)), None), (vec![8, 9], true));
        let fitting = Some(Truncation::Fitting);
        assert_eq!(kept(fitting, None), (all.clone(), false));
        assert_eq!(kept(fitting, Some(0)), (all.clone(), false));
        assert_eq!(kept(fitting, Some(9)), (vec![7, 8, 9], true));
        assert_eq!(kept(fitting, Some(12)), (all, false));
    }
}
