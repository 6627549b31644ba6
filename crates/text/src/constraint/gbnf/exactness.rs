//! Checks that llguidance accepts with a converted grammar exactly what a naive reader accepts.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};
use llguidance::{Matcher, ParserFactory};
use proptest::prelude::*;

use super::{convert, lexemes};

/// The token that ends a text. The tokens before it are the bytes.
const END: TokenId = 256;
/// The first of the tokens for texts of two and three characters.
const LONG: usize = 258;

/// The texts of the long tokens.
fn long_texts() -> impl Iterator<Item = String> {
    let characters = || ["a", "b", "c", ""].into_iter();
    let pairs = || {
        ["a", "b", "c"]
            .into_iter()
            .flat_map(|a| ["a", "b", "c"].map(|b| [a, b]))
    };
    characters().flat_map(move |first| pairs().map(move |[b, c]| format!("{first}{b}{c}")))
}

struct Bytes(TokTrie);

impl TokenizerEnv for Bytes {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    /// Else llguidance would allow one token only where one text must come.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// A matcher for a grammar of llguidance.
pub(super) fn matcher(lark: &str) -> Result<Matcher, String> {
    let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    words.push(b"\xFF<eos>".to_vec());
    words.push(b"\xFF<think>".to_vec());
    assert_eq!(words.len(), LONG);
    words.extend(long_texts().map(String::into_bytes));
    let count = u32::try_from(words.len()).unwrap();
    let trie = TokTrie::from(&TokRxInfo::new(count, END), &words);
    let env: TokEnv = Arc::new(Bytes(trie));
    let slices = SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).unwrap();
    factory.quiet();
    let grammar = TopLevelGrammar::from_lark(lark.to_owned());
    let parser = factory
        .create_parser(grammar)
        .map_err(|error| error.to_string())?;
    Ok(Matcher::new(Ok(parser)))
}

/// Whether a matcher accepts all of a text.
pub(super) fn accepts(matcher: &Matcher, text: &str) -> Result<bool, String> {
    let mut matcher = matcher.deep_clone();
    let tokens: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
    let taken = matcher
        .try_consume_tokens(&tokens)
        .map_err(|error| error.to_string())?;
    Ok(taken == tokens.len() && matcher.is_accepting().map_err(|error| error.to_string())?)
}

/// A grammar as the test makes it.
#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Class(bool, Vec<char>),
    Rule(usize),
    Seq(Vec<Piece>),
    Alt(Vec<Piece>),
    Repeat(Box<Piece>, usize, Option<usize>),
}

fn write_piece(text: &mut String, piece: &Piece) {
    match piece {
        Piece::Text(literal) => write!(text, "\"{literal}\"").unwrap(),
        Piece::Class(negated, characters) => {
            let characters: String = characters.iter().collect();
            write!(text, "[{}{characters}]", if *negated { "^" } else { "" }).unwrap();
        }
        Piece::Rule(index) => text.push_str(&name(*index)),
        Piece::Seq(parts) => parts.iter().for_each(|part| {
            write_piece(text, part);
            text.push(' ');
        }),
        Piece::Alt(parts) => {
            for (index, part) in parts.iter().enumerate() {
                text.push_str(if index == 0 { "(" } else { "|" });
                write_piece(text, part);
            }
            text.push(')');
        }
        Piece::Repeat(body, least, most) => {
            text.push('(');
            write_piece(text, body);
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            write!(text, "){{{least},{most}}}").unwrap();
        }
    }
}

fn name(index: usize) -> String {
    if index == 0 {
        "root".to_owned()
    } else {
        format!("rule-{index}")
    }
}

fn write_rules(rules: &[Piece]) -> String {
    let mut text = String::new();
    for (index, rule) in rules.iter().enumerate() {
        write!(text, "{} ::= ", name(index)).unwrap();
        write_piece(&mut text, rule);
        text.push('\n');
    }
    text
}

/// Reads one text with a grammar in every possible way at once.
///
/// The ends of a piece are the places after it. One place past the end of the text means that the
/// text is over before the piece is.
struct Reader<'a> {
    rules: &'a [Piece],
    text: Vec<char>,
    productive: Vec<bool>,
    ends: HashMap<(usize, usize), BTreeSet<usize>>,
    changed: bool,
}

impl<'a> Reader<'a> {
    fn new(rules: &'a [Piece]) -> Self {
        let productive = vec![false; rules.len()];
        let mut reader = Self {
            rules,
            text: Vec::new(),
            productive,
            ends: HashMap::new(),
            changed: false,
        };
        for _ in rules {
            let again = rules
                .iter()
                .map(|rule| reader.is_productive(rule))
                .collect();
            reader.productive = again;
        }
        reader
    }

    fn is_productive(&self, piece: &Piece) -> bool {
        match piece {
            Piece::Text(_) | Piece::Class(..) => true,
            Piece::Rule(index) => self.productive[*index],
            Piece::Seq(parts) => parts.iter().all(|part| self.is_productive(part)),
            Piece::Alt(parts) => parts.iter().any(|part| self.is_productive(part)),
            Piece::Repeat(body, least, _) => *least == 0 || self.is_productive(body),
        }
    }

    /// Whether the grammar accepts a text, and whether it accepts one that begins with it.
    fn read(&mut self, text: &str) -> (bool, bool) {
        self.text = text.chars().collect();
        self.ends.clear();
        loop {
            self.changed = false;
            for index in 0..self.rules.len() {
                for start in 0..=self.text.len() {
                    let found = self.ends(&self.rules[index], start);
                    let known = self.ends.entry((index, start)).or_default();
                    let before = known.len();
                    known.extend(found);
                    self.changed |= known.len() != before;
                }
            }
            if !self.changed {
                break;
            }
        }
        let ends = &self.ends[&(0, 0)];
        let length = self.text.len();
        (
            ends.contains(&length),
            ends.contains(&length) || ends.contains(&(length + 1)),
        )
    }

    fn ends(&self, piece: &Piece, start: usize) -> BTreeSet<usize> {
        let over = self.text.len() + 1;
        let one = |wanted: &dyn Fn(char) -> bool, place: usize| match self.text.get(place) {
            Some(found) if wanted(*found) => Some(place + 1),
            Some(_) => None,
            None => Some(over),
        };
        match piece {
            Piece::Text(literal) => {
                let mut place = start;
                for wanted in literal.chars() {
                    match one(&|found| found == wanted, place) {
                        Some(next) => place = next,
                        None => return BTreeSet::new(),
                    }
                    if place == over {
                        break;
                    }
                }
                BTreeSet::from([place])
            }
            Piece::Class(negated, characters) => {
                one(&|found| characters.contains(&found) != *negated, start)
                    .into_iter()
                    .collect()
            }
            Piece::Rule(index) => self.ends.get(&(*index, start)).cloned().unwrap_or_default(),
            Piece::Seq(parts) => self.ends_of_all(parts.iter(), start),
            Piece::Alt(parts) => parts
                .iter()
                .flat_map(|part| self.ends(part, start))
                .collect(),
            Piece::Repeat(body, least, most) => {
                let mut found = self.ends_of_all((0..*least).map(|_| &**body), start);
                let mut all = found.clone();
                for _ in 0..most.map_or(over + 1, |most| most - least) {
                    found.remove(&over);
                    found = found
                        .iter()
                        .flat_map(|place| self.ends(body, *place))
                        .collect();
                    all.extend(&found);
                }
                all
            }
        }
    }

    fn ends_of_all<'p>(
        &self,
        parts: impl Iterator<Item = &'p Piece>,
        start: usize,
    ) -> BTreeSet<usize> {
        let over = self.text.len() + 1;
        let mut places = BTreeSet::from([start]);
        for part in parts {
            let was_over = places.remove(&over);
            places = places
                .iter()
                .flat_map(|place| self.ends(part, *place))
                .collect();
            if !self.is_productive(part) {
                return BTreeSet::new();
            }
            if was_over {
                places.insert(over);
            }
        }
        places
    }
}

/// Compares the matcher with the naive reader on all texts over `alphabet` up to a length.
fn compare(rules: &[Piece], alphabet: &[char], length: usize) {
    let text = write_rules(rules);
    let reader = Reader::new(rules);
    let mut seen = BTreeSet::new();
    // Without any budget, every terminal is a character.
    for budget in [lexemes::BUDGET, 10_000, 0] {
        match convert(&text, budget) {
            Err(error) => assert!(!reader.is_productive(&rules[0]), "{error}\n{text}"),
            Ok(lark) if seen.insert(lark.clone()) => {
                compare_lark(rules, &text, &lark, alphabet, length);
            }
            Ok(_) => {}
        }
    }
}

fn compare_lark(rules: &[Piece], text: &str, lark: &str, alphabet: &[char], length: usize) {
    let mut reader = Reader::new(rules);
    let matcher = matcher(lark).unwrap_or_else(|error| panic!("{error}\n{text}\n{lark}"));
    let mut waiting = vec![(String::new(), matcher)];
    while let Some((prefix, mut matcher)) = waiting.pop() {
        let (complete, _) = reader.read(&prefix);
        let context = || format!("after {prefix:?}\n{text}\n{lark}");
        assert_eq!(matcher.is_accepting().unwrap(), complete, "{}", context());
        let next: Vec<(String, bool)> = alphabet
            .iter()
            .map(|character| {
                let longer = format!("{prefix}{character}");
                let viable = reader.read(&longer).1;
                (longer, viable)
            })
            .collect();
        if matcher.is_stopped() {
            assert!(next.iter().all(|(_, viable)| !viable), "{}", context());
            continue;
        }
        check_masks(&mut matcher, &prefix, alphabet, &next, complete, &context);
        if prefix.chars().count() <= 2 && alphabet == ['a', 'b', 'c'] {
            let mask = matcher.compute_mask_or_eos().unwrap();
            for (index, text) in long_texts().enumerate() {
                let (_, viable) = reader.read(&format!("{prefix}{text}"));
                let token = TokenId::try_from(LONG + index).unwrap();
                assert_eq!(mask.is_allowed(token), viable, "{text:?} {}", context());
            }
        }
        for (longer, viable) in next {
            let mut matcher = matcher.deep_clone();
            let tokens: Vec<TokenId> = longer.as_bytes()[prefix.len()..]
                .iter()
                .copied()
                .map(TokenId::from)
                .collect();
            let taken = matcher.try_consume_tokens(&tokens).unwrap();
            assert_eq!(taken == tokens.len(), viable, "{longer:?} {}", context());
            if viable && longer.chars().count() <= length {
                waiting.push((longer, matcher));
            }
        }
    }
}

/// Checks which of the bytes of the alphabet a matcher allows, at each byte of a character.
fn check_masks(
    matcher: &mut Matcher,
    prefix: &str,
    alphabet: &[char],
    next: &[(String, bool)],
    complete: bool,
    context: &dyn Fn() -> String,
) {
    let bytes: BTreeSet<u8> = alphabet
        .iter()
        .flat_map(|character| character.to_string().into_bytes())
        .collect();
    let mut begun: BTreeSet<Vec<u8>> = BTreeSet::from([Vec::new()]);
    for (longer, _) in next.iter().filter(|(_, viable)| *viable) {
        let new = &longer.as_bytes()[prefix.len()..];
        begun.extend((1..new.len()).map(|count| new[..count].to_vec()));
    }
    for begun in begun {
        let mut matcher = matcher.deep_clone();
        let tokens: Vec<TokenId> = begun.iter().copied().map(TokenId::from).collect();
        assert_eq!(
            matcher.try_consume_tokens(&tokens).unwrap(),
            begun.len(),
            "{}",
            context()
        );
        let mask = matcher.compute_mask_or_eos().unwrap();
        for &byte in &bytes {
            let expected = next.iter().any(|(longer, viable)| {
                let new = &longer.as_bytes()[prefix.len()..];
                *viable && new.starts_with(&begun) && new.get(begun.len()) == Some(&byte)
            });
            let allowed = mask.is_allowed(byte.into());
            assert_eq!(allowed, expected, "{begun:?} {byte:X} {}", context());
        }
        assert_eq!(
            mask.is_allowed(END),
            complete && begun.is_empty(),
            "{}",
            context()
        );
    }
}

fn pieces(alphabet: [char; 3], rules: usize) -> impl Strategy<Value = Piece> {
    let text = prop::collection::vec(prop::sample::select(alphabet.to_vec()), 0..=3);
    let class = prop::sample::subsequence(alphabet.to_vec(), 1..=2);
    let leaf = prop_oneof![
        3 => text.prop_map(|text| Piece::Text(text.into_iter().collect())),
        2 => (prop::bool::weighted(0.2), class).prop_map(|(not, class)| Piece::Class(not, class)),
        3 => (0..rules).prop_map(Piece::Rule),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let bounds = prop::sample::select(vec![
            (0, None),
            (1, None),
            (0, Some(1)),
            (2, None),
            (0, Some(2)),
            (1, Some(3)),
            (2, Some(2)),
            (0, Some(13)),
        ]);
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 2..=3).prop_map(Piece::Seq),
            2 => prop::collection::vec(inner.clone(), 2..=3).prop_map(Piece::Alt),
            2 => (inner, bounds).prop_map(|(body, (least, most))| {
                Piece::Repeat(Box::new(body), least, most)
            }),
        ]
    })
}

fn grammars(alphabet: [char; 3]) -> impl Strategy<Value = Vec<Piece>> {
    (1_usize..=4).prop_flat_map(move |rules| prop::collection::vec(pieces(alphabet, rules), rules))
}

/// How many random grammars are tried. More can be asked for when the converter is changed.
fn cases() -> u32 {
    option_env!("GBNF_CASES")
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(150)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn random_grammars_accept_exactly_what_they_say(rules in grammars(['a', 'b', 'c'])) {
        compare(&rules, &['a', 'b', 'c'], 5);
    }

    #[test]
    fn characters_of_several_bytes_change_nothing(rules in grammars(['a', 'é', 'ê'])) {
        // A negated class holds `À`, which begins with the byte of the other two.
        compare(&rules, &['a', 'é', 'ê', 'À'], 4);
    }
}
