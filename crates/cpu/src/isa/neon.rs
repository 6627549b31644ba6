//! NEON of 64-bit ARM, with and without the instruction that multiplies and sums signed bytes
//! (dotprod).
//!
//! A register has four lanes, so the vectors are [`Pair`]s, and pairs of pairs. Tested under an
//! emulator only (`docs/howto/add-a-isa.md`); its speed has not been measured. Matrix products of
//! bytes (i8mm) would want rows packed in pairs and are not used.

use super::pair::Pair;
use super::{Dots, Isa, Kernel, Lanes};
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

/// Vectors of 128 bits.
#[derive(Clone, Copy)]
pub(crate) struct Quad<const DOTPROD: bool> {
    _proof: (),
}

pub(crate) type Neon = Pair<Quad<false>>;
pub(crate) type Dotprod = Pair<Quad<true>>;

impl Neon {
    /// The token, if the CPU has the features.
    pub(crate) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Pair(Quad { _proof: () }))
    }
}

impl Dotprod {
    /// The token, if the CPU has the features.
    pub(crate) fn detect() -> Option<Self> {
        let present =
            is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod");
        present.then_some(Pair(Quad { _proof: () }))
    }
}

#[target_feature(enable = "neon")]
fn enter_neon<K: Kernel>(isa: Neon, kernel: K) -> K::Output {
    kernel.run(isa)
}

#[target_feature(enable = "neon,dotprod")]
fn enter_dotprod<K: Kernel>(isa: Dotprod, kernel: K) -> K::Output {
    kernel.run(isa)
}

macro_rules! isa {
    ($name:ident, $enter:ident) => {
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

isa!(Neon, enter_neon);
isa!(Dotprod, enter_dotprod);

macro_rules! op {
    ($body:expr) => {{
        // SAFETY: the token proves that the CPU has the features; value intrinsics touch no memory.
        unsafe { $body }
    }};
}

impl<const DOTPROD: bool> Lanes for Quad<DOTPROD> {
    type F = float32x4_t;
    type I = uint8x16_t;
    const LANES: usize = 4;
    const DOTS: Dots = if DOTPROD { Dots::Signed } else { Dots::None };
    const MANY_REGISTERS: bool = false;

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
        if DOTPROD {
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
