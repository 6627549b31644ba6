//! The portable instruction set: plain arrays, the meaning of every operation.

use super::{Isa, Kernel};
use half::f16;

#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type Lanes = [f32; 8];
type Bytes = [u8; 32];

fn map(a: Lanes, f: impl Fn(f32) -> f32) -> Lanes {
    a.map(f)
}

fn zip(a: Lanes, b: Lanes, f: impl Fn(f32, f32) -> f32) -> Lanes {
    std::array::from_fn(|i| f(a[i], b[i]))
}

fn words(a: Bytes) -> [i16; 16] {
    std::array::from_fn(|i| i16::from_le_bytes([a[2 * i], a[2 * i + 1]]))
}

fn from_words(a: [i16; 16]) -> Bytes {
    std::array::from_fn(|i| a[i / 2].to_le_bytes()[i % 2])
}

fn doubles(a: Bytes) -> [i32; 8] {
    std::array::from_fn(|i| {
        i32::from_le_bytes([a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]])
    })
}

fn from_doubles(a: [i32; 8]) -> Bytes {
    std::array::from_fn(|i| a[i / 4].to_le_bytes()[i % 4])
}

impl Isa for Scalar {
    type F = Lanes;
    type I = Bytes;

    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Lanes {
        [value; 8]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Lanes {
        // SAFETY: the caller vouches for eight floats.
        unsafe { from.cast::<Lanes>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Lanes) {
        // SAFETY: the caller vouches for eight floats.
        unsafe { to.cast::<Lanes>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const u16) -> Lanes {
        // SAFETY: the caller vouches for eight halves.
        let halves = unsafe { from.cast::<[u16; 8]>().read_unaligned() };
        halves.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16, value: Lanes) {
        let halves = value.map(|value| f16::from_f32(value).to_bits());
        // SAFETY: the caller vouches for eight halves.
        unsafe { to.cast::<[u16; 8]>().write_unaligned(halves) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Lanes {
        // SAFETY: the caller vouches for eight values.
        let halves = unsafe { from.cast::<[u16; 8]>().read_unaligned() };
        halves.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Lanes {
        // SAFETY: the caller vouches for eight bytes.
        unsafe { from.cast::<[i8; 8]>().read_unaligned() }.map(f32::from)
    }

    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, a: Lanes) -> Lanes {
        map(a, f32::abs)
    }

    #[inline(always)]
    fn round(self, a: Lanes) -> Lanes {
        map(a, f32::round_ties_even)
    }

    #[inline(always)]
    fn zero_below(self, a: Lanes, x: Lanes, limit: Lanes) -> Lanes {
        std::array::from_fn(|i| if x[i] < limit[i] { 0.0 } else { a[i] })
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "n is integral and small")]
    fn scale_exponent(self, a: Lanes, n: Lanes) -> Lanes {
        zip(a, n, |a, n| {
            a * f32::from_bits((((n as i32) + 127) << 23).cast_unsigned())
        })
    }

    #[inline(always)]
    fn to_array(self, a: Lanes) -> [f32; 8] {
        a
    }

    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "lanes are integral and small"
    )]
    unsafe fn store_as_i8(self, to: *mut i8, value: Lanes) {
        // SAFETY: the caller vouches for eight bytes.
        unsafe {
            to.cast::<[i8; 8]>()
                .write_unaligned(value.map(|value| value as i8));
        }
    }

    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}

    #[inline(always)]
    fn zero(self) -> Bytes {
        [0; 32]
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Bytes {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { from.cast::<Bytes>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, value: Bytes) {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { to.cast::<Bytes>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn broadcast4(self, from: *const i8) -> Bytes {
        // SAFETY: the caller vouches for four bytes.
        let four = unsafe { from.cast::<[u8; 4]>().read_unaligned() };
        std::array::from_fn(|i| four[i % 4])
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> Bytes {
        [value; 32]
    }

    #[inline(always)]
    fn and(self, a: Bytes, b: Bytes) -> Bytes {
        std::array::from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn or(self, a: Bytes, b: Bytes) -> Bytes {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn shift_right16<const N: i32>(self, a: Bytes) -> Bytes {
        from_words(words(a).map(|word| (word.cast_unsigned() >> N).cast_signed()))
    }

    #[inline(always)]
    fn shift_left16<const N: i32>(self, a: Bytes) -> Bytes {
        from_words(words(a).map(|word| word << N))
    }

    #[inline(always)]
    fn add16(self, a: Bytes, b: Bytes) -> Bytes {
        let (a, b) = (words(a), words(b));
        from_words(std::array::from_fn(|i| a[i].wrapping_add(b[i])))
    }

    #[inline(always)]
    fn add32(self, a: Bytes, b: Bytes) -> Bytes {
        let (a, b) = (doubles(a), doubles(b));
        from_doubles(std::array::from_fn(|i| a[i].wrapping_add(b[i])))
    }

    #[inline(always)]
    fn multiply_add_bytes(self, a: Bytes, b: Bytes) -> Bytes {
        let product = |i: usize| i16::from(a[i]) * i16::from(b[i].cast_signed());
        from_words(std::array::from_fn(|i| {
            product(2 * i).saturating_add(product(2 * i + 1))
        }))
    }

    #[inline(always)]
    fn add_pairs16(self, a: Bytes) -> Bytes {
        let a = words(a);
        from_doubles(std::array::from_fn(|i| {
            i32::from(a[2 * i]) + i32::from(a[2 * i + 1])
        }))
    }

    #[inline(always)]
    fn abs_bytes(self, a: Bytes) -> Bytes {
        a.map(|byte| byte.cast_signed().unsigned_abs())
    }

    #[inline(always)]
    fn apply_sign(self, a: Bytes, sign: Bytes) -> Bytes {
        std::array::from_fn(|i| match sign[i].cast_signed().signum() {
            0 => 0,
            1 => a[i],
            _ => a[i].cast_signed().wrapping_neg().cast_unsigned(),
        })
    }

    #[inline(always)]
    #[expect(
        clippy::cast_precision_loss,
        reason = "sums of a block stay below 2^24"
    )]
    fn to_float(self, a: Bytes) -> Lanes {
        doubles(a).map(|double| double as f32)
    }
}
