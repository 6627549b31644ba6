//! An exponential with the same bits on every machine.
//!
//! The system's mathematics library differs between machines in the last bit, which is enough to
//! change an answer. Here only additions, multiplications and moves of bits are used, each exactly
//! rounded everywhere.

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// Adding and subtracting this rounds to a whole number, whose low bits stand in the sum.
const ROUNDER: f32 = 12_582_912.0;
/// `ln 2` in two parts; multiples of the first are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// `1 / n!`, for the series of the exponential.
const INVERSE_FACTORIALS: [f32; 8] = [
    1.0,
    1.0,
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5_040.0,
];

/// `e^x` for `x ≤ 0`, to about 2e-7 relative; at the least `e^-60`.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    let (rest, scale) = split(x);
    series(rest) * scale
}

/// `(r, 2^n)` with `e^x = 2^n · e^r` and `|r| ≤ ln 2 / 2`, for `-60 ≤ x ≤ 0`; smaller `x` count as that.
#[inline]
pub(super) fn split(x: f32) -> (f32, f32) {
    let x = if x > -60.0 { x } else { -60.0 };
    let shifted = x * LOG2_E + ROUNDER;
    let exponent = shifted - ROUNDER;
    let rest = (x - exponent * LN_2_HIGH) - exponent * LN_2_LOW;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    (rest, scale)
}

/// `e^r` for `|r| ≤ ln 2 / 2`.
#[inline]
pub(super) fn series(rest: f32) -> f32 {
    let mut sum = INVERSE_FACTORIALS[7];
    for term in INVERSE_FACTORIALS[..7].iter().rev() {
        sum = sum * rest + term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::exp;

    #[test]
    fn ends_of_the_range() {
        assert_eq!(exp(0.0).to_bits(), 1.0_f32.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1.0_f32.to_bits());
        assert!(exp(f32::NEG_INFINITY) < 1e-26);
    }

    proptest! {
        #[test]
        fn exp_is_close(x in -59.0_f32..=0.0) {
            let exact = f64::from(x).exp();
            prop_assert!((f64::from(exp(x)) / exact - 1.0).abs() < 3e-7, "{} {exact}", exp(x));
        }
    }
}
