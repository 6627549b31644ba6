use proptest::prelude::*;

use super::*;

fn tokens(texts: &[&'static str]) -> SpecialTokens {
    SpecialTokens::new((0u32..).map(TokenId::new).zip(texts.iter().copied())).unwrap()
}

fn shown(texts: &[&'static str], text: &str) -> Vec<String> {
    tokens(texts)
        .split(text)
        .into_iter()
        .map(|fragment| match fragment {
            Fragment::Text(text) => text.to_owned(),
            Fragment::Token(id) => format!("#{id}"),
        })
        .collect()
}

#[test]
fn longer_tokens_win_over_those_further_left() {
    assert_eq!(shown(&["ab", "bcd"], "xabcdab"), ["xa", "#1", "#0"]);
    assert_eq!(
        shown(&["\n", "\n\n", "\n\n\n"], "\n\n\n\n\na"),
        ["#2", "#1", "a"]
    );
    assert_eq!(shown(&["<s>"], ""), Vec::<String>::new());
    assert_eq!(shown(&[], "text"), ["text"]);
}

proptest! {
    #[test]
    fn guarded_text_completes_no_control_text(
        texts in prop::collection::btree_set("[<>|a]{2,5}", 1..6),
        user in "[<>|a \n]{0,12}",
        before in "[<>|a]{0,4}",
        after in "[<>|a]{0,4}",
    ) {
        let guard = ControlGuard::new(texts.iter().map(String::as_str)).unwrap();
        let guarded = guard.guard(&user, '\u{fdd0}');
        prop_assert_eq!(guarded.replace('\u{fdd0}', ""), user.as_str());
        for guarded in [guarded.as_str(), guarded.trim()] {
            for text in &texts {
                let whole = format!("{before}{guarded}{after}");
                // What touches the user's text at all must be broken.
                let (start, end) = (before.len(), before.len() + guarded.len());
                let touches = whole
                    .match_indices(text.as_str())
                    .any(|(at, found)| !guarded.is_empty() && at < end && at + found.len() > start);
                prop_assert!(!touches || text_is_infix(&texts, guarded), "{whole:?} {text:?}");
            }
        }
    }
}

/// A user's text in the very middle of a control text (`u` of `<u>`) is the template's own doing.
fn text_is_infix(texts: &std::collections::BTreeSet<String>, guarded: &str) -> bool {
    texts
        .iter()
        .any(|text| text[1..text.len() - 1].contains(guarded))
}
