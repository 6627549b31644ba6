use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

#[track_caller]
fn check(pre: &str, text: &str, expected: &[&str]) {
    assert_eq!(PreTokenizer::named(pre).unwrap().split(text), expected);
}

#[test]
fn words_take_the_last_space_before_them() {
    check(
        "gpt-2",
        "I'm  a\t\n b1 23!? ",
        &["I", "'m", " ", " a", "\t\n", " b", "1", " 23", "!?", " "],
    );
    check("gpt-2", "  ", &["  "]);
    check("gpt-2", "", &[]);
    check("smollm", "a 123", &["a", " ", "1", "2", "3"]);
    check(
        "llama-bpe",
        "I'M 12345\r\n \n x  y",
        &["I", "'M", " ", "123", "45", "\r\n \n", " x", " ", " y"],
    );
    check("qwen2", "(ok)!\n\n12", &["(ok", ")!\n\n", "1", "2"]);
    check("default", "a, 1234", &["a", ",", " ", "123", "4"]);
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let error = PreTokenizer::named("nonesuch").unwrap_err().to_string();
    assert!(error.contains("`nonesuch`") && error.contains("smollm") && error.contains("qwen2"));
}

/// The published patterns, with the look-ahead that ours do without.
const PUBLISHED: [(&str, &str); 3] = [
    (
        "gpt-2",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    ),
    (
        "llama-bpe",
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        "qwen2",
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// Each published pattern with our way to cut.
static PAIRS: LazyLock<Vec<(fancy_regex::Regex, PreTokenizer)>> = LazyLock::new(|| {
    PUBLISHED
        .iter()
        .map(|(pre, pattern)| {
            let pattern = fancy_regex::Regex::new(pattern).unwrap();
            (pattern, PreTokenizer::named(pre).unwrap())
        })
        .collect()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn equals_the_published_patterns(text in "([ \t\r\n'a-bS1-2!\u{e9}\u{4e2d}\u{a0}\u{85}\u{300}\u{b2}\u{378}]|\\PC){1,24}") {
        for (pattern, pre_tokenizer) in &*PAIRS {
            let expected: Vec<&str> = pattern
                .find_iter(&text)
                .map(|found| found.unwrap().as_str())
                .collect();
            let found = pre_tokenizer.split(&text);
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(found.concat(), text.clone());
        }
    }
}
