//! Times as people write them: `30s`, `250ms`, `2m`.

use std::fmt;
use std::time::Duration;

/// Units and their milliseconds; the longest that fits is shown.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A time that is shown as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) Duration);

/// Reads a whole number with a unit, from `MIN` to `MAX` milliseconds.
pub(crate) fn parse<const MIN: u64, const MAX: u64>(text: &str) -> Result<Span, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = UNITS.iter().find(|(name, _)| *name == unit);
    let read = number.parse::<u64>().ok().zip(unit);
    let time = read.and_then(|(number, (_, scale))| number.checked_mul(*scale));
    match time {
        Some(time) if (MIN..=MAX).contains(&time) => Ok(Span(Duration::from_millis(time))),
        _ => {
            let [least, most] = [MIN, MAX].map(|limit| Span(Duration::from_millis(limit)));
            Err(format!(
                "expected a time from {least} to {most}, like 30s, 250ms or 2m"
            ))
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.0.as_millis();
        let fits = |(_, scale): &&(&str, u64)| time > 0 && time.is_multiple_of((*scale).into());
        match UNITS.iter().find(fits) {
            Some((unit, scale)) => write!(f, "{}{unit}", time / u128::from(*scale)),
            None => f.write_str("0s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_shown() {
        for (text, milliseconds, shown) in [
            ("30s", 30_000, "30s"),
            ("250ms", 250, "250ms"),
            (" 2m", 120_000, "2m"),
            ("1h", 3_600_000, "1h"),
            ("1500ms", 1500, "1500ms"),
            ("60s", 60_000, "1m"),
            ("0s", 0, "0s"),
        ] {
            let time = parse::<0, 3_600_000>(text).unwrap();
            assert_eq!(time.0, Duration::from_millis(milliseconds), "{text}");
            assert_eq!(time.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_time_in_range_is_refused_with_the_range() {
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "1.5s",
            "30 s",
            "1d",
            "99ms",
            "61s",
            "99999999999999999999s",
            "18446744073709551615h",
            "½s",
        ] {
            let error = parse::<100, 60_000>(text).unwrap_err();
            assert!(error.contains("from 100ms to 1m"), "{text}: {error}");
        }
    }
}
