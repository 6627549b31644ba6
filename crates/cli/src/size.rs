//! Sizes as people write them: `2GiB`, `512M`, `1.5 GB`.

use forthwith_core::units::Bytes;

const UNITS: [(&str, u32); 5] = [("", 0), ("k", 1), ("m", 2), ("g", 3), ("t", 4)];

/// Reads a number of bytes: units of 1024 are `Ki Mi Gi Ti`, of 1000 `k M G T`, each with or
/// without a final `B`, in any case.
pub(crate) fn parse(text: &str) -> Result<Bytes, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let scale = scale(unit.trim()).ok_or_else(|| {
        format!("unit `{unit}` is unknown; write a size like 2GiB, 512MiB or 1500MB")
    })?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || fraction.len() > 9 {
        return Err("expected a number and a unit, like 2GiB".to_owned());
    }
    let too_large = || "the size is too large".to_owned();
    let mut bytes = decimal(whole)
        .and_then(|whole| whole.checked_mul(scale))
        .ok_or_else(too_large)?;
    let parts = decimal(fraction).ok_or_else(too_large)? * scale;
    bytes += parts / 10_u128.pow(u32::try_from(fraction.len()).expect("at most nine"));
    match u64::try_from(bytes) {
        Ok(0) => Err("the size must not be zero".to_owned()),
        Ok(bytes) => Ok(Bytes::new(bytes)),
        Err(_) => Err(too_large()),
    }
}

fn decimal(digits: &str) -> Option<u128> {
    if digits.is_empty() {
        return Some(0);
    }
    digits.parse().ok()
}

fn scale(unit: &str) -> Option<u128> {
    let unit = unit.to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (letter, base) = match unit.strip_suffix('i') {
        Some("") => return None,
        Some(letter) => (letter, 1024_u128),
        None => (unit, 1000),
    };
    let (_, power) = UNITS.iter().find(|(name, _)| *name == letter)?;
    Some(base.pow(*power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("1", 1),
            ("4096B", 4096),
            ("2GiB", 2 << 30),
            ("2gib", 2 << 30),
            ("2 Gi", 2 << 30),
            ("1.5GiB", 3 << 29),
            (".5KiB", 512),
            ("1.KiB", 1024),
            ("512MiB", 512 << 20),
            ("1500MB", 1_500_000_000),
            ("3G", 3_000_000_000),
            ("0.000000001GB", 1),
            ("16777215TiB", 16_777_215 << 40),
        ] {
            assert_eq!(parse(text), Ok(Bytes::new(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in [
            "",
            "GiB",
            ".",
            "-1",
            "0",
            "0GiB",
            "1..2",
            "1.2.3",
            "1e9",
            "2iB",
            "2GiBs",
            "2PiB",
            "nan",
            "16777216TiB",
            "0.0000000001GB",
            "٣GiB",
            "99999999999999999999999999999999999999999TiB",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "[0-9.]{0,45}[ a-zA-Z]{0,4}") {
            let _ = parse(&text);
        }

        #[test]
        fn plain_numbers_are_themselves(bytes in 1_u64..) {
            prop_assert_eq!(parse(&bytes.to_string()), Ok(Bytes::new(bytes)));
        }
    }
}
