//! AVX-VNNI: AVX2 with products of bytes summed to 32 bits in one instruction.
//!
//! Everything else is [`avx2`](super::avx2), to the register. Tested under an emulator only
//! (`docs/howto/add-a-isa.md`); its speed has not been measured.

use super::avx2::{Avx2, Dot, Narrow};
use super::pair::Pair;
use super::{Dots, Isa, Kernel};
use std::arch::x86_64::{__m256i, _mm256_dpbusd_avx_epi32};

/// VNNI as AVX encodes it.
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

impl Dot for Vnni {
    const DOTS: Dots = Dots::Unsigned;
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    unsafe fn dot(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller vouches for the features.
        unsafe { _mm256_dpbusd_avx_epi32(sum, a, b) }
    }
}

pub(crate) type AvxVnni = Narrow<Vnni>;

/// The token, if the CPU has the features.
pub(crate) fn detect() -> Option<AvxVnni> {
    let present = Avx2::detect().is_some() && is_x86_feature_detected!("avxvnni");
    // SAFETY: all features were found.
    present.then(|| unsafe { Narrow::assume() })
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn enter<K: Kernel>(isa: AvxVnni, kernel: K) -> K::Output {
    kernel.run(isa)
}

impl Isa for AvxVnni {
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
