//! One kernel, many instruction sets: kernels are written once over [`Isa`].
//!
//! The model is eight lanes of `f32` ([`Isa::F`]) and 256 bits of integers ([`Isa::I`]). Every
//! operation has one exact result (multiply-add is fused everywhere, integer sums never
//! saturate within the bounds their callers prove), so all instruction sets give the same bits.
//!
//! Kernels hold vectors in variables and arrays and walk them with plain loops: a closure over
//! vectors (`array::from_fn`, `map`, `fold`) is compiled without the instruction set's features
//! unless it happens to be inlined, and then passes every vector through memory.

#[cfg(target_arch = "x86_64")]
mod avx2;
pub(crate) mod math;
mod scalar;

use std::fmt;

/// Work written once for all instruction sets.
pub(crate) trait Kernel {
    /// What the work returns.
    type Output;

    /// Does the work. Implementations are `#[inline(always)]`, so that they compile with the
    /// features of the instruction set that runs them.
    fn run<I: Isa>(self, isa: I) -> Self::Output;
}

/// The operations that kernels are made of. A value of the type proves that the CPU has them.
pub(crate) trait Isa: Copy + Send + Sync {
    /// Eight `f32` lanes.
    type F: Copy;
    /// 256 bits: 32 bytes, 16 words or 8 double words.
    type I: Copy;

    /// Runs a kernel compiled for this instruction set.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, value: f32) -> Self::F;
    /// # Safety
    /// Eight floats are readable at `from`.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// # Safety
    /// Eight floats are writable at `to`.
    unsafe fn store(self, to: *mut f32, value: Self::F);
    /// # Safety
    /// Eight half floats are readable at `from`.
    unsafe fn load_half(self, from: *const u16) -> Self::F;
    /// Rounds to nearest even; magnitudes beyond the range become infinite.
    ///
    /// # Safety
    /// Eight half floats are writable at `to`.
    unsafe fn store_half(self, to: *mut u16, value: Self::F);
    /// # Safety
    /// Eight `bf16` are readable at `from`.
    unsafe fn load_bf16(self, from: *const u16) -> Self::F;
    /// # Safety
    /// Eight signed bytes are readable at `from`.
    unsafe fn load_i8(self, from: *const i8) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger lane; `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller lane; `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Clears the sign bits.
    fn abs(self, a: Self::F) -> Self::F;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// Zero where `x < limit`, else `a`; also where `x` is NaN.
    fn zero_below(self, a: Self::F, x: Self::F, limit: Self::F) -> Self::F;
    /// `a · 2^n` for integral `n` in `-126..=127`.
    fn scale_exponent(self, a: Self::F, n: Self::F) -> Self::F;
    fn to_array(self, a: Self::F) -> [f32; 8];
    /// Writes integral lanes within `-128..=127` as eight bytes.
    ///
    /// # Safety
    /// Eight bytes are writable at `to`.
    unsafe fn store_as_i8(self, to: *mut i8, value: Self::F);

    /// Asks for the cache line at `at`; a hint, any address will do.
    fn prefetch(self, at: *const u8);
    fn zero(self) -> Self::I;
    /// # Safety
    /// 32 bytes are readable at `from`.
    unsafe fn load_bytes(self, from: *const u8) -> Self::I;
    /// # Safety
    /// 32 bytes are writable at `to`.
    unsafe fn store_bytes(self, to: *mut u8, value: Self::I);
    /// The four bytes at `from`, eight times.
    ///
    /// # Safety
    /// Four bytes are readable at `from`.
    unsafe fn broadcast4(self, from: *const i8) -> Self::I;
    fn splat_byte(self, value: u8) -> Self::I;
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shifts each 16-bit lane right, zeros in.
    fn shift_right16<const N: i32>(self, a: Self::I) -> Self::I;
    /// Shifts each 16-bit lane left, zeros in.
    fn shift_left16<const N: i32>(self, a: Self::I) -> Self::I;
    fn add16(self, a: Self::I, b: Self::I) -> Self::I;
    fn add32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Unsigned bytes of `a` times signed bytes of `b`, neighbours summed to 16 bits.
    /// Callers prove that no sum leaves the 16-bit range.
    fn multiply_add_bytes(self, a: Self::I, b: Self::I) -> Self::I;
    /// Neighbouring signed 16-bit lanes summed to 32 bits.
    fn add_pairs16(self, a: Self::I) -> Self::I;
    /// Absolute values of signed bytes; 128 for -128, read as unsigned.
    fn abs_bytes(self, a: Self::I) -> Self::I;
    /// Bytes of `a` negated where the byte of `sign` is negative, zero where it is zero.
    fn apply_sign(self, a: Self::I, sign: Self::I) -> Self::I;
    /// Signed 32-bit lanes as floats.
    fn to_float(self, a: Self::I) -> Self::F;
}

/// An instruction set that this CPU has.
#[derive(Clone, Copy)]
pub struct IsaChoice(Choice);

#[derive(Clone, Copy)]
enum Choice {
    Scalar(scalar::Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
}

/// The asked-for instruction set is unknown or not present.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction set `{wanted}` is not available on this CPU; available: {}", .available.join(", "))]
pub struct UnknownIsa {
    wanted: String,
    available: Vec<&'static str>,
}

impl IsaChoice {
    /// Every instruction set of this CPU, slowest first.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut, reason = "only x86-64 adds to the list")]
        let mut all = vec![Self(Choice::Scalar(scalar::Scalar))];
        #[cfg(target_arch = "x86_64")]
        if let Some(isa) = avx2::Avx2::detect() {
            all.push(Self(Choice::Avx2(isa)));
        }
        all
    }

    /// The fastest one.
    pub fn best() -> Self {
        Self::available()
            .pop()
            .unwrap_or(Self(Choice::Scalar(scalar::Scalar)))
    }

    /// The one of that name (`scalar`, `avx2`).
    pub fn named(name: &str) -> Result<Self, UnknownIsa> {
        let all = Self::available();
        all.iter()
            .copied()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| UnknownIsa {
                wanted: name.to_owned(),
                available: all.iter().map(|isa| isa.name()).collect(),
            })
    }

    /// The name, as in `--isa`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Choice::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(_) => "avx2",
        }
    }

    /// Runs a kernel on it.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Choice::Scalar(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(isa) => isa.vectorize(kernel),
        }
    }
}

impl fmt::Debug for IsaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;
