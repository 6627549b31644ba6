//! Exponential and logarithm with the same bits on every machine, and fixed-point weights.
//!
//! The system's mathematics library differs between machines in the last bit, which is enough to
//! change an answer. Here only additions, multiplications, one division and moves of bits are
//! used, each exactly rounded everywhere. Weights are integers, so that their sums do not depend
//! on the order of summation.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// The weight of the most likely token; a million tokens of it still sum to less than 2⁶⁰.
pub(super) const ONE: u64 = 1 << 40;

const TWO_POW_40: f64 = 1_099_511_627_776.0;
const TWO_POW_52: f64 = 4_503_599_627_370_496.0;
/// Adding and subtracting this rounds to a whole number, whose low bits stand in the sum.
const ROUNDER: f64 = 1.5 * TWO_POW_52;
/// `ln 2` in two parts; multiples of the first are exact.
const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

const LOG2_E_SHORT: f32 = std::f32::consts::LOG2_E;
const ROUNDER_SHORT: f32 = 12_582_912.0;
const LN_2_HIGH_SHORT: f32 = 0.693_359_4;
const LN_2_LOW_SHORT: f32 = -2.121_944_4e-4;
/// `1 / n!`, for the series of the exponential.
const INVERSE_FACTORIALS: [f64; 14] = [
    1.0,
    1.0,
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5_040.0,
    1.0 / 40_320.0,
    1.0 / 362_880.0,
    1.0 / 3_628_800.0,
    1.0 / 39_916_800.0,
    1.0 / 479_001_600.0,
    1.0 / 6_227_020_800.0,
];
const INVERSE_FACTORIALS_SHORT: [f32; 8] = [
    1.0,
    1.0,
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5_040.0,
];

/// `e^x` for `x ≤ 0`, to about 1e-15 relative; everything below `e^-700` counts as that.
#[inline]
pub(super) fn exp(x: f64) -> f64 {
    let x = if x > -700.0 { x } else { -700.0 };
    let shifted = x * LOG2_E + ROUNDER;
    let exponent = shifted - ROUNDER;
    let rest = (x - exponent * LN_2_HIGH) - exponent * LN_2_LOW;
    let mut sum = INVERSE_FACTORIALS[13];
    for term in INVERSE_FACTORIALS[..13].iter().rev() {
        sum = sum * rest + term;
    }
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1.0_f64.to_bits()));
    sum * scale
}

/// `ln x` for a normal `x > 0`, to about 1e-15.
pub(super) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = i32::try_from(bits >> 52).expect("positive, so eleven bits") - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1.0_f64.to_bits());
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for power in (0..12).rev() {
        sum = sum * square + 1.0 / f64::from(2 * power + 1);
    }
    f64::from(exponent) * LN_2 + 2.0 * s * sum
}

/// `e^x` for `x ≤ 0`, to about 2e-7 relative, four times as fast; at the least `e^-60`.
#[inline]
pub(super) fn exp_quick(x: f32) -> f32 {
    let x = if x > -60.0 { x } else { -60.0 };
    let shifted = x * LOG2_E_SHORT + ROUNDER_SHORT;
    let exponent = shifted - ROUNDER_SHORT;
    let rest = (x - exponent * LN_2_HIGH_SHORT) - exponent * LN_2_LOW_SHORT;
    let mut sum = INVERSE_FACTORIALS_SHORT[7];
    for term in INVERSE_FACTORIALS_SHORT[..7].iter().rev() {
        sum = sum * rest + term;
    }
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    sum * scale
}

/// A share between 0 and 1 as a whole number of parts of [`ONE`], rounded to the nearest.
#[inline]
pub(super) fn fixed(share: f64) -> u64 {
    (share * TWO_POW_40 + TWO_POW_52).to_bits() & ((1 << 52) - 1)
}

/// The weight of a token from its share of the most likely one.
#[inline]
pub(super) fn weight(share: f32) -> u64 {
    fixed(f64::from(share))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ends_of_the_range() {
        assert_eq!(exp(0.0).to_bits(), 1.0_f64.to_bits());
        assert!(exp(f64::NEG_INFINITY) < 1e-300);
        assert_eq!(exp_quick(0.0).to_bits(), 1.0_f32.to_bits());
        assert_eq!(fixed(f64::from(exp_quick(f32::NEG_INFINITY))), 0);
        assert_eq!((fixed(0.0), fixed(1.0), fixed(0.5)), (0, ONE, ONE / 2));
        assert_eq!(ln(1.0).to_bits(), 0.0_f64.to_bits());
    }

    proptest! {
        #[test]
        fn exp_is_close(x in -690.0_f64..=0.0) {
            prop_assert!((exp(x) / x.exp() - 1.0).abs() < 2e-15, "{} {}", exp(x), x.exp());
        }

        #[test]
        fn exp_quick_is_close(x in -59.0_f32..=0.0) {
            let exact = f64::from(x).exp();
            prop_assert!((f64::from(exp_quick(x)) / exact - 1.0).abs() < 3e-7, "{} {exact}", exp_quick(x));
        }

        #[test]
        fn ln_is_close(x in 1.0_f64..1e9) {
            prop_assert!((ln(x) - x.ln()).abs() <= 2e-15 * x.ln().max(1.0));
        }
    }
}
