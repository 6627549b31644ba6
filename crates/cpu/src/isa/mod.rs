//! One kernel, many instruction sets: kernels are written once over [`Isa`].
//!
//! The model is vectors of [`Lanes`]: eight of `f32` beside 256 bits of integers, or twice as much
//! ([`Isa::Wide`]) where outputs do not depend on one another. Every operation has one exact result
//! (multiply-add is fused everywhere, integer sums never saturate within the bounds their callers
//! prove), so all instruction sets give the same bits.
//!
//! Kernels hold vectors in variables and arrays and walk them with plain loops: a closure over
//! vectors (`array::from_fn`, `map`, `fold`) is compiled without the instruction set's features
//! unless it happens to be inlined, and then passes every vector through memory.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pair;
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

/// The instruction that multiplies bytes by signed bytes and adds to 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dots {
    /// There is none; a dot product takes several.
    None,
    /// It multiplies unsigned bytes.
    Unsigned,
    /// It multiplies signed bytes.
    #[cfg_attr(
        not(target_arch = "aarch64"),
        expect(dead_code, reason = "as ARM does")
    )]
    Signed,
}

/// Vectors of one width and the operations that kernels are made of. A value of the type proves
/// that the CPU has them.
pub(crate) trait Lanes: Copy + Send + Sync {
    /// Lanes of `f32`.
    type F: Copy;
    /// As many bits of integers: bytes, words or double words.
    type I: Copy;
    /// How many lanes of 32 bits there are.
    const LANES: usize;
    /// Whether [`Lanes::dot`] is one instruction, and of which bytes.
    const DOTS: Dots;
    /// Whether registers hold a tile of eight such vectors twice, as 32 of the wider ones do.
    const MANY_REGISTERS: bool;
    /// Whether [`Lanes::dots_of_two`] takes fewer instructions than [`Lanes::dot`] for each row.
    const MATRICES: bool = false;

    fn splat(self, value: f32) -> Self::F;
    /// # Safety
    /// A vector of floats is readable at `from`.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// # Safety
    /// A vector of floats is writable at `to`.
    unsafe fn store(self, to: *mut f32, value: Self::F);
    /// # Safety
    /// As many half floats as lanes are readable at `from`.
    unsafe fn load_half(self, from: *const u16) -> Self::F;
    /// Rounds to nearest even; magnitudes beyond the range become infinite.
    ///
    /// # Safety
    /// As many half floats as lanes are writable at `to`.
    unsafe fn store_half(self, to: *mut u16, value: Self::F);
    /// # Safety
    /// As many `bf16` as lanes are readable at `from`.
    unsafe fn load_bf16(self, from: *const u16) -> Self::F;
    /// # Safety
    /// As many signed bytes as lanes are readable at `from`.
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
    /// Writes integral lanes within `-128..=127` as bytes.
    ///
    /// # Safety
    /// As many bytes as lanes are writable at `to`.
    unsafe fn store_as_i8(self, to: *mut i8, value: Self::F);

    /// Asks for the cache line at `at`; a hint, any address will do.
    fn prefetch(self, at: *const u8);
    /// The same into the second-level cache, which can wait for more lines at once.
    fn prefetch_far(self, at: *const u8);
    fn zero(self) -> Self::I;
    /// # Safety
    /// A vector of bytes is readable at `from`.
    unsafe fn load_bytes(self, from: *const u8) -> Self::I;
    /// # Safety
    /// A vector of bytes is writable at `to`.
    unsafe fn store_bytes(self, to: *mut u8, value: Self::I);
    /// The four bytes at `from` in every lane.
    ///
    /// # Safety
    /// Four bytes are readable at `from`.
    unsafe fn broadcast4(self, from: *const i8) -> Self::I;
    fn splat_byte(self, value: u8) -> Self::I;
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    fn xor(self, a: Self::I, b: Self::I) -> Self::I;
    /// The byte of `table` that each byte of `index` names; callers prove that all are below 16.
    fn look_up(self, table: &[u8; 16], index: Self::I) -> Self::I;
    /// Shifts each 16-bit lane right, zeros in.
    fn shift_right16<const N: i32>(self, a: Self::I) -> Self::I;
    /// Shifts each 16-bit lane left, zeros in.
    fn shift_left16<const N: i32>(self, a: Self::I) -> Self::I;
    fn add16(self, a: Self::I, b: Self::I) -> Self::I;
    fn add32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Unsigned bytes of `a` times signed bytes of `b`, neighbours summed to 16 bits.
    /// Callers prove that no sum leaves the 16-bit range.
    fn multiply_add_bytes(self, a: Self::I, b: Self::I) -> Self::I;
    /// `sum` plus, in each 32-bit lane, bytes of `a` times signed bytes of `b`; exact. Bytes of `a`
    /// are signed with [`Dots::Signed`], else unsigned.
    fn dot(self, sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// For each of two rows, in each 32-bit lane, the bytes of `weights[j]` times the four signed
    /// bytes at `row + 4·j`, over all `j`; exact. Weights are signed as in [`Lanes::dot`]; `N` is even.
    ///
    /// # Safety
    /// `4·N` bytes are readable at both rows.
    #[inline(always)]
    unsafe fn dots_of_two<const N: usize>(
        self,
        weights: [Self::I; N],
        rows: [*const i8; 2],
    ) -> [Self::I; 2] {
        // SAFETY: the caller vouches for the rows.
        unsafe { row_by_row(self, weights, rows) }
    }
    /// Neighbouring signed 16-bit lanes summed to 32 bits.
    fn add_pairs16(self, a: Self::I) -> Self::I;
    /// Absolute values of signed bytes; 128 for -128, read as unsigned.
    fn abs_bytes(self, a: Self::I) -> Self::I;
    /// Bytes of `a` negated where the byte of `sign` is negative, zero where it is zero.
    fn apply_sign(self, a: Self::I, sign: Self::I) -> Self::I;
    /// Signed 32-bit lanes as floats.
    fn to_float(self, a: Self::I) -> Self::F;
}

/// [`Lanes::dots_of_two`] by [`Lanes::dot`].
///
/// # Safety
/// `4·N` bytes are readable at both rows.
#[inline(always)]
unsafe fn row_by_row<L: Lanes, const N: usize>(
    lanes: L,
    weights: [L::I; N],
    rows: [*const i8; 2],
) -> [L::I; 2] {
    let mut sums = [lanes.zero(); 2];
    for (j, &weights) in weights.iter().enumerate() {
        for (sum, row) in sums.iter_mut().zip(rows) {
            // SAFETY: the caller vouches for the rows.
            *sum = lanes.dot(*sum, weights, unsafe { lanes.broadcast4(row.add(4 * j)) });
        }
    }
    sums
}

/// An instruction set: vectors of eight lanes, the same twice as wide, and code compiled for both.
pub(crate) trait Isa: Lanes {
    /// Vectors of sixteen lanes.
    type Wide: Lanes;

    /// The wider vectors.
    fn wide(self) -> Self::Wide;

    /// Runs a kernel compiled for this instruction set.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// The lanes, first lane first.
    #[inline(always)]
    fn to_array(self, a: Self::F) -> [f32; 8] {
        const { assert!(Self::LANES == 8, "the narrow vectors have eight lanes") };
        let mut out = [0.0; 8];
        // SAFETY: `out` holds eight floats.
        unsafe { self.store(out.as_mut_ptr(), a) };
        out
    }
}

/// An instruction set that this CPU has.
#[derive(Clone, Copy)]
pub struct IsaChoice(Choice);

#[derive(Clone, Copy)]
enum Choice {
    Scalar(scalar::Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(avxvnni::AvxVnni),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    #[cfg(target_arch = "aarch64")]
    Dotprod(neon::Dotprod),
    #[cfg(target_arch = "aarch64")]
    I8mm(neon::I8mm),
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const EMULATED: &str = "was run under an emulator only, never on a CPU that has it";

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
        #[allow(unused_mut, reason = "other processors add nothing to the list")]
        let mut all = vec![Self(Choice::Scalar(scalar::Scalar))];
        #[cfg(target_arch = "x86_64")]
        if let Some(isa) = avx2::Avx2::detect() {
            all.push(Self(Choice::Avx2(isa)));
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(isa) = avxvnni::detect() {
            all.push(Self(Choice::AvxVnni(isa)));
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(isa) = avx512::detect() {
            all.push(Self(Choice::Avx512(isa)));
        }
        #[cfg(target_arch = "aarch64")]
        if let Some(isa) = neon::Neon::detect() {
            all.push(Self(Choice::Neon(isa)));
        }
        #[cfg(target_arch = "aarch64")]
        if let Some(isa) = neon::Dotprod::detect() {
            all.push(Self(Choice::Dotprod(isa)));
        }
        #[cfg(target_arch = "aarch64")]
        if let Some(isa) = neon::I8mm::detect() {
            all.push(Self(Choice::I8mm(isa)));
        }
        all
    }

    /// The fastest one.
    pub fn best() -> Self {
        Self::available()
            .pop()
            .unwrap_or(Self(Choice::Scalar(scalar::Scalar)))
    }

    /// The one of that name (`scalar`, `avx2`, `avxvnni`, `avx512`, `neon`, `dotprod`,
    /// `i8mm`).
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
            #[cfg(target_arch = "x86_64")]
            Choice::AvxVnni(_) => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Choice::Neon(_) => "neon",
            #[cfg(target_arch = "aarch64")]
            Choice::Dotprod(_) => "dotprod",
            #[cfg(target_arch = "aarch64")]
            Choice::I8mm(_) => "i8mm",
        }
    }

    /// What was not done with it, if anything, as the rest of a sentence.
    pub fn unverified(self) -> Option<&'static str> {
        match self.0 {
            Choice::Scalar(_) => None,
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(_) | Choice::Avx512(_) => None,
            #[cfg(target_arch = "x86_64")]
            Choice::AvxVnni(_) => Some(EMULATED),
            #[cfg(target_arch = "aarch64")]
            Choice::Neon(_) | Choice::Dotprod(_) | Choice::I8mm(_) => Some(EMULATED),
        }
    }

    /// Runs a kernel on it.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Choice::Scalar(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Choice::AvxVnni(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            Choice::Neon(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            Choice::Dotprod(isa) => isa.vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            Choice::I8mm(isa) => isa.vectorize(kernel),
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
