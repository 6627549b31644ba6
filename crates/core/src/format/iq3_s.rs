//! `IQ3_S`: points of a grid of four with signs, `w = d·(1 + 2s) · ±point` with 4-bit `s` per 32.
//!
//! Layout: `d: f16`, 64 bytes with the lower bits of the points' numbers, 8 bytes with the ninth bit
//! (bit `i % 8` of byte `i / 8`), 32 bytes of signs, 4 bytes of scales, two to a byte, the lower
//! half first.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand, grid, half_at, put_half};

const ELEMENTS: usize = 256;
const BYTES: usize = 110;
const POINTS: usize = 2;
const UPPER: usize = 66;
const SIGNS: usize = 74;
const SCALES: usize = 106;
const _: () = assert!(BYTES == 2 + ELEMENTS / 4 + ELEMENTS / 32 + ELEMENTS / 8 + ELEMENTS / 64);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "IQ3_S",
    gguf_id: 21,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Absent {
        rescale: |block, scale| _ = put_half(block, 0, scale),
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 32,
    codes: Codes::Signed8,
    scales: Scales::Single,
    zero_point: Some(0),
    multiples: None,
    split,
};

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    for (i, codes) in codes.chunks_exact_mut(4).enumerate() {
        let ninth = usize::from(block[UPPER + i / 8] >> (i % 8) & 1);
        let point = &grid::IQ3_S[usize::from(block[POINTS + i]) | ninth << 8];
        grid::signed(point, block[SIGNS + i / 2] >> (i % 2 * 4), codes);
    }
    let d = half_at(block, 0);
    for (j, value) in scales.iter_mut().enumerate() {
        let scale = block[SCALES + j / 2] >> (j % 2 * 4) & 0x0f;
        *value = d * f32::from(1 + 2 * scale);
    }
}
