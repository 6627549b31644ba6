//! `Q3_K`: 256 codes of 3 bits, `w = d·(sc − 32) · (q − 4)` with 6-bit `sc` per 16.
//!
//! Layout: 32 bytes of third bits (bit `j` of byte `l` for element `32·j + l`), 64 bytes of bit
//! pairs as in `Q2_K`, 12 bytes of scales, `d: f16`. Scale `j` keeps its low nibble in the low
//! (`j < 8`) or high half of byte `j % 8` and its upper pair in pair `j / 4` of byte `8 + j % 4`.

use super::q2_k::pair_place;
use super::{Affine, Codes, Encoder, FormatInfo, Scales, code, expand, extreme, half_at, put_half};

const ELEMENTS: usize = 256;
const BYTES: usize = 110;
const PAIRS: usize = 32;
const SCALES: usize = 96;
const D: usize = 108;
const _: () = assert!(BYTES == ELEMENTS / 8 + ELEMENTS / 4 + 12 + 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q3_K",
    gguf_id: 11,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.3,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 16,
    codes: Codes::Unsigned3,
    scales: Scales::Single,
    zero_point: Some(4),
    multiples: Some(multiples),
    split,
};

/// Scale `j` as stored, around 32.
fn stored_scale(block: &[u8], j: usize) -> u8 {
    let low = block[SCALES + j % 8] >> (j / 8 * 4) & 0x0f;
    let high = block[SCALES + 8 + j % 4] >> (j / 4 * 2) & 3;
    low | high << 4
}

fn multiples(block: &[u8], scales: &mut [i8], _: &mut [i8]) -> [f32; 2] {
    for (j, scale) in scales.iter_mut().enumerate() {
        *scale = stored_scale(block, j).cast_signed() - 32;
    }
    [half_at(block, D), 0.0]
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    for (i, code) in codes.iter_mut().enumerate() {
        let (byte, shift) = pair_place(i);
        let third = block[i % 32] >> (i / 32) & 1;
        *code = (block[PAIRS + byte] >> shift & 3) | third << 2;
    }
    let d = half_at(block, D);
    for (j, scale) in scales.iter_mut().enumerate() {
        *scale = d * (f32::from(stored_scale(block, j)) - 32.0);
    }
}

fn quantize(values: &[f32], block: &mut [u8]) {
    block.fill(0);
    let wanted: Vec<f32> = values
        .chunks_exact(16)
        .map(|sub| extreme(sub) / -4.0)
        .collect();
    let d = put_half(block, D, extreme(&wanted) / -32.0);
    for (j, scale) in wanted.iter().enumerate() {
        let stored = code(scale + 32.0 * d, d, 63);
        block[SCALES + j % 8] |= (stored & 0x0f) << (j / 8 * 4);
        block[SCALES + 8 + j % 4] |= (stored >> 4) << (j / 4 * 2);
    }
    for (i, value) in values.iter().enumerate() {
        let scale = d * (f32::from(stored_scale(block, i / 16)) - 32.0);
        let code = if scale == 0.0 {
            4
        } else {
            code(value + 4.0 * scale, scale, 7)
        };
        let (byte, shift) = pair_place(i);
        block[PAIRS + byte] |= (code & 3) << shift;
        block[i % 32] |= (code >> 2) << (i / 32);
    }
}
