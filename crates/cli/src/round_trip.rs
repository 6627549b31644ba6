//! Whether a tokenizer gives back what it took.

use forthwith_text::{ControlText, Tokenizer};

/// What a tokenizer must give back as it was.
pub(crate) const SAMPLES: [&str; 6] = [
    "The quick brown fox jumps over 13 lazy dogs.",
    "naïve café, Straße, 東京, мир, שלום 👩‍👩‍👧",
    "def main():\n\tprint(\"a  b\")  # 0x1F\r\n",
    "<|im_start|>system <s> [INST] <end_of_turn>",
    "1234567890 3.14e-10",
    "   spaces   before and after   ",
];

/// What samples come back as, of those that change.
pub(crate) fn round_trips(tokenizer: &Tokenizer) -> Result<Vec<String>, String> {
    let mut changed = Vec::new();
    for sample in SAMPLES {
        let tokens = tokenizer.encode(sample, ControlText::AsText);
        let tokens = tokens.map_err(|error| format!("{sample:?}: {error}"))?;
        let back = tokenizer.decode(&tokens);
        if back != sample {
            changed.push(format!("{sample:?} comes back as {back:?}"));
        }
    }
    Ok(changed)
}

/// A sentence about a tokenizer of a model that generates and does not give back what it took.
pub(crate) fn warning(tokenizer: &Tokenizer) -> Option<String> {
    let changed = round_trips(tokenizer);
    let first = match &changed {
        Ok(changed) => changed.first()?,
        Err(error) => error,
    };
    Some(format!(
        "the tokenizer changes text: {first}; `forthwith doctor` tells more"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forthwith_core::units::TokenId;

    #[test]
    fn a_tokenizer_that_loses_text_is_warned_of() {
        let words = ["<unk>", "the"].map(str::to_owned);
        let unknown = TokenId::new(0);
        let tokenizer = Tokenizer::words(&words, unknown, vec![], vec![unknown]).unwrap();
        let warning = warning(&tokenizer).unwrap();
        assert!(warning.contains("comes back as"), "{warning}");
        assert_eq!(round_trips(&tokenizer).unwrap().len(), SAMPLES.len());
    }
}
