use proptest::prelude::*;

use super::*;
use crate::tokenizer::testing;

fn model(texts: &[(&str, f32)]) -> ScoredMerges {
    let metadata = testing::scored_metadata(&["<s>"], texts);
    ScoredMerges::new(&Vocabulary::read(&metadata).unwrap(), None).unwrap()
}

fn pieces(model: &ScoredMerges, text: &str) -> Vec<String> {
    let (symbols, _) = model.merge(text);
    symbols
        .iter()
        .filter(|symbol| symbol.len > 0)
        .map(|symbol| symbol.text(text).to_owned())
        .collect()
}

/// The definition: join the best pair, the leftmost among equals, until there is none.
fn naive(model: &ScoredMerges, text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let score = |left: usize| {
            let joined = format!("{}{}", pieces[left], pieces[left + 1]);
            model.ids.get(&*joined).map(|id| model.scores[id.index()])
        };
        let mut best: Option<(f32, usize)> = None;
        for left in 0..pieces.len().saturating_sub(1) {
            match score(left) {
                Some(score) if best.is_none_or(|(best, _)| score > best) => {
                    best = Some((score, left));
                }
                _ => {}
            }
        }
        let Some((_, left)) = best else {
            return pieces;
        };
        let right = pieces.remove(left + 1);
        pieces[left].push_str(&right);
    }
}

#[test]
fn equal_scores_join_from_the_left() {
    let model = model(&[("a", 0.0), ("aa", -1.0), ("aaa", -1.0), ("aaaa", -1.0)]);
    assert_eq!(pieces(&model, "aaaaa"), ["aaaa", "a"]);
}

#[test]
fn characters_without_a_token_can_still_be_joined() {
    let model = model(&[("xy", -1.0)]);
    assert_eq!(pieces(&model, "xxyy"), ["x", "xy", "y"]);
    let mut ids = Vec::new();
    model.encode("xxyy", &mut ids).unwrap();
    let byte = |byte: u8| TokenId::new(1 + u32::from(byte));
    assert_eq!(ids, [byte(b'x'), TokenId::new(257), byte(b'y')]);
}

#[test]
fn a_character_is_spelled_in_bytes_or_unknown_or_an_error() {
    let mut metadata = testing::scored_metadata(&[], &[]);
    let byte = |byte: u32| TokenId::new(byte);
    let mut ids = Vec::new();
    let vocabulary = Vocabulary::read(&metadata).unwrap();
    ScoredMerges::new(&vocabulary, None)
        .unwrap()
        .encode("\u{e9}", &mut ids)
        .unwrap();
    assert_eq!(ids, [byte(0xc3), byte(0xa9)]);

    metadata = testing::metadata("llama", &[("a".into(), 1, 0.0), ("<unk>".into(), 2, 0.0)]);
    let vocabulary = Vocabulary::read(&metadata).unwrap();
    let unknown = Some(TokenId::new(1));
    ids.clear();
    ScoredMerges::new(&vocabulary, unknown)
        .unwrap()
        .encode("a\u{e9}", &mut ids)
        .unwrap();
    assert_eq!(ids, [TokenId::new(0), TokenId::new(1)]);
    let refused = ScoredMerges::new(&vocabulary, None)
        .unwrap()
        .encode("a\u{e9}", &mut ids);
    assert_eq!(refused, Err(TokenizeError::NoToken('\u{e9}')));
}

#[test]
fn byte_tokens_have_exactly_two_hexadecimal_digits() {
    for (text, byte) in [
        ("<0x0A>", Some(10)),
        ("<0xff>", Some(255)),
        ("<0x-1>", None),
        ("<0x+1>", None),
        ("<0x1>", None),
        ("<0x001>", None),
        ("<0x0G>", None),
        ("<0x0A", None),
        ("", None),
    ] {
        assert_eq!(named_byte(text.as_bytes()), byte, "{text}");
        let metadata = testing::metadata("llama", &[(text.into(), 6, 0.0), ("a".into(), 1, 0.0)]);
        let built = ScoredMerges::new(&Vocabulary::read(&metadata).unwrap(), None);
        assert_eq!(built.is_ok(), byte.is_some() || text.is_empty(), "{text}");
    }
}

#[test]
fn work_grows_with_the_text() {
    let texts: Vec<String> = (1..=16).map(|length| "a".repeat(length)).collect();
    let texts: Vec<_> = texts.iter().map(|text| (text.as_str(), -1.0)).collect();
    for model in [
        model(&texts),
        model(&[("a", 0.0), ("ab", -1.0), ("ba", -2.0)]),
    ] {
        for text in ["a", "ab", "ba", "\u{e9}"] {
            let work = |count: usize| model.merge(&text.repeat(count)).1;
            assert!(work(20_000) <= 3 * 20_000 * text.len(), "{text}");
            assert!(work(20_000) <= 2 * work(10_000) + 100, "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn equals_the_definition(
        words in prop::collection::btree_map("[abc\u{e9}]{1,4}", 0u8..4, 0..20),
        text in "[abc\u{e9}]{0,24}",
    ) {
        let scores: Vec<_> = words.iter().map(|(word, &score)| (word.as_str(), -f32::from(score))).collect();
        let model = model(&scores);
        prop_assert_eq!(pieces(&model, &text), naive(&model, &text));
    }
}
