//! A logarithm and an exponential with the same bits on every machine.
//!
//! As the exponential of [`forthwith_core::rows`]: additions, multiplications, one division and moves
//! of bits, each exactly rounded everywhere.

use std::f64::consts::{LN_2, SQRT_2};

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

/// `e^x` to about 1e-15 relative, and to what a double holds far below that: `x` counts as at least
/// -700 and at most 700.
pub(super) fn exp(x: f64) -> f64 {
    // `ln 2` in two parts; multiples of the first by so small whole numbers are exact.
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    /// Adding and subtracting this rounds to a whole number.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    let x = if x > -700.0 { x } else { -700.0 };
    let x = if x < 700.0 { x } else { 700.0 };
    let shifted = x / LN_2 + ROUNDER;
    let exponent = shifted - ROUNDER;
    let rest = (x - exponent * LN_2_HIGH) - exponent * LN_2_LOW;
    let mut sum = 1.0;
    for term in (1..18).rev() {
        sum = sum * rest / f64::from(term) + 1.0;
    }
    // The sum's low bits are the whole number, which becomes the exponent.
    sum * f64::from_bits((shifted.to_bits() << 52).wrapping_add(1.0_f64.to_bits()))
}

/// `x^y` for `x ≥ 0`; a power of nothing is nothing but for `y = 0`, which gives one.
pub(super) fn pow(x: f64, y: f64) -> f64 {
    if y == 0.0 {
        1.0
    } else if x < f64::MIN_POSITIVE {
        0.0
    } else {
        exp(y * ln(x))
    }
}

/// `x^n` by whole steps.
pub(super) fn whole_power(mut x: f64, mut n: u32) -> f64 {
    let mut product = 1.0;
    while n > 0 {
        if n & 1 == 1 {
            product *= x;
        }
        x *= x;
        n >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ln_is_close(x in 1e-9_f64..1e9) {
            prop_assert!((ln(x) - x.ln()).abs() <= 2e-15 * x.ln().abs().max(1.0));
        }

        #[test]
        fn exp_is_close(x in -700.0_f64..700.0) {
            prop_assert!((exp(x) / x.exp() - 1.0).abs() <= 2e-15 * x.abs().max(1.0));
        }

        #[test]
        fn powers_are_close(x in 0.0_f64..1.0, y in 0.0_f64..10.0, n in 0_u32..300) {
            prop_assert!((pow(x, y) - x.powf(y)).abs() <= 1e-13);
            let exact = (1.0 + x).powf(f64::from(n));
            prop_assert!((whole_power(1.0 + x, n) / exact - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn powers_at_their_ends() {
        assert_eq!(
            [pow(0.0, 0.0), pow(0.0, 0.5), pow(1.0, 3.0)],
            [1.0, 0.0, 1.0]
        );
        assert_eq!([exp(0.0), exp(f64::NEG_INFINITY)], [1.0, exp(-700.0)]);
        assert_eq!([whole_power(3.0, 0), whole_power(3.0, 5)], [1.0, 243.0]);
    }

    #[test]
    fn ln_of_one_is_zero() {
        assert_eq!(ln(1.0).to_bits(), 0.0_f64.to_bits());
    }
}
