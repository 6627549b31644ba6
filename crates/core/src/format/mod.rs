//! The registry of storage formats: one file each, one row each.
//!
//! A format file says what the format *is*: its layout, how a block expands and, for integer codes,
//! the affine split `weight = scale · code + offset` from which a backend packs its own layout. Most
//! have a plain encoder as well. Nothing here is optimized; everything here is the specification.

mod bf16;
mod f16;
mod f32;
mod f64;
mod grid;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod k_scales;
mod mxfp4;
mod nvfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq1_0;
mod tq2_0;

pub use iq4_nl::NONLINEAR;
pub use mxfp4::MICROSCALING;

use std::fmt;

/// One row of the registry.
#[derive(Debug)]
pub struct FormatInfo {
    /// The name used by GGUF tools and in messages.
    pub name: &'static str,
    /// The type number in GGUF files.
    pub gguf_id: u32,
    /// Elements in one block; rows hold a whole number of blocks.
    pub elements: usize,
    /// Bytes in one block.
    pub bytes: usize,
    /// Expands one block: `bytes` in, `elements` out.
    pub dequantize: fn(&[u8], &mut [f32]),
    /// How blocks come about.
    pub encoder: Encoder,
    /// The integer codes behind the block; `None` for float formats.
    pub affine: Option<Affine>,
}

/// How the blocks of a format come about.
#[derive(Debug)]
pub enum Encoder {
    /// Plain round-to-nearest, no search.
    Rounding {
        /// Encodes one block: `elements` in, `bytes` out.
        quantize: fn(&[f32], &mut [u8]),
        /// The largest error, as a share of the largest magnitude in the block.
        error: f32,
    },
    /// The format is only read here: good blocks take a search with weights of importance.
    Absent {
        /// Writes what scales the whole block. Tests fill the rest with noise.
        rescale: fn(&mut [u8], f32),
    },
}

/// Reads what a block's scales and offsets are multiples of, and which: bytes in; a number for each scale
/// and offset out. Returned are the two factors; both are half floats, the second 0 without offsets.
pub type Multiples = fn(&[u8], &mut [i8], &mut [i8]) -> [f32; 2];

/// Splits one block: bytes in; codes, scales and, where the format stores them, offsets out.
pub type Split = fn(&[u8], &mut [u8], &mut [f32], &mut [f32]);

/// How a block splits into integer codes: `weight[i] = scale[i / sub_block] · code[i] + offset[i / sub_block]`,
/// or `scale · (code − zero_point)`. Codes of [`Codes::Table`] stand for its values.
#[derive(Debug)]
pub struct Affine {
    /// Elements that share one scale and offset; divides `elements`.
    pub sub_block: usize,
    /// Which integers the codes are.
    pub codes: Codes,
    /// The narrowest floats that hold every scale and offset exactly.
    pub scales: Scales,
    /// `offset = −zero_point · scale`; `None` where the format stores offsets of its own.
    pub zero_point: Option<u8>,
    /// Scales and offsets as small multiples of two numbers of the block, where they are: of each
    /// product the result is the scale or offset of [`Affine::split`], to the bit.
    pub multiples: Option<Multiples>,
    /// Splits one block into `elements` codes and `elements / sub_block` scales and offsets.
    pub split: Split,
}

/// Floats that hold scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// IEEE half floats.
    Half,
    /// The upper half of single floats.
    Brain,
    /// Single floats.
    Single,
}

/// The integers that a format stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// `0..=3`
    Unsigned2,
    /// `0..=7`
    Unsigned3,
    /// `0..=15`
    Unsigned4,
    /// `0..=31`
    Unsigned5,
    /// `0..=63`
    Unsigned6,
    /// `-128..=127`, as two's complement bytes; offsets are zero.
    Signed8,
    /// `0..=15`, each standing for one of sixteen values.
    Table(&'static [i8; 16]),
}

impl Codes {
    /// The integer that a split's code stands for.
    pub fn value(self, code: u8) -> f32 {
        match self {
            Self::Signed8 => f32::from(code.cast_signed()),
            Self::Table(values) => f32::from(values[usize::from(code)]),
            _ => f32::from(code),
        }
    }
}

macro_rules! registry {
    ($($(#[$doc:meta])* $variant:ident = $module:ident;)*) => {
        /// A storage format of weights.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(non_camel_case_types, reason = "the field's names carry underscores")]
        pub enum Format {
            $($(#[$doc])* $variant,)*
        }

        impl Format {
            /// Every format, in registry order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The format's row of the registry.
            pub const fn info(self) -> &'static FormatInfo {
                match self {
                    $(Self::$variant => &$module::INFO,)*
                }
            }
        }
    };
}

registry! {
    /// 32-bit floats.
    F32 = f32;
    /// IEEE half floats.
    F16 = f16;
    /// The upper half of 32-bit floats.
    BF16 = bf16;
    /// 4-bit codes around 8, one scale per 32.
    Q4_0 = q4_0;
    /// 4-bit codes, scale and minimum per 32.
    Q4_1 = q4_1;
    /// 5-bit codes around 16, one scale per 32.
    Q5_0 = q5_0;
    /// 5-bit codes, scale and minimum per 32.
    Q5_1 = q5_1;
    /// Signed bytes, one scale per 32.
    Q8_0 = q8_0;
    /// 2-bit codes, 4-bit scales and minima per 16 in blocks of 256.
    Q2_K = q2_k;
    /// 3-bit codes around 4, 6-bit scales per 16 in blocks of 256.
    Q3_K = q3_k;
    /// 4-bit codes, 6-bit scales and minima per 32 in blocks of 256.
    Q4_K = q4_k;
    /// 5-bit codes, 6-bit scales and minima per 32 in blocks of 256.
    Q5_K = q5_k;
    /// 6-bit codes around 32, 8-bit scales per 16 in blocks of 256.
    Q6_K = q6_k;
    /// 1.6 bits: points of a ternary grid, 3-bit scales per 32 in blocks of 256.
    IQ1_S = iq1_s;
    /// 1.8 bits: points of a ternary grid, 3-bit scales per 16 in blocks of 256.
    IQ1_M = iq1_m;
    /// 2.1 bits: points of a grid with signs, 4-bit scales per 32 in blocks of 256.
    IQ2_XXS = iq2_xxs;
    /// 2.3 bits: points of a grid with signs, 4-bit scales per 16 in blocks of 256.
    IQ2_XS = iq2_xs;
    /// 2.6 bits: points of a grid with signs, 4-bit scales per 16 in blocks of 256.
    IQ2_S = iq2_s;
    /// 3.1 bits: points of a grid with signs, 4-bit scales per 32 in blocks of 256.
    IQ3_XXS = iq3_xxs;
    /// 3.4 bits: points of a grid with signs, 4-bit scales per 32 in blocks of 256.
    IQ3_S = iq3_s;
    /// Sixteen unevenly spaced values, one scale per 32.
    IQ4_NL = iq4_nl;
    /// The same with 6-bit scales per 32 in blocks of 256.
    IQ4_XS = iq4_xs;
    /// 4-bit floats, a power of two per 32.
    MXFP4 = mxfp4;
    /// 4-bit floats, an 8-bit float per 16 in blocks of 64.
    NVFP4 = nvfp4;
    /// Ternary codes, five to a byte, one scale per 256.
    TQ1_0 = tq1_0;
    /// Ternary codes of 2 bits, one scale per 256.
    TQ2_0 = tq2_0;
    /// 64-bit floats.
    F64 = f64;
}

impl Format {
    /// The format with that GGUF type number.
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|format| format.info().gguf_id == id)
    }

    /// The name used in messages.
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// The bytes of one row of `cols` elements; `cols` is a whole number of blocks.
    pub const fn row_bytes(self, cols: usize) -> usize {
        cols / self.info().elements * self.info().bytes
    }

    /// Expands whole blocks.
    ///
    /// # Panics
    /// If `bytes` and `out` are not the same whole number of blocks.
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        let info = self.info();
        assert_eq!(
            bytes.len() / info.bytes,
            out.len() / info.elements,
            "blocks match elements"
        );
        for (block, values) in bytes
            .chunks_exact(info.bytes)
            .zip(out.chunks_exact_mut(info.elements))
        {
            (info.dequantize)(block, values);
        }
    }

    /// Encodes whole blocks; the inverse of [`Format::dequantize`] up to rounding.
    ///
    /// # Panics
    /// If the format is one that is only read, see [`Encoder::Absent`].
    pub fn quantize(self, values: &[f32]) -> Vec<u8> {
        let info = self.info();
        let Encoder::Rounding { quantize, .. } = info.encoder else {
            panic!("{self} is only read");
        };
        let mut out = vec![0; values.len() / info.elements * info.bytes];
        for (block, values) in out
            .chunks_exact_mut(info.bytes)
            .zip(values.chunks_exact(info.elements))
        {
            quantize(values, block);
        }
        out
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The most elements and sub-blocks of a block.
const MOST: (usize, usize) = (256, 16);

/// Expands a block as its affine split says.
fn expand(affine: &Affine, block: &[u8], out: &mut [f32]) {
    let mut codes = [0; MOST.0];
    let (mut scales, mut offsets) = ([0.0; MOST.1], [0.0; MOST.1]);
    let subs = out.len() / affine.sub_block;
    let (codes, scales) = (&mut codes[..out.len()], &mut scales[..subs]);
    (affine.split)(block, codes, scales, &mut offsets[..subs]);
    for (i, value) in out.iter_mut().enumerate() {
        let (sub, code) = (i / affine.sub_block, affine.codes.value(codes[i]));
        *value = match affine.zero_point {
            Some(zero) => scales[sub] * (code - f32::from(zero)),
            None => scales[sub] * code + offsets[sub],
        };
    }
}

/// Reads a word of 32 bits at a byte offset.
fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads a half float at a byte offset.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Writes a half float at a byte offset and returns the value as stored.
fn put_half(bytes: &mut [u8], at: usize, value: f32) -> f32 {
    let stored = half::f16::from_f32(value);
    bytes[at..at + 2].copy_from_slice(&stored.to_le_bytes());
    stored.to_f32()
}

/// `round(value / scale)` within `0..=top`; zero when the scale is zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped first"
)]
fn code(value: f32, scale: f32, top: u8) -> u8 {
    if scale == 0.0 {
        0
    } else {
        (value / scale).round().clamp(0.0, f32::from(top)) as u8
    }
}

fn min_max(values: &[f32]) -> (f32, f32) {
    values
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &value| {
            (low.min(value), high.max(value))
        })
}

/// The value of largest magnitude, with its sign.
fn extreme(values: &[f32]) -> f32 {
    values
        .iter()
        .copied()
        .fold(0.0, |a: f32, b| if b.abs() > a.abs() { b } else { a })
}

/// The index of the value that is nearest to `wanted`.
#[expect(clippy::cast_possible_truncation, reason = "sixteen values")]
fn nearest(values: &[i8; 16], wanted: f32) -> u8 {
    let distance = |i: &usize| (f32::from(values[*i]) - wanted).abs();
    let best = (0..16).min_by(|a, b| distance(a).total_cmp(&distance(b)));
    best.unwrap_or_default() as u8
}

/// Shared by the formats that pair element `i` with element `i + half` in one byte.
fn nibbles(packed: &[u8], out: &mut [u8]) {
    let half = packed.len();
    for (i, &byte) in packed.iter().enumerate() {
        out[i] = byte & 0x0f;
        out[i + half] = byte >> 4;
    }
}

#[cfg(test)]
mod tests;
