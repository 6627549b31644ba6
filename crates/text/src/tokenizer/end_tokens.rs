//! Which tokens end an answer: what the file names, and control tokens known by their text.
//!
//! Files often name one end token and leave out the one that ends a turn of a chat. The lists are
//! those that llama.cpp knows, so that both stop at the same place.

use std::collections::BTreeSet;

use forthwith_core::metadata::Metadata;
use forthwith_core::units::TokenId;

use super::error::TokenizerError;
use super::vocabulary::{Class, Vocabulary};

/// Such a token ends an answer and steers the model, whatever class the file gives it.
const END_TEXTS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Control tokens that begin another file or pad one: the answer is over.
const FILE_TEXTS: [&str; 11] = [
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

const KEYS: [&str; 6] = [
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
    "tokenizer.ggml.eos_token_id",
];

/// Finds the end tokens, in id order, and makes those known by their text control tokens.
pub(super) fn find(
    vocabulary: &mut Vocabulary<'_>,
    metadata: &Metadata,
) -> Result<Vec<TokenId>, TokenizerError> {
    let mut ends = BTreeSet::new();
    for key in KEYS {
        ends.extend(vocabulary.special(metadata, key)?);
    }
    let mut harmony = [None; 3];
    let mut by_text = Vec::new();
    for (id, text, class) in vocabulary.entries() {
        if END_TEXTS.contains(&text) {
            by_text.push(id);
        } else if class == Class::Control && FILE_TEXTS.contains(&text) {
            ends.insert(id);
        }
        match text {
            "<|end|>" => harmony[0] = Some(id),
            "<|call|>" | "<|calls|>" => harmony[1] = Some(id),
            "<|return|>" | "<|flush|>" => harmony[2] = Some(id),
            _ => {}
        }
    }
    for id in by_text {
        vocabulary.classes[id.index()] = Class::Control;
        ends.insert(id);
    }
    // In a vocabulary with all three, `<|end|>` only ends one part of an answer.
    if let [Some(part_end), Some(_), Some(_)] = harmony {
        ends.remove(&part_end);
    }
    Ok(ends.into_iter().collect())
}
