//! How byte-level vocabularies cut text into words before merging, by the names that GGUF files use.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: of a run of white space before a word, all but
//! the last character. Looking ahead needs a backtracking engine; here the run is matched whole and
//! its last character given back, so that a linear-time engine does, whatever the text.

use regex::Regex;

use super::error::TokenizerError;

/// A known way to cut text.
struct Known {
    names: &'static [&'static str],
    steps: &'static [Step],
    whole_words: bool,
    adds_bos: bool,
}

/// One pass over the pieces of the pass before: matches and what lies between become pieces.
#[derive(Clone, Copy)]
enum Step {
    /// Cut out what matches.
    Isolate(&'static str),
    /// Cut into words; the last character of white space goes to the word that follows.
    Words(&'static str),
    /// The same, but line ends belong to what precedes them.
    WordsAndLines(&'static str),
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

const KNOWN: [Known; 6] = [
    Known {
        names: &["default"],
        steps: &[
            Step::Isolate(r"[\p{P}\$\+<=>\^~\|]+"),
            Step::Words(GPT2),
            Step::Isolate(r"\p{N}+"),
            Step::Isolate(r"[0-9][0-9][0-9]"),
        ],
        whole_words: false,
        adds_bos: false,
    },
    Known {
        names: &[
            "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "gigachat", "exaone4",
        ],
        steps: &[Step::Words(GPT2)],
        whole_words: false,
        adds_bos: false,
    },
    Known {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        steps: &[Step::Isolate(r"\p{N}"), Step::Words(GPT2)],
        whole_words: false,
        adds_bos: false,
    },
    Known {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "lfm2",
        ],
        steps: &[Step::WordsAndLines(LLAMA3)],
        whole_words: true,
        adds_bos: true,
    },
    Known {
        names: &["dbrx", "smaug-bpe"],
        steps: &[Step::WordsAndLines(LLAMA3)],
        whole_words: false,
        adds_bos: false,
    },
    Known {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "megrez",
            "hunyuan",
        ],
        steps: &[Step::WordsAndLines(QWEN2)],
        whole_words: false,
        adds_bos: false,
    },
];

/// Cuts text into the pieces within which tokens are merged.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    passes: Vec<Pass>,
    /// A piece that is a token as a whole becomes that token, whatever the merges say.
    pub(super) whole_words: bool,
    /// What `add_bos_token` is where a file does not say.
    pub(super) adds_bos: bool,
}

#[derive(Debug)]
struct Pass {
    pattern: Regex,
    gives_back_space: bool,
    keeps_line_ends: bool,
}

impl PreTokenizer {
    pub(super) fn named(pre: &str) -> Result<Self, TokenizerError> {
        let known = KNOWN
            .iter()
            .find(|known| known.names.contains(&pre))
            .ok_or_else(|| TokenizerError::UnknownPreTokenizer {
                pre: pre.chars().take(64).collect(),
                known: KNOWN.map(|known| known.names.join(", ")).join(", "),
            })?;
        Ok(Self {
            passes: known.steps.iter().map(|&step| Pass::new(step)).collect(),
            whole_words: known.whole_words,
            adds_bos: known.adds_bos,
        })
    }

    /// The pieces of a text, in order and without gaps.
    pub(super) fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for pass in &self.passes {
            let mut finer = Vec::with_capacity(pieces.len());
            for piece in pieces {
                pass.split(piece, &mut finer);
            }
            pieces = finer;
        }
        pieces
    }
}

impl Pass {
    fn new(step: Step) -> Self {
        let (pattern, gives_back_space, keeps_line_ends) = match step {
            Step::Isolate(pattern) => (pattern, false, false),
            Step::Words(pattern) => (pattern, true, false),
            Step::WordsAndLines(pattern) => (pattern, true, true),
        };
        Self {
            pattern: Regex::new(pattern).expect("the patterns above are valid"),
            gives_back_space,
            keeps_line_ends,
        }
    }

    fn split<'t>(&self, text: &'t str, pieces: &mut Vec<&'t str>) {
        let mut done = 0;
        while let Some(found) = self.pattern.find_at(text, done) {
            let end = self.end(text, found.start(), found.end());
            if found.start() > done {
                pieces.push(&text[done..found.start()]);
            }
            pieces.push(&text[found.start()..end]);
            done = end;
        }
        if done < text.len() {
            pieces.push(&text[done..]);
        }
    }

    /// Where a match ends, once its last space went to the word behind it.
    fn end(&self, text: &str, start: usize, end: usize) -> usize {
        if !self.gives_back_space || end == text.len() {
            return end;
        }
        let last = text[start..end].chars().next_back().unwrap_or('x');
        let kept = end - last.len_utf8();
        // Only the patterns' last alternative can end in white space that is not a kept line end.
        let line_end = self.keeps_line_ends && matches!(last, '\r' | '\n');
        if last.is_whitespace() && !line_end && kept > start {
            kept
        } else {
            end
        }
    }
}

#[cfg(test)]
mod tests;
