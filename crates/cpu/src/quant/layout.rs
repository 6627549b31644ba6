//! How packed matrices lie in memory.
//!
//! Sixteen rows form a group; each 32 columns of a group form a *record*: codes, scales, offsets.
//! In the codes, double word `r` of a vector holds four consecutive columns of row `r`, so that one
//! broadcast of four activations meets all sixteen rows. Vector `j` covers columns `4j..4j + 4`:
//!
//! - 4 bits: four vectors; vector `v` holds `j = v` in its low and `j = v + 4` in its high nibbles.
//! - 5 bits: as 4 bits, then one vector whose bit `j` is the fifth bit of vector `j`.
//! - 6 bits: as 4 bits, then two vectors of bit pairs, `j = 0..4` in the first, `4..8` in the second.
//! - 8 bits: eight vectors.
//!
//! Records follow one another through the columns, groups through the rows; the product of a
//! group streams its memory once, in order.

use crate::isa::Lanes;
use forthwith_core::format::{Affine, Codes};

/// Rows in a group: the lanes of a wide vector.
pub(crate) const LANES: usize = 16;
/// Bytes of a vector.
const VECTOR: usize = 4 * LANES;
/// Columns in a record.
pub(crate) const COLUMNS: usize = 32;
/// `ZERO` of layouts that store their offsets.
pub(crate) const STORED: i32 = -1;

/// A source of codes, scales and offsets for the product kernel.
pub(crate) trait Layout: Copy {
    /// Bits of a code. Decides how sums may accumulate.
    const BITS: u32;
    /// Columns that share a scale: 32 or 16.
    const SUB: usize;
    /// Whether offsets exist.
    const OFFSETS: bool;
    /// Bytes of a record.
    const RECORD: usize;

    /// The vectors of codes `j = v` and `j = v + 4`, for `v` in 0..4. Codes of 8 bits are signed;
    /// where [`Lanes::DOTS`], all are unsigned, and those of 8 bits too large by 128.
    ///
    /// # Safety
    /// A whole record is readable at `record`.
    unsafe fn pair<I: Lanes>(isa: I, record: *const u8, v: usize) -> (I::I, I::I);

    /// Scales and offsets of sub-block `sub`, one per row.
    ///
    /// # Safety
    /// A whole record is readable at `record`.
    unsafe fn affine<I: Lanes>(isa: I, record: *const u8, sub: usize) -> (I::F, I::F);
}

/// A stored layout: code bits, columns per scale, half or single scales, zero point or [`STORED`].
#[derive(Clone, Copy)]
pub(crate) struct Packed<const BITS: u32, const SUB: usize, const HALF: bool, const ZERO: i32>;

impl<const BITS: u32, const SUB: usize, const HALF: bool, const ZERO: i32>
    Packed<BITS, SUB, HALF, ZERO>
{
    const CODES: usize = BITS as usize * VECTOR;
    const SCALE: usize = if HALF { 2 * LANES } else { 4 * LANES };

    #[inline(always)]
    unsafe fn floats<I: Lanes>(isa: I, record: *const u8, index: usize) -> I::F {
        // SAFETY: within the record, by the layout.
        unsafe {
            let at = record.add(Self::CODES + index * Self::SCALE);
            if HALF {
                isa.load_half(at.cast())
            } else {
                isa.load(at.cast())
            }
        }
    }
}

impl<const BITS: u32, const SUB: usize, const HALF: bool, const ZERO: i32> Layout
    for Packed<BITS, SUB, HALF, ZERO>
{
    const BITS: u32 = BITS;
    const SUB: usize = SUB;
    const OFFSETS: bool = ZERO != 0;
    const RECORD: usize =
        Self::CODES + COLUMNS / SUB * Self::SCALE * if ZERO == STORED { 2 } else { 1 };

    #[inline(always)]
    unsafe fn pair<I: Lanes>(isa: I, record: *const u8, v: usize) -> (I::I, I::I) {
        // SAFETY: within the record, by the layout.
        unsafe {
            if BITS == 8 {
                let low = isa.load_bytes(record.add(VECTOR * v));
                let high = isa.load_bytes(record.add(VECTOR * (v + 4)));
                if I::DOTS {
                    let sign = isa.splat_byte(0x80);
                    return (isa.xor(low, sign), isa.xor(high, sign));
                }
                return (low, high);
            }
            let nibbles = isa.load_bytes(record.add(VECTOR * v));
            let mask = isa.splat_byte(0x0f);
            let low = isa.and(nibbles, mask);
            let high = isa.and(isa.shift_right16::<4>(nibbles), mask);
            if BITS == 5 {
                let plane = isa.load_bytes(record.add(4 * VECTOR));
                let bit = isa.splat_byte(0x10);
                let (first, second) = match v {
                    0 => (isa.shift_left16::<4>(plane), plane),
                    1 => (isa.shift_left16::<3>(plane), isa.shift_right16::<1>(plane)),
                    2 => (isa.shift_left16::<2>(plane), isa.shift_right16::<2>(plane)),
                    _ => (isa.shift_left16::<1>(plane), isa.shift_right16::<3>(plane)),
                };
                return (
                    isa.or(low, isa.and(first, bit)),
                    isa.or(high, isa.and(second, bit)),
                );
            }
            if BITS == 6 {
                let planes = [
                    isa.load_bytes(record.add(4 * VECTOR)),
                    isa.load_bytes(record.add(5 * VECTOR)),
                ];
                let (first, second) = match v {
                    0 => (
                        isa.shift_left16::<4>(planes[0]),
                        isa.shift_left16::<4>(planes[1]),
                    ),
                    1 => (
                        isa.shift_left16::<2>(planes[0]),
                        isa.shift_left16::<2>(planes[1]),
                    ),
                    2 => (planes[0], planes[1]),
                    _ => (
                        isa.shift_right16::<2>(planes[0]),
                        isa.shift_right16::<2>(planes[1]),
                    ),
                };
                let mask = isa.splat_byte(0x30);
                return (
                    isa.or(low, isa.and(first, mask)),
                    isa.or(high, isa.and(second, mask)),
                );
            }
            (low, high)
        }
    }

    #[inline(always)]
    unsafe fn affine<I: Lanes>(isa: I, record: *const u8, sub: usize) -> (I::F, I::F) {
        // SAFETY: within the record, by the layout.
        unsafe {
            let scale = Self::floats(isa, record, sub);
            let offset = match ZERO {
                STORED => Self::floats(isa, record, COLUMNS / SUB + sub),
                0 => scale,
                #[expect(clippy::cast_precision_loss, reason = "zero points are below 64")]
                zero => isa.mul(scale, isa.splat(-(zero as f32))),
            };
            (scale, offset)
        }
    }
}

/// A group expanded once for many columns of activations: bytes and single floats.
#[derive(Clone, Copy)]
pub(crate) struct Expanded<L: Layout>(L);

impl<L: Layout> Expanded<L> {
    const SUBS: usize = COLUMNS / L::SUB;

    /// Writes the expanded form of one record.
    ///
    /// # Safety
    /// A record of `L` is readable at `from`; `Self::RECORD` bytes are writable at `to`.
    #[inline(always)]
    pub(crate) unsafe fn expand<I: Lanes>(isa: I, from: *const u8, to: *mut u8) {
        // SAFETY: within both records, by their layouts.
        unsafe {
            for v in 0..4 {
                let (low, high) = L::pair(isa, from, v);
                isa.store_bytes(to.add(VECTOR * v), low);
                isa.store_bytes(to.add(VECTOR * (v + 4)), high);
            }
            for sub in 0..Self::SUBS {
                let (scale, offset) = L::affine(isa, from, sub);
                let at = to.add((8 + 2 * sub) * VECTOR);
                isa.store(at.cast(), scale);
                isa.store(at.add(VECTOR).cast(), offset);
            }
        }
    }
}

impl<L: Layout> Layout for Expanded<L> {
    const BITS: u32 = L::BITS;
    const SUB: usize = L::SUB;
    const OFFSETS: bool = L::OFFSETS;
    const RECORD: usize = (8 + 2 * Self::SUBS) * VECTOR;

    #[inline(always)]
    unsafe fn pair<I: Lanes>(isa: I, record: *const u8, v: usize) -> (I::I, I::I) {
        // SAFETY: within the record, by the layout.
        unsafe {
            (
                isa.load_bytes(record.add(VECTOR * v)),
                isa.load_bytes(record.add(VECTOR * (v + 4))),
            )
        }
    }

    #[inline(always)]
    unsafe fn affine<I: Lanes>(isa: I, record: *const u8, sub: usize) -> (I::F, I::F) {
        // SAFETY: within the record, by the layout.
        unsafe {
            let at = record.add((8 + 2 * sub) * VECTOR);
            (isa.load(at.cast()), isa.load(at.add(VECTOR).cast()))
        }
    }
}

/// The largest expanded record of any layout.
pub(crate) const EXPANDED_RECORD: usize = (8 + 2 * 2) * VECTOR;

/// The parameters of [`Packed`] as values, for packing and for reading single rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub(crate) bits: usize,
    pub(crate) sub: usize,
    pub(crate) half: bool,
    pub(crate) zero: i32,
}

impl Recipe {
    pub(crate) fn of(affine: &Affine) -> Self {
        let bits = match affine.codes {
            Codes::Unsigned4 => 4,
            Codes::Unsigned5 => 5,
            Codes::Unsigned6 => 6,
            Codes::Signed8 => 8,
        };
        let zero = affine.zero_point.map_or(STORED, i32::from);
        Self {
            bits,
            sub: affine.sub_block,
            half: affine.half_scales,
            zero,
        }
    }

    fn codes_bytes(self) -> usize {
        self.bits * VECTOR
    }

    fn scale_bytes(self) -> usize {
        if self.half { 2 } else { 4 }
    }

    pub(crate) fn record(self) -> usize {
        let kinds = if self.zero == STORED { 2 } else { 1 };
        self.codes_bytes() + COLUMNS / self.sub * LANES * self.scale_bytes() * kinds
    }

    /// Writes the codes of 32 columns of row `lane` into a zeroed record.
    pub(crate) fn put_codes(self, record: &mut [u8], lane: usize, codes: &[u8]) {
        for (k, &code) in codes.iter().enumerate() {
            let (j, byte) = (k / 4, 4 * lane + k % 4);
            if self.bits == 8 {
                record[VECTOR * j + byte] = code;
                continue;
            }
            record[VECTOR * (j % 4) + byte] |= (code & 0x0f) << (j / 4 * 4);
            match self.bits {
                5 => record[4 * VECTOR + byte] |= (code >> 4) << j,
                6 => record[VECTOR * (4 + j / 4) + byte] |= (code >> 4) << (2 * (j % 4)),
                _ => {}
            }
        }
    }

    /// Writes the scale and offset of sub-block `sub` of row `lane`.
    pub(crate) fn put_affine(self, record: &mut [u8], lane: usize, sub: usize, of: (f32, f32)) {
        self.put_float(record, sub * LANES + lane, of.0);
        if self.zero == STORED {
            self.put_float(record, (COLUMNS / self.sub + sub) * LANES + lane, of.1);
        }
    }

    fn put_float(self, record: &mut [u8], index: usize, value: f32) {
        let at = self.codes_bytes() + index * self.scale_bytes();
        if self.half {
            let half = half::f16::from_f32(value).to_le_bytes();
            record[at..at + 2].copy_from_slice(&half);
        } else {
            record[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
    }

    fn float(self, record: &[u8], index: usize) -> f32 {
        let at = self.codes_bytes() + index * self.scale_bytes();
        if self.half {
            half::f16::from_le_bytes([record[at], record[at + 1]]).to_f32()
        } else {
            f32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
        }
    }

    /// Reads back 32 columns of row `lane`.
    #[expect(clippy::cast_precision_loss, reason = "zero points are below 64")]
    pub(crate) fn read(self, record: &[u8], lane: usize, out: &mut [f32]) {
        for (k, value) in out.iter_mut().enumerate() {
            let (j, byte) = (k / 4, 4 * lane + k % 4);
            let code = if self.bits == 8 {
                f32::from(record[VECTOR * j + byte].cast_signed())
            } else {
                let low = record[VECTOR * (j % 4) + byte] >> (j / 4 * 4) & 0x0f;
                let high = match self.bits {
                    5 => (record[4 * VECTOR + byte] >> j & 1) << 4,
                    6 => (record[VECTOR * (4 + j / 4) + byte] >> (2 * (j % 4)) & 3) << 4,
                    _ => 0,
                };
                f32::from(low | high)
            };
            let sub = k / self.sub;
            let scale = self.float(record, sub * LANES + lane);
            *value = if self.zero == STORED {
                let offset = self.float(record, (COLUMNS / self.sub + sub) * LANES + lane);
                scale * code + offset
            } else {
                scale * (code - self.zero as f32)
            };
        }
    }
}
