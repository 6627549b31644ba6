//! `IQ2_S`: points of a grid of eight with signs, `w = d·(1/2 + s)/4 · ±point` with 4-bit `s` per 16.
//!
//! Layout: `d: f16`, 32 bytes with the lower bits of the points' numbers, 32 bytes of signs, 8 bytes
//! with the upper two bits (pair `i % 4` of byte `i / 4`), 8 bytes of scales as in `IQ2_XS`.

use super::iq2_xs::scale;
use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand, grid, half_at, put_half};

const ELEMENTS: usize = 256;
const BYTES: usize = 82;
const POINTS: usize = 2;
const SIGNS: usize = 34;
const UPPER: usize = 66;
const SCALES: usize = 74;
const _: () = assert!(BYTES == 2 + ELEMENTS / 8 + ELEMENTS / 8 + ELEMENTS / 32 + ELEMENTS / 32);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "IQ2_S",
    gguf_id: 22,
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

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
        let upper = usize::from(block[UPPER + i / 4] >> (i % 4 * 2) & 3);
        let point = &grid::IQ2_S[usize::from(block[POINTS + i]) | upper << 8];
        grid::signed(point, block[SIGNS + i], codes);
    }
    for (j, value) in scales.iter_mut().enumerate() {
        *value = scale(half_at(block, 0), &block[SCALES..], j);
    }
}
