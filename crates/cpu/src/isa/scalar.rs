//! The portable instruction set: plain arrays, the meaning of every operation.

use super::pair::Pair;
use super::{Dots, Isa, Kernel, Lanes};
use half::f16;

#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type Floats = [f32; 8];
type Bytes = [u8; 32];

fn map(a: Floats, f: impl Fn(f32) -> f32) -> Floats {
    a.map(f)
}

fn zip(a: Floats, b: Floats, f: impl Fn(f32, f32) -> f32) -> Floats {
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
    type Wide = Pair<Self>;

    fn wide(self) -> Pair<Self> {
        Pair(self)
    }

    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}

impl Lanes for Scalar {
    type F = Floats;
    type I = Bytes;
    const LANES: usize = 8;
    const DOTS: Dots = Dots::None;
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Floats {
        [value; 8]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Floats {
        // SAFETY: the caller vouches for eight floats.
        unsafe { from.cast::<Floats>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Floats) {
        // SAFETY: the caller vouches for eight floats.
        unsafe { to.cast::<Floats>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const u16) -> Floats {
        // SAFETY: the caller vouches for eight halves.
        let halves = unsafe { from.cast::<[u16; 8]>().read_unaligned() };
        halves.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16, value: Floats) {
        let halves = value.map(|value| f16::from_f32(value).to_bits());
        // SAFETY: the caller vouches for eight halves.
        unsafe { to.cast::<[u16; 8]>().write_unaligned(halves) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Floats {
        // SAFETY: the caller vouches for eight values.
        let halves = unsafe { from.cast::<[u16; 8]>().read_unaligned() };
        halves.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Floats {
        // SAFETY: the caller vouches for eight bytes.
        unsafe { from.cast::<[i8; 8]>().read_unaligned() }.map(f32::from)
    }

    #[inline(always)]
    fn add(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Floats, b: Floats, c: Floats) -> Floats {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, a: Floats) -> Floats {
        map(a, f32::abs)
    }

    #[inline(always)]
    fn round(self, a: Floats) -> Floats {
        map(a, f32::round_ties_even)
    }

    #[inline(always)]
    fn zero_below(self, a: Floats, x: Floats, limit: Floats) -> Floats {
        std::array::from_fn(|i| if x[i] < limit[i] { 0.0 } else { a[i] })
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "n is integral and small")]
    fn scale_exponent(self, a: Floats, n: Floats) -> Floats {
        zip(a, n, |a, n| {
            a * f32::from_bits((((n as i32) + 127) << 23).cast_unsigned())
        })
    }

    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "lanes are integral and small"
    )]
    unsafe fn store_as_i8(self, to: *mut i8, value: Floats) {
        // SAFETY: the caller vouches for eight bytes.
        unsafe {
            to.cast::<[i8; 8]>()
                .write_unaligned(value.map(|value| value as i8));
        }
    }

    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}

    #[inline(always)]
    fn prefetch_far(self, _at: *const u8) {}

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
    fn xor(self, a: Bytes, b: Bytes) -> Bytes {
        std::array::from_fn(|i| a[i] ^ b[i])
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], index: Bytes) -> Bytes {
        index.map(|byte| table[usize::from(byte & 0x0f)])
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
    fn dot(self, sum: Bytes, a: Bytes, b: Bytes) -> Bytes {
        let sum = doubles(sum);
        let product = |i: usize| i32::from(a[i]) * i32::from(b[i].cast_signed());
        from_doubles(std::array::from_fn(|i| {
            (4 * i..4 * i + 4).fold(sum[i], |sum, byte| sum.wrapping_add(product(byte)))
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
    fn to_float(self, a: Bytes) -> Floats {
        doubles(a).map(|double| double as f32)
    }
}
