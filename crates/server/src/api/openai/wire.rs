//! JSON values whose refusals speak of values, not of Rust types.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};

/// A whole number, 0 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole(pub(crate) u64);

/// A whole number of either sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Integer(pub(crate) i128);

/// A number, narrowed to what the sampler computes with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Number(pub(crate) f32);

/// A string or a list of strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strings(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeReader)
    }
}

struct WholeReader;

impl Visitor<'_> for WholeReader {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, 0 or more")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Whole, E> {
        Ok(Whole(value))
    }
}

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntegerReader)
    }
}

struct IntegerReader;

impl Visitor<'_> for IntegerReader {
    type Value = Integer;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from -2^63 to 2^64 - 1")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Integer, E> {
        Ok(Integer(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Integer, E> {
        Ok(Integer(value.into()))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberReader)
    }
}

struct NumberReader;

impl Visitor<'_> for NumberReader {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "an infinite result is refused"
    )]
    fn visit_f64<E: Error>(self, value: f64) -> Result<Number, E> {
        let narrowed = value as f32;
        if narrowed.is_finite() {
            Ok(Number(narrowed))
        } else {
            Err(E::invalid_value(
                Unexpected::Float(value),
                &"a smaller number",
            ))
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
    fn visit_u64<E: Error>(self, value: u64) -> Result<Number, E> {
        Ok(Number(value as f32))
    }

    #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
    fn visit_i64<E: Error>(self, value: i64) -> Result<Number, E> {
        Ok(Number(value as f32))
    }
}

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StringsReader)
    }
}

struct StringsReader;

impl<'de> Visitor<'de> for StringsReader {
    type Value = Strings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Strings, E> {
        Ok(Strings(vec![value.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Strings, A::Error> {
        let mut strings = Vec::new();
        while let Some(string) = list.next_element()? {
            strings.push(string);
        }
        Ok(Strings(strings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_neither_fractions_nor_text() {
        assert_eq!(serde_json::from_str::<Whole>("7").unwrap(), Whole(7));
        for bad in [
            "-1",
            "1.5",
            "\"8\"",
            "true",
            "[]",
            "1e19",
            "18446744073709551616",
        ] {
            let error = serde_json::from_str::<Whole>(bad).unwrap_err().to_string();
            assert!(
                error.contains("a whole number, 0 or more"),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn seeds_span_both_integer_types() {
        for good in ["0", "-1", "-9223372036854775808", "18446744073709551615"] {
            let parsed = serde_json::from_str::<Integer>(good).unwrap();
            assert_eq!(parsed.0.to_string(), good);
        }
        for bad in ["18446744073709551616", "1.5", "\"7\""] {
            assert!(serde_json::from_str::<Integer>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_beyond_the_sampler_are_refused() {
        assert_eq!(
            serde_json::from_str::<Number>("1e-30").unwrap(),
            Number(1e-30)
        );
        for bad in ["1e39", "-1e39", "NaN", "1e400", "\"1\""] {
            assert!(serde_json::from_str::<Number>(bad).is_err(), "{bad}");
        }
    }
}
