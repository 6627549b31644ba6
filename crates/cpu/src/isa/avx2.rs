//! AVX2 with FMA and F16C.
//!
//! Every intrinsic below is sound because a value of [`Narrow`] only comes from detection.

use super::pair::Pair;
use super::{Dots, Isa, Kernel, Lanes};
#[allow(clippy::wildcard_imports, reason = "a file of intrinsics")]
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// How 256 bits of bytes are multiplied and summed: what the instruction sets of this width differ in.
pub(crate) trait Dot: Copy + Send + Sync {
    /// [`Lanes::DOTS`]
    const DOTS: Dots;
    /// [`Lanes::MANY_REGISTERS`]
    const MANY_REGISTERS: bool;

    /// [`Lanes::dot`]
    ///
    /// # Safety
    /// The CPU has AVX2 and the features of this way.
    unsafe fn dot(sum: __m256i, a: __m256i, b: __m256i) -> __m256i;
}

/// Vectors of 256 bits.
#[derive(Clone, Copy)]
pub(crate) struct Narrow<D> {
    _proof: PhantomData<D>,
}

impl<D: Dot> Narrow<D> {
    /// # Safety
    /// The CPU has AVX2, FMA, F16C and the features of `D`.
    pub(super) unsafe fn assume() -> Self {
        Self {
            _proof: PhantomData,
        }
    }
}

/// Words multiply and add; bytes are widened to them.
#[derive(Clone, Copy)]
pub(crate) struct Widened;

impl Dot for Widened {
    const DOTS: Dots = Dots::None;
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    unsafe fn dot(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller vouches for AVX2.
        unsafe {
            let low = _mm256_set1_epi16(0xff);
            let evens = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b));
            let odds = _mm256_srai_epi16::<8>(b);
            let evens = _mm256_madd_epi16(_mm256_and_si256(a, low), evens);
            let odds = _mm256_madd_epi16(_mm256_srli_epi16::<8>(a), odds);
            _mm256_add_epi32(sum, _mm256_add_epi32(evens, odds))
        }
    }
}

pub(crate) type Avx2 = Narrow<Widened>;

impl Avx2 {
    /// The token, if the CPU has the features.
    pub(crate) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        // SAFETY: all features were found.
        present.then(|| unsafe { Self::assume() })
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn enter<K: Kernel>(isa: Avx2, kernel: K) -> K::Output {
    kernel.run(isa)
}

impl Isa for Avx2 {
    type Wide = Pair<Self>;

    #[inline(always)]
    fn wide(self) -> Pair<Self> {
        Pair(self)
    }

    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: the token proves that the CPU has the features.
        unsafe { enter(self, kernel) }
    }
}

macro_rules! op {
    ($body:expr) => {{
        // SAFETY: the token proves that the CPU has the features; value intrinsics touch no memory.
        unsafe { $body }
    }};
}

impl<D: Dot> Lanes for Narrow<D> {
    type F = __m256;
    type I = __m256i;
    const LANES: usize = 8;
    const DOTS: Dots = D::DOTS;
    const MANY_REGISTERS: bool = D::MANY_REGISTERS;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        op!(_mm256_set1_ps(value))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: the caller vouches for eight floats; the token for the features.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m256) {
        // SAFETY: the caller vouches for eight floats; the token for the features.
        unsafe { _mm256_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const u16) -> __m256 {
        // SAFETY: the caller vouches for eight halves; the token for the features.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16, value: __m256) {
        // SAFETY: the caller vouches for eight halves; the token for the features.
        unsafe {
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
            _mm_storeu_si128(to.cast(), halves);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m256 {
        // SAFETY: the caller vouches for eight values; the token for the features.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> __m256 {
        // SAFETY: the caller vouches for eight bytes; the token for the features.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        op!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        op!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }

    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        op!(_mm256_round_ps::<
            { _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC },
        >(a))
    }

    #[inline(always)]
    fn zero_below(self, a: __m256, x: __m256, limit: __m256) -> __m256 {
        op!(_mm256_and_ps(a, _mm256_cmp_ps::<_CMP_NLT_UQ>(x, limit)))
    }

    #[inline(always)]
    fn scale_exponent(self, a: __m256, n: __m256) -> __m256 {
        op!({
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)))
        })
    }

    #[inline(always)]
    unsafe fn store_as_i8(self, to: *mut i8, value: __m256) {
        // SAFETY: the caller vouches for eight bytes; the token for the features.
        unsafe {
            let doubles = _mm256_cvtps_epi32(value);
            let words = _mm256_packs_epi32(doubles, doubles);
            let bytes = _mm256_packs_epi16(words, words);
            let low = _mm256_castsi256_si128(bytes);
            let high = _mm256_extracti128_si256::<1>(bytes);
            _mm_storel_epi64(to.cast(), _mm_unpacklo_epi32(low, high));
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T0>(at.cast()));
    }

    #[inline(always)]
    fn prefetch_far(self, at: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T1>(at.cast()));
    }

    #[inline(always)]
    fn zero(self) -> __m256i {
        op!(_mm256_setzero_si256())
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> __m256i {
        // SAFETY: the caller vouches for 32 bytes; the token for the features.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, value: __m256i) {
        // SAFETY: the caller vouches for 32 bytes; the token for the features.
        unsafe { _mm256_storeu_si256(to.cast(), value) }
    }

    #[inline(always)]
    unsafe fn broadcast4(self, from: *const i8) -> __m256i {
        // SAFETY: the caller vouches for four bytes; the token for the features.
        unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> __m256i {
        op!(_mm256_set1_epi8(value.cast_signed()))
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_and_si256(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_xor_si256(a, b))
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], index: __m256i) -> __m256i {
        // SAFETY: sixteen bytes are readable at `table`; the token proves the features.
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index)
        }
    }

    #[inline(always)]
    fn shift_right16<const N: i32>(self, a: __m256i) -> __m256i {
        op!(_mm256_srli_epi16::<N>(a))
    }

    #[inline(always)]
    fn shift_left16<const N: i32>(self, a: __m256i) -> __m256i {
        op!(_mm256_slli_epi16::<N>(a))
    }

    #[inline(always)]
    fn add16(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_add_epi16(a, b))
    }

    #[inline(always)]
    fn add32(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_add_epi32(a, b))
    }

    #[inline(always)]
    fn multiply_add_bytes(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_maddubs_epi16(a, b))
    }

    #[inline(always)]
    fn dot(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        op!(D::dot(sum, a, b))
    }

    #[inline(always)]
    fn add_pairs16(self, a: __m256i) -> __m256i {
        op!(_mm256_madd_epi16(a, _mm256_set1_epi16(1)))
    }

    #[inline(always)]
    fn abs_bytes(self, a: __m256i) -> __m256i {
        op!(_mm256_abs_epi8(a))
    }

    #[inline(always)]
    fn apply_sign(self, a: __m256i, sign: __m256i) -> __m256i {
        op!(_mm256_sign_epi8(a, sign))
    }

    #[inline(always)]
    fn to_float(self, a: __m256i) -> __m256 {
        op!(_mm256_cvtepi32_ps(a))
    }
}
