//! `IQ4_XS`: 256 codes of 4 bits through the table of `IQ4_NL`, `w = d·(sc − 32) · NONLINEAR[q]`
//! with 6-bit `sc` per 32.
//!
//! Layout: `d: f16`, two bytes with the upper pairs of the scales, four bytes with their low
//! nibbles, each from the lowest bits on, 128 bytes of nibbles; each run of 16 bytes holds 32
//! elements as in `IQ4_NL`.

use super::iq4_nl::{self, NONLINEAR};
use super::{Affine, Codes, Encoder, FormatInfo, Scales};
use super::{code, expand, extreme, half_at, nibbles, put_half};

const ELEMENTS: usize = 256;
const BYTES: usize = 136;
const UPPER: usize = 2;
const LOW: usize = 4;
const NIBBLES: usize = 8;
const _: () = assert!(BYTES == 2 + 2 + ELEMENTS / 64 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "IQ4_XS",
    gguf_id: 23,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.15,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 32,
    codes: Codes::Table(&NONLINEAR),
    scales: Scales::Single,
    zero_point: Some(0),
    multiples: Some(multiples),
    split,
};

fn multiple(block: &[u8], j: usize) -> i8 {
    let low = block[LOW + j / 2] >> (j % 2 * 4) & 0x0f;
    let upper = block[UPPER + j / 4] >> (j % 4 * 2) & 3;
    (low | upper << 4).cast_signed() - 32
}

fn scale(block: &[u8], j: usize) -> f32 {
    half_at(block, 0) * f32::from(multiple(block, j))
}

fn multiples(block: &[u8], scales: &mut [i8], _: &mut [i8]) -> [f32; 2] {
    for (j, scale) in scales.iter_mut().enumerate() {
        *scale = multiple(block, j);
    }
    [half_at(block, 0), 0.0]
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    for (j, codes) in codes.chunks_exact_mut(32).enumerate() {
        nibbles(&block[NIBBLES + 16 * j..][..16], codes);
        scales[j] = scale(block, j);
    }
}

fn quantize(values: &[f32], block: &mut [u8]) {
    block.fill(0);
    let wanted: Vec<f32> = values
        .chunks_exact(32)
        .map(|sub| extreme(sub) / -127.0)
        .collect();
    let d = put_half(block, 0, extreme(&wanted) / -32.0);
    for (j, scale) in wanted.iter().enumerate() {
        let stored = code(scale + 32.0 * d, d, 63);
        block[LOW + j / 2] |= (stored & 0x0f) << (j % 2 * 4);
        block[UPPER + j / 4] |= (stored >> 4) << (j % 4 * 2);
    }
    for (i, value) in values.iter().enumerate() {
        let (j, l) = (i / 32, i % 32);
        let code = iq4_nl::code(*value, scale(block, j));
        block[NIBBLES + 16 * j + l % 16] |= code << (l / 16 * 4);
    }
}
