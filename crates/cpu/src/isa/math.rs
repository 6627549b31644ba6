//! Functions of vectors, built from [`Lanes`] operations so that all instruction sets agree.

use super::{Isa, Lanes};

/// `exp(x)`; zero below −87.3, where the result would be denormal; NaN stays NaN. Relative error
/// < 3e-7.
///
/// Source: range reduction by `ln 2` in two parts and a degree-6 polynomial (Cephes `expf`).
#[inline(always)]
pub(crate) fn exp<I: Lanes>(isa: I, x: I::F) -> I::F {
    let lowest = isa.splat(-87.3);
    // In this order a NaN passes through both.
    let clamped = isa.max(lowest, isa.min(isa.splat(88.0), x));
    let n = isa.round(isa.mul(clamped, isa.splat(std::f32::consts::LOG2_E)));
    let r = isa.fma(n, isa.splat(-0.693_359_4), clamped);
    let r = isa.fma(n, isa.splat(2.121_944_4e-4), r);
    let mut p = isa.splat(1.987_569_1e-4);
    for coefficient in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = isa.fma(p, r, isa.splat(coefficient));
    }
    let p = isa.fma(p, isa.mul(r, r), isa.add(r, isa.splat(1.0)));
    isa.zero_below(isa.scale_exponent(p, n), x, lowest)
}

/// [`exp`] of a single number.
#[inline(always)]
pub(crate) fn exp_one<I: Isa>(isa: I, x: f32) -> f32 {
    isa.to_array(exp(isa, isa.splat(x)))[0]
}

/// [`exp`] of up to eight numbers.
#[inline(always)]
pub(crate) fn exp_each<I: Isa, const N: usize>(isa: I, x: [f32; N]) -> [f32; N] {
    const { assert!(N <= 8, "one vector") };
    let (mut lanes, mut out) = ([0.0; 8], [0.0; N]);
    lanes[..N].copy_from_slice(&x);
    // SAFETY: `lanes` holds eight floats.
    let lanes = isa.to_array(exp(isa, unsafe { isa.load(lanes.as_ptr()) }));
    out.copy_from_slice(&lanes[..N]);
    out
}

/// `tanh(x) = 1 − 2 / (exp(2x) + 1)`
#[inline(always)]
pub(crate) fn tanh<I: Lanes>(isa: I, x: I::F) -> I::F {
    let e = exp(isa, isa.add(x, x));
    let one = isa.splat(1.0);
    isa.sub(one, isa.div(isa.splat(2.0), isa.add(e, one)))
}

/// `1 − erf(x)` for `x ≥ 0`. Relative error < 2e-6 where the result is above 1e-6.
///
/// `t · exp(P(t) − x²)` with `t = 1 / (1 + x/2)`. `P` is a polynomial of degree 8, fitted for this to
/// `ln(erfc(x) / t) + x²` at 400 Chebyshev nodes of `0 ≤ x ≤ 9.2`, weights adjusted until the error was even
/// (2.1e-7), each coefficient rounded to a single float before the next was fitted. The rest of the
/// error is that of `x²` in a single float.
#[inline(always)]
pub(crate) fn erfc<I: Lanes>(isa: I, x: I::F) -> I::F {
    let one = isa.splat(1.0);
    let t = isa.div(one, isa.fma(isa.splat(0.5), x, one));
    let mut p = isa.splat(0.083_264_69);
    for coefficient in [
        -0.579_221_55,
        1.527_950_8,
        -1.845_941_5,
        0.899_000_5,
        -0.256_828_84,
        0.444_724_6,
        0.992_197_6,
        -1.265_146_4,
    ] {
        p = isa.fma(p, t, isa.splat(coefficient));
    }
    let square = isa.mul(x, x);
    isa.mul(t, exp(isa, isa.sub(p, square)))
}

/// The sum of the lanes, always in the same tree.
#[inline(always)]
pub(crate) fn sum_lanes<I: Isa>(isa: I, a: I::F) -> f32 {
    let a = isa.to_array(a);
    ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
}

/// The sum of the lanes of a wide vector, always in the same tree.
#[inline(always)]
pub(crate) fn sum_wide<I: Isa>(isa: I, a: <I::Wide as Lanes>::F) -> f32 {
    let (low, high) = halves(isa, a);
    sum_lanes(isa, isa.add(low, high))
}

/// The two halves of a wide vector.
#[inline(always)]
fn halves<I: Isa>(isa: I, a: <I::Wide as Lanes>::F) -> (I::F, I::F) {
    let mut lanes = [0.0_f32; 16];
    // SAFETY: the array holds sixteen floats.
    unsafe {
        isa.wide().store(lanes.as_mut_ptr(), a);
        (isa.load(lanes.as_ptr()), isa.load(lanes.as_ptr().add(8)))
    }
}

/// The largest lane; any lane or NaN if one is NaN.
#[inline(always)]
pub(crate) fn max_lane<I: Isa>(isa: I, a: I::F) -> f32 {
    // One instruction; `f32::max` takes three.
    let max = |a: f32, b: f32| if b > a { b } else { a };
    let a = isa.to_array(a);
    let (even, odd) = (
        max(max(a[0], a[4]), max(a[2], a[6])),
        max(max(a[1], a[5]), max(a[3], a[7])),
    );
    max(even, odd)
}

/// The largest lane of a wide vector.
#[inline(always)]
pub(crate) fn max_wide<I: Isa>(isa: I, a: <I::Wide as Lanes>::F) -> f32 {
    let (low, high) = halves(isa, a);
    max_lane(isa, isa.max(low, high))
}
