//! AVX-512 (F, BW, DQ, VL) with VNNI: vectors of 512 bits beside those of 256.
//!
//! Every intrinsic below is sound because a value of [`Wide`] only comes from [`detect`].

use super::avx2::{Dot, Narrow};
use super::{Dots, Isa, Kernel, Lanes};
#[allow(clippy::wildcard_imports, reason = "a file of intrinsics")]
use std::arch::x86_64::*;

/// VNNI as AVX-512 encodes it.
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

impl Dot for Vnni {
    const DOTS: Dots = Dots::Unsigned;
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    unsafe fn dot(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller vouches for the features.
        unsafe { _mm256_dpbusd_epi32(sum, a, b) }
    }
}

pub(crate) type Avx512 = Narrow<Vnni>;

/// The token, if the CPU has the features.
pub(crate) fn detect() -> Option<Avx512> {
    let present = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni");
    // SAFETY: all features were found.
    present.then(|| unsafe { Narrow::assume() })
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn enter<K: Kernel>(isa: Avx512, kernel: K) -> K::Output {
    kernel.run(isa)
}

impl Isa for Avx512 {
    type Wide = Wide;

    #[inline(always)]
    fn wide(self) -> Wide {
        Wide(self)
    }

    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: the token proves that the CPU has the features.
        unsafe { enter(self, kernel) }
    }
}

/// Vectors of 512 bits.
#[derive(Clone, Copy)]
pub(crate) struct Wide(Avx512);

macro_rules! op {
    ($body:expr) => {{
        // SAFETY: the token proves that the CPU has the features; value intrinsics touch no memory.
        unsafe { $body }
    }};
}

impl Lanes for Wide {
    type F = __m512;
    type I = __m512i;
    const LANES: usize = 16;
    const DOTS: Dots = Dots::Unsigned;
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        op!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller vouches for sixteen floats; the token for the features.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m512) {
        // SAFETY: the caller vouches for sixteen floats; the token for the features.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const u16) -> __m512 {
        // SAFETY: the caller vouches for sixteen halves; the token for the features.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16, value: __m512) {
        // SAFETY: the caller vouches for sixteen halves; the token for the features.
        unsafe {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
            _mm256_storeu_si256(to.cast(), halves);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m512 {
        // SAFETY: the caller vouches for sixteen values; the token for the features.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> __m512 {
        // SAFETY: the caller vouches for sixteen bytes; the token for the features.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        op!(_mm512_abs_ps(a))
    }

    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        op!(_mm512_roundscale_ps::<
            { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
        >(a))
    }

    #[inline(always)]
    fn zero_below(self, a: __m512, x: __m512, limit: __m512) -> __m512 {
        op!(_mm512_maskz_mov_ps(
            _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit),
            a
        ))
    }

    #[inline(always)]
    fn scale_exponent(self, a: __m512, n: __m512) -> __m512 {
        op!({
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_mul_ps(a, _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
        })
    }

    #[inline(always)]
    unsafe fn store_as_i8(self, to: *mut i8, value: __m512) {
        // SAFETY: the caller vouches for sixteen bytes; the token for the features.
        unsafe {
            let bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(value));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        self.0.prefetch(at);
    }

    #[inline(always)]
    fn prefetch_far(self, at: *const u8) {
        self.0.prefetch_far(at);
    }

    #[inline(always)]
    fn zero(self) -> __m512i {
        op!(_mm512_setzero_si512())
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> __m512i {
        // SAFETY: the caller vouches for 64 bytes; the token for the features.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, value: __m512i) {
        // SAFETY: the caller vouches for 64 bytes; the token for the features.
        unsafe { _mm512_storeu_si512(to.cast(), value) }
    }

    #[inline(always)]
    unsafe fn broadcast4(self, from: *const i8) -> __m512i {
        // SAFETY: the caller vouches for four bytes; the token for the features.
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> __m512i {
        op!(_mm512_set1_epi8(value.cast_signed()))
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_xor_si512(a, b))
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], index: __m512i) -> __m512i {
        // SAFETY: sixteen bytes are readable at `table`; the token proves the features.
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index)
        }
    }

    #[inline(always)]
    fn shift_right16<const N: i32>(self, a: __m512i) -> __m512i {
        op!(_mm512_srl_epi16(a, _mm_cvtsi32_si128(N)))
    }

    #[inline(always)]
    fn shift_left16<const N: i32>(self, a: __m512i) -> __m512i {
        op!(_mm512_sll_epi16(a, _mm_cvtsi32_si128(N)))
    }

    #[inline(always)]
    fn add16(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_add_epi16(a, b))
    }

    #[inline(always)]
    fn add32(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn multiply_add_bytes(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_maddubs_epi16(a, b))
    }

    #[inline(always)]
    fn dot(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_dpbusd_epi32(sum, a, b))
    }

    #[inline(always)]
    fn add_pairs16(self, a: __m512i) -> __m512i {
        op!(_mm512_madd_epi16(a, _mm512_set1_epi16(1)))
    }

    #[inline(always)]
    fn abs_bytes(self, a: __m512i) -> __m512i {
        op!(_mm512_abs_epi8(a))
    }

    #[inline(always)]
    fn apply_sign(self, a: __m512i, sign: __m512i) -> __m512i {
        op!({
            let negative = _mm512_movepi8_mask(sign);
            let signed = _mm512_mask_sub_epi8(a, negative, _mm512_setzero_si512(), a);
            _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(sign, sign), signed)
        })
    }

    #[inline(always)]
    fn to_float(self, a: __m512i) -> __m512 {
        op!(_mm512_cvtepi32_ps(a))
    }
}
