//! How codes lie in a record, and how they become the bytes that products read.
//!
//! A record has 32 columns of sixteen rows. In a vector of 64 bytes, double word `r` holds four
//! consecutive columns of row `r`; vector `j` covers columns `4j..4j + 4`. Codes of fewer bits share
//! bytes:
//!
//! - a vector of *nibbles* `v` holds vector `v` low and vector `v + 4` high,
//! - a vector of *pairs* `h` holds vectors `4h..4h + 4`, two bits each, from the lowest bits on,
//! - a vector of *single bits* holds bit `j` of each byte for vector `j`.
//!
//! 2 bits are two vectors of pairs; 3 bits a vector of single bits more. 4 bits are four vectors of
//! nibbles; 5 bits a vector of single bits more, 6 bits two vectors of pairs more. 8 bits are eight
//! vectors of bytes. Codes through a table are its nibbles.

use super::layout::{LANES, VECTOR};
use crate::isa::Lanes;
use forthwith_core::format::{MICROSCALING, NONLINEAR};

/// One way in which codes lie in a record.
pub(crate) trait CodeForm: Copy {
    /// Bits of a stored code.
    const STORED_BITS: usize;
    /// Bits of an expanded code, which decide how sums may accumulate; those of 8 bits are signed.
    const BITS: u32;
    /// What the expanded codes are too large by.
    const SHIFT: i32;
    /// The values that the codes stand for, if not themselves.
    const TABLE: Option<&'static [i8; 16]>;

    /// The vectors `v` and `v + 4` of expanded codes, for `v` in 0..4.
    ///
    /// # Safety
    /// `STORED_BITS` vectors of 64 bytes are readable at `codes`.
    unsafe fn pair<I: Lanes>(isa: I, codes: *const u8, v: usize) -> (I::I, I::I);
}

/// Codes of that many bits: 2 to 6 unsigned, 8 signed.
#[derive(Clone, Copy)]
pub(crate) struct Bits<const BITS: u32>;

/// Nibbles that stand for the sixteen signed bytes of [`NONLINEAR`].
#[derive(Clone, Copy)]
pub(crate) struct Nonlinear;

/// Nibbles that stand for [`MICROSCALING`], expanded to 5 bits around 12.
#[derive(Clone, Copy)]
pub(crate) struct Microscaling;

impl<const BITS: u32> CodeForm for Bits<BITS> {
    const STORED_BITS: usize = BITS as usize;
    const BITS: u32 = BITS;
    const SHIFT: i32 = 0;
    const TABLE: Option<&'static [i8; 16]> = None;

    #[inline(always)]
    unsafe fn pair<I: Lanes>(isa: I, codes: *const u8, v: usize) -> (I::I, I::I) {
        // SAFETY: the caller vouches for as many vectors as bits.
        unsafe {
            match BITS {
                2 => pairs(isa, codes, v),
                3 => {
                    let (low, high) = pairs(isa, codes, v);
                    let bits = isa.load_bytes(codes.add(2 * VECTOR));
                    let (first, second) = third_bits(isa, bits, v);
                    (isa.or(low, first), isa.or(high, second))
                }
                4 => nibbles(isa, codes, v),
                5 => {
                    let (low, high) = nibbles(isa, codes, v);
                    let bits = isa.load_bytes(codes.add(4 * VECTOR));
                    let (first, second) = fifth_bits(isa, bits, v);
                    (isa.or(low, first), isa.or(high, second))
                }
                6 => {
                    let (low, high) = nibbles(isa, codes, v);
                    let (first, second) = upper_pairs(isa, codes.add(4 * VECTOR), v);
                    (isa.or(low, first), isa.or(high, second))
                }
                _ => (
                    isa.load_bytes(codes.add(VECTOR * v)),
                    isa.load_bytes(codes.add(VECTOR * (v + 4))),
                ),
            }
        }
    }
}

impl CodeForm for Nonlinear {
    const STORED_BITS: usize = 4;
    const BITS: u32 = 8;
    const SHIFT: i32 = 0;
    const TABLE: Option<&'static [i8; 16]> = Some(&NONLINEAR);

    #[inline(always)]
    unsafe fn pair<I: Lanes>(isa: I, codes: *const u8, v: usize) -> (I::I, I::I) {
        const VALUES: [u8; 16] = raised(&NONLINEAR, 0);
        // SAFETY: passed on to the caller.
        let (low, high) = unsafe { nibbles(isa, codes, v) };
        (isa.look_up(&VALUES, low), isa.look_up(&VALUES, high))
    }
}

impl CodeForm for Microscaling {
    const STORED_BITS: usize = 4;
    const BITS: u32 = 5;
    const SHIFT: i32 = 12;
    const TABLE: Option<&'static [i8; 16]> = Some(&MICROSCALING);

    #[inline(always)]
    unsafe fn pair<I: Lanes>(isa: I, codes: *const u8, v: usize) -> (I::I, I::I) {
        const VALUES: [u8; 16] = raised(&MICROSCALING, 12);
        // SAFETY: passed on to the caller.
        let (low, high) = unsafe { nibbles(isa, codes, v) };
        (isa.look_up(&VALUES, low), isa.look_up(&VALUES, high))
    }
}

/// The bytes of a table, each larger by `by`.
const fn raised(table: &[i8; 16], by: i8) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (table[i] + by).cast_unsigned();
        i += 1;
    }
    out
}

/// # Safety
/// Four vectors are readable at `codes`.
#[inline(always)]
unsafe fn nibbles<I: Lanes>(isa: I, codes: *const u8, v: usize) -> (I::I, I::I) {
    // SAFETY: the caller vouches for four vectors.
    let nibbles = unsafe { isa.load_bytes(codes.add(VECTOR * v)) };
    let mask = isa.splat_byte(0x0f);
    let high = isa.and(isa.shift_right16::<4>(nibbles), mask);
    (isa.and(nibbles, mask), high)
}

/// # Safety
/// Two vectors are readable at `codes`.
#[inline(always)]
unsafe fn pairs<I: Lanes>(isa: I, codes: *const u8, v: usize) -> (I::I, I::I) {
    // SAFETY: the caller vouches for two vectors.
    let (first, second) = unsafe { (isa.load_bytes(codes), isa.load_bytes(codes.add(VECTOR))) };
    let (low, high) = match v {
        0 => (first, second),
        1 => (
            isa.shift_right16::<2>(first),
            isa.shift_right16::<2>(second),
        ),
        2 => (
            isa.shift_right16::<4>(first),
            isa.shift_right16::<4>(second),
        ),
        _ => (
            isa.shift_right16::<6>(first),
            isa.shift_right16::<6>(second),
        ),
    };
    let mask = isa.splat_byte(3);
    (isa.and(low, mask), isa.and(high, mask))
}

/// Bits `v` and `v + 4` of each byte, at the place of the third bit.
#[inline(always)]
fn third_bits<I: Lanes>(isa: I, bits: I::I, v: usize) -> (I::I, I::I) {
    let (first, second) = match v {
        0 => (isa.shift_left16::<2>(bits), isa.shift_right16::<2>(bits)),
        1 => (isa.shift_left16::<1>(bits), isa.shift_right16::<3>(bits)),
        2 => (bits, isa.shift_right16::<4>(bits)),
        _ => (isa.shift_right16::<1>(bits), isa.shift_right16::<5>(bits)),
    };
    let bit = isa.splat_byte(0x04);
    (isa.and(first, bit), isa.and(second, bit))
}

/// The same at the place of the fifth bit.
#[inline(always)]
fn fifth_bits<I: Lanes>(isa: I, bits: I::I, v: usize) -> (I::I, I::I) {
    let (first, second) = match v {
        0 => (isa.shift_left16::<4>(bits), bits),
        1 => (isa.shift_left16::<3>(bits), isa.shift_right16::<1>(bits)),
        2 => (isa.shift_left16::<2>(bits), isa.shift_right16::<2>(bits)),
        _ => (isa.shift_left16::<1>(bits), isa.shift_right16::<3>(bits)),
    };
    let bit = isa.splat_byte(0x10);
    (isa.and(first, bit), isa.and(second, bit))
}

/// The pairs of vectors `v` and `v + 4`, at the place of the fifth and sixth bit.
///
/// # Safety
/// Two vectors are readable at `codes`.
#[inline(always)]
unsafe fn upper_pairs<I: Lanes>(isa: I, codes: *const u8, v: usize) -> (I::I, I::I) {
    // SAFETY: the caller vouches for two vectors.
    let (first, second) = unsafe { (isa.load_bytes(codes), isa.load_bytes(codes.add(VECTOR))) };
    let (low, high) = match v {
        0 => (isa.shift_left16::<4>(first), isa.shift_left16::<4>(second)),
        1 => (isa.shift_left16::<2>(first), isa.shift_left16::<2>(second)),
        2 => (first, second),
        _ => (
            isa.shift_right16::<2>(first),
            isa.shift_right16::<2>(second),
        ),
    };
    let mask = isa.splat_byte(0x30);
    (isa.and(low, mask), isa.and(high, mask))
}

/// Where column `k` of row `lane` lies: its vector and the byte in it.
fn place(k: usize, lane: usize) -> (usize, usize) {
    (k / 4, 4 * lane + k % 4)
}

/// Writes the stored code of column `k` of row `lane` into zeroed vectors.
pub(crate) fn put(bits: usize, record: &mut [u8], (k, lane): (usize, usize), code: u8) {
    let (j, byte) = place(k, lane);
    match bits {
        2 | 3 => {
            record[VECTOR * (j / 4) + byte] |= (code & 3) << (2 * (j % 4));
            if bits == 3 {
                record[VECTOR * 2 + byte] |= (code >> 2) << j;
            }
        }
        4..=6 => {
            record[VECTOR * (j % 4) + byte] |= (code & 0x0f) << (j / 4 * 4);
            if bits == 5 {
                record[VECTOR * 4 + byte] |= (code >> 4) << j;
            } else if bits == 6 {
                record[VECTOR * (4 + j / 4) + byte] |= (code >> 4) << (2 * (j % 4));
            }
        }
        _ => record[VECTOR * j + byte] = code,
    }
}

/// Reads back what [`put`] wrote.
pub(crate) fn get(bits: usize, record: &[u8], k: usize, lane: usize) -> u8 {
    let (j, byte) = place(k, lane);
    let pair = |vector: usize| record[VECTOR * (vector + j / 4) + byte] >> (2 * (j % 4)) & 3;
    let bit = |vector: usize| record[VECTOR * vector + byte] >> j & 1;
    let nibble = || record[VECTOR * (j % 4) + byte] >> (j / 4 * 4) & 0x0f;
    match bits {
        2 => pair(0),
        3 => pair(0) | bit(2) << 2,
        4 => nibble(),
        5 => nibble() | bit(4) << 4,
        6 => nibble() | pair(4) << 4,
        _ => record[VECTOR * j + byte],
    }
}

const _: () = assert!(VECTOR == 4 * LANES, "a double word for each row");
