//! The counting model's report: its counts are all there is.

use forthwith_models::toy::Toy;
use serde::Serialize;
use std::io::{self, Write};

/// What followed each word in training.
#[derive(Debug, Serialize)]
pub(super) struct Counts {
    architecture: &'static str,
    words: Vec<Word>,
    /// Words after which an answer ends, whatever followed them in training.
    end_words: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Word {
    word: String,
    follows: Vec<Follower>,
}

#[derive(Debug, Serialize)]
struct Follower {
    word: String,
    count: u64,
}

impl Counts {
    pub(super) fn embedded() -> Self {
        let toy = Toy::embedded();
        let words = toy.words().iter().map(|word| Word {
            word: word.clone(),
            follows: toy
                .follows(word)
                .into_iter()
                .map(|(word, count)| Follower { word, count })
                .collect(),
        });
        Self {
            architecture: "toy (counts which word follows which)",
            words: words.collect(),
            end_words: toy
                .end_tokens()
                .into_iter()
                .filter(|end| !toy.hidden().contains(end))
                .map(|end| toy.words()[end.index()].clone())
                .collect(),
        }
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "architecture   {}", self.architecture)?;
        writeln!(out, "vocabulary     {} words", self.words.len())?;
        for word in self.words.iter().filter(|word| !word.follows.is_empty()) {
            let follows: Vec<String> = word
                .follows
                .iter()
                .map(|follower| format!("{} {}", follower.word, follower.count))
                .collect();
            writeln!(out, "{} → {}", word.word, follows.join(", "))?;
        }
        let ends = self.end_words.join(" ");
        writeln!(
            out,
            "an answer ends with {ends} and after a word that is not above"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_counts_in_order_of_first_appearance() {
        let mut out = Vec::new();
        Counts::embedded().write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("\nthe → gpu 2, weights 1, answer 2, server 1\n"),
            "{text}"
        );
        assert!(text.contains("\nan answer ends with . and after"), "{text}");
        assert!(!text.contains("<unk>"), "{text}");
    }
}
