//! NEON of 64-bit ARM, without more, with the instruction that multiplies and sums signed bytes
//! (dotprod), and with the one that does so for two rows by two (i8mm).
//!
//! A register has four lanes, so the vectors are [`Pair`]s, and pairs of pairs. Tested under an
//! emulator only (`docs/howto/add-a-isa.md`); its speed has not been measured.

use super::pair::Pair;
use super::{Dots, Isa, Kernel, Lanes, row_by_row};
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

const PLAIN: u8 = 0;
const DOTS: u8 = 1;
const MATRICES: u8 = 2;

/// Vectors of 128 bits, with the products of bytes that `BYTES` names and those before it.
#[derive(Clone, Copy)]
pub(crate) struct Quad<const BYTES: u8> {
    _proof: (),
}

pub(crate) type Neon = Pair<Quad<PLAIN>>;
pub(crate) type Dotprod = Pair<Quad<DOTS>>;
pub(crate) type I8mm = Pair<Quad<MATRICES>>;

macro_rules! isa {
    ($name:ident, $enter:ident, $features:literal, $($feature:tt),+) => {
        impl $name {
            /// The token, if the CPU has the features.
            pub(crate) fn detect() -> Option<Self> {
                let present = $(is_aarch64_feature_detected!($feature))&&+;
                present.then_some(Pair(Quad { _proof: () }))
            }
        }

        #[target_feature(enable = $features)]
        fn $enter<K: Kernel>(isa: $name, kernel: K) -> K::Output {
            kernel.run(isa)
        }

        impl Isa for $name {
            type Wide = Pair<Self>;

            #[inline(always)]
            fn wide(self) -> Pair<Self> {
                Pair(self)
            }

            fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
                // SAFETY: the token proves that the CPU has the features.
                unsafe { $enter(self, kernel) }
            }
        }
    };
}

isa!(Neon, enter_neon, "neon", "neon");
isa!(Dotprod, enter_dotprod, "neon,dotprod", "neon", "dotprod");
isa!(
    I8mm,
    enter_i8mm,
    "neon,dotprod,i8mm",
    "neon",
    "dotprod",
    "i8mm"
);

macro_rules! op {
    ($body:expr) => {{
        // SAFETY: the token proves that the CPU has the features; value intrinsics touch no memory.
        unsafe { $body }
    }};
}

impl<const BYTES: u8> Lanes for Quad<BYTES> {
    type F = float32x4_t;
    type I = uint8x16_t;
    const LANES: usize = 4;
    const DOTS: Dots = if BYTES >= DOTS {
        Dots::Signed
    } else {
        Dots::None
    };
    const MANY_REGISTERS: bool = false;
    const MATRICES: bool = BYTES == MATRICES;

    #[inline(always)]
    fn splat(self, value: f32) -> float32x4_t {
        op!(vdupq_n_f32(value))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        // SAFETY: the caller vouches for four floats; the token for the features.
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: float32x4_t) {
        // SAFETY: the caller vouches for four floats; the token for the features.
        unsafe { vst1q_f32(to, value) }
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const u16) -> float32x4_t {
        let out: float32x4_t;
        // SAFETY: the caller vouches for four halves; the token for the features. The intrinsic
        // needs a type that is not stable.
        unsafe {
            let halves = vld1_u16(from);
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) out, in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags));
        }
        out
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16, value: float32x4_t) {
        // SAFETY: the caller vouches for four halves; the token for the features.
        unsafe {
            let halves: uint16x4_t;
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) halves, in(vreg) value,
                options(pure, nomem, nostack, preserves_flags));
            vst1_u16(to, halves);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> float32x4_t {
        // SAFETY: the caller vouches for four values; the token for the features.
        unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(from)))) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> float32x4_t {
        // SAFETY: the caller vouches for four bytes; the token for the features.
        unsafe {
            let bytes = vcreate_s8(u64::from(from.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
        }
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vaddq_f32(a, b))
    }

    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vsubq_f32(a, b))
    }

    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vdivq_f32(a, b))
    }

    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        op!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vbslq_f32(vcgtq_f32(a, b), a, b))
    }

    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        op!(vbslq_f32(vcltq_f32(a, b), a, b))
    }

    #[inline(always)]
    fn abs(self, a: float32x4_t) -> float32x4_t {
        op!(vabsq_f32(a))
    }

    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        op!(vrndnq_f32(a))
    }

    #[inline(always)]
    fn zero_below(self, a: float32x4_t, x: float32x4_t, limit: float32x4_t) -> float32x4_t {
        op!({
            let kept = vbicq_u32(vreinterpretq_u32_f32(a), vcltq_f32(x, limit));
            vreinterpretq_f32_u32(kept)
        })
    }

    #[inline(always)]
    fn scale_exponent(self, a: float32x4_t, n: float32x4_t) -> float32x4_t {
        op!({
            let biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased)))
        })
    }

    #[inline(always)]
    unsafe fn store_as_i8(self, to: *mut i8, value: float32x4_t) {
        // SAFETY: the caller vouches for four bytes; the token for the features.
        unsafe {
            let words = vmovn_s32(vcvtq_s32_f32(value));
            let bytes = vreinterpret_u32_s8(vmovn_s16(vcombine_s16(words, words)));
            to.cast::<u32>().write_unaligned(vget_lane_u32::<0>(bytes));
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a hint reads nothing.
        unsafe {
            asm!("prfm pldl1keep, [{0}]", in(reg) at, options(readonly, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn prefetch_far(self, at: *const u8) {
        // SAFETY: a hint reads nothing.
        unsafe {
            asm!("prfm pldl2keep, [{0}]", in(reg) at, options(readonly, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn zero(self) -> uint8x16_t {
        op!(vdupq_n_u8(0))
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> uint8x16_t {
        // SAFETY: the caller vouches for sixteen bytes; the token for the features.
        unsafe { vld1q_u8(from) }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, value: uint8x16_t) {
        // SAFETY: the caller vouches for sixteen bytes; the token for the features.
        unsafe { vst1q_u8(to, value) }
    }

    #[inline(always)]
    unsafe fn broadcast4(self, from: *const i8) -> uint8x16_t {
        // SAFETY: the caller vouches for four bytes; the token for the features.
        unsafe { vreinterpretq_u8_u32(vdupq_n_u32(from.cast::<u32>().read_unaligned())) }
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> uint8x16_t {
        op!(vdupq_n_u8(value))
    }

    #[inline(always)]
    fn and(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        op!(vandq_u8(a, b))
    }

    #[inline(always)]
    fn or(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        op!(vorrq_u8(a, b))
    }

    #[inline(always)]
    fn xor(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        op!(veorq_u8(a, b))
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], index: uint8x16_t) -> uint8x16_t {
        // SAFETY: sixteen bytes are readable at `table`; the token proves the features.
        unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), index) }
    }

    #[inline(always)]
    fn shift_right16<const N: i32>(self, a: uint8x16_t) -> uint8x16_t {
        op!(vreinterpretq_u8_u16(vshrq_n_u16::<N>(
            vreinterpretq_u16_u8(a)
        )))
    }

    #[inline(always)]
    fn shift_left16<const N: i32>(self, a: uint8x16_t) -> uint8x16_t {
        op!(vreinterpretq_u8_u16(vshlq_n_u16::<N>(
            vreinterpretq_u16_u8(a)
        )))
    }

    #[inline(always)]
    fn add16(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        op!({
            let sum = vaddq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b));
            vreinterpretq_u8_u16(sum)
        })
    }

    #[inline(always)]
    fn add32(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        op!({
            let sum = vaddq_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
            vreinterpretq_u8_u32(sum)
        })
    }

    #[inline(always)]
    fn multiply_add_bytes(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        let ((a_even, a_odd), (b_even, b_odd)) = (unsigned_words(a), signed_words(b));
        op!({
            let sum = vmlaq_s16(vmulq_s16(a_even, b_even), a_odd, b_odd);
            vreinterpretq_u8_s16(sum)
        })
    }

    #[inline(always)]
    fn dot(self, sum: uint8x16_t, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        if BYTES >= DOTS {
            let mut out = sum;
            // SAFETY: the token proves that the CPU has the instruction; its intrinsic is not stable.
            unsafe {
                asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) out, in(vreg) a, in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags));
            }
            return out;
        }
        let ((a_even, a_odd), (b_even, b_odd)) = (unsigned_words(a), signed_words(b));
        op!({
            // Words of 32 bits hold an even and an odd product of each kind.
            let low = vmull_s16(vget_low_s16(a_even), vget_low_s16(b_even));
            let low = vmlal_s16(low, vget_low_s16(a_odd), vget_low_s16(b_odd));
            let high = vmull_high_s16(a_even, b_even);
            let high = vmlal_high_s16(high, a_odd, b_odd);
            let dots = vpaddq_s32(low, high);
            vreinterpretq_u8_s32(vaddq_s32(vreinterpretq_s32_u8(sum), dots))
        })
    }

    #[inline(always)]
    unsafe fn dots_of_two<const N: usize>(
        self,
        weights: [uint8x16_t; N],
        rows: [*const i8; 2],
    ) -> [uint8x16_t; 2] {
        const {
            assert!(
                N.is_multiple_of(2),
                "two vectors meet eight bytes of each row"
            )
        };
        // SAFETY: the caller vouches for the rows; the token for NEON.
        unsafe {
            if BYTES < MATRICES {
                return row_by_row(self, weights, rows);
            }
            // Of two lanes by two rows: lane 0 with both rows, then lane 1; lanes 2 and 3.
            let (mut low, mut high) = (vdupq_n_u8(0), vdupq_n_u8(0));
            for j in (0..N).step_by(2) {
                let first = vreinterpretq_u32_u8(weights[j]);
                let second = vreinterpretq_u32_u8(weights[j + 1]);
                let activations =
                    vcombine_s8(vld1_s8(rows[0].add(4 * j)), vld1_s8(rows[1].add(4 * j)));
                low = matrix_dot(low, vzip1q_u32(first, second), activations);
                high = matrix_dot(high, vzip2q_u32(first, second), activations);
            }
            let (low, high) = (vreinterpretq_u32_u8(low), vreinterpretq_u32_u8(high));
            let (first, second) = (vuzp1q_u32(low, high), vuzp2q_u32(low, high));
            [vreinterpretq_u8_u32(first), vreinterpretq_u8_u32(second)]
        }
    }

    #[inline(always)]
    fn add_pairs16(self, a: uint8x16_t) -> uint8x16_t {
        op!(vreinterpretq_u8_s32(vpaddlq_s16(vreinterpretq_s16_u8(a))))
    }

    #[inline(always)]
    fn abs_bytes(self, a: uint8x16_t) -> uint8x16_t {
        op!(vreinterpretq_u8_s8(vabsq_s8(vreinterpretq_s8_u8(a))))
    }

    #[inline(always)]
    fn apply_sign(self, a: uint8x16_t, sign: uint8x16_t) -> uint8x16_t {
        op!({
            let negative = vcltzq_s8(vreinterpretq_s8_u8(sign));
            let signed = vsubq_u8(veorq_u8(a, negative), negative);
            vandq_u8(signed, vtstq_u8(sign, sign))
        })
    }

    #[inline(always)]
    fn to_float(self, a: uint8x16_t) -> float32x4_t {
        op!(vcvtq_f32_s32(vreinterpretq_s32_u8(a)))
    }
}

/// `sum` plus the dot products of two rows of eight signed bytes with two others.
///
/// # Safety
/// The CPU has i8mm.
#[inline(always)]
unsafe fn matrix_dot(mut sum: uint8x16_t, a: uint32x4_t, b: int8x16_t) -> uint8x16_t {
    // SAFETY: the caller vouches for the instruction; its intrinsic is not stable.
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Even and odd bytes, zero-extended.
#[inline(always)]
fn unsigned_words(a: uint8x16_t) -> (int16x8_t, int16x8_t) {
    op!({
        let words = vreinterpretq_u16_u8(a);
        let even = vandq_u16(words, vdupq_n_u16(0xff));
        let odd = vshrq_n_u16::<8>(words);
        (vreinterpretq_s16_u16(even), vreinterpretq_s16_u16(odd))
    })
}

/// Even and odd bytes, sign-extended.
#[inline(always)]
fn signed_words(a: uint8x16_t) -> (int16x8_t, int16x8_t) {
    op!({
        let words = vreinterpretq_s16_u8(a);
        let even = vshrq_n_s16::<8>(vshlq_n_s16::<8>(words));
        (even, vshrq_n_s16::<8>(words))
    })
}
