//! `IQ2_XS`: points of a grid of eight with signs, `w = d·(1/2 + s)/4 · ±point` with 4-bit `s` per 16.
//!
//! Layout: `d: f16`, 32 words of 16 bits (nine that name a point, seven of signs), 8 bytes of
//! scales, two to a byte, the lower half first.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand, grid, half_at, put_half};

const ELEMENTS: usize = 256;
const BYTES: usize = 74;
const SCALES: usize = 66;
const _: () = assert!(BYTES == 2 + ELEMENTS / 4 + ELEMENTS / 32);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "IQ2_XS",
    gguf_id: 17,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Absent {
        rescale: |block, scale| _ = put_half(block, 0, scale),
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 16,
    codes: Codes::Signed8,
    scales: Scales::Single,
    zero_point: Some(0),
    multiples: None,
    split,
};

/// Scale `j` of formats that keep two 4-bit scales in a byte, `d·(1/2 + s)/4`.
pub(super) fn scale(d: f32, scales: &[u8], j: usize) -> f32 {
    let scale = scales[j / 2] >> (j % 2 * 4) & 0x0f;
    d * (0.5 + f32::from(scale)) * 0.25
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
        let word = u16::from_le_bytes([block[2 + 2 * i], block[3 + 2 * i]]);
        let point = &grid::IQ2_XS[usize::from(word & 511)];
        grid::signed(point, grid::even_signs(u32::from(word >> 9)), codes);
    }
    for (j, value) in scales.iter_mut().enumerate() {
        *value = scale(half_at(block, 0), &block[SCALES..], j);
    }
}
