//! A logarithm with the same bits on every machine.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ln_is_close(x in 1e-9_f64..1e9) {
            prop_assert!((ln(x) - x.ln()).abs() <= 2e-15 * x.ln().abs().max(1.0));
        }
    }

    #[test]
    fn ln_of_one_is_zero() {
        assert_eq!(ln(1.0).to_bits(), 0.0_f64.to_bits());
    }
}
