//! `IQ2_XXS`: points of a grid of eight with signs, `w = d·(1/2 + s)/4 · ±point` with 4-bit `s` per 32.
//!
//! Layout: `d: f16`, then for each 32 elements four bytes that name points and a 32-bit word: four
//! times seven bits of signs from the lowest on, `s` in the highest four.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand, grid, half_at, put_half, word_at};

const ELEMENTS: usize = 256;
const BYTES: usize = 66;
const _: () = assert!(BYTES == 2 + ELEMENTS / 4);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "IQ2_XXS",
    gguf_id: 16,
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
    let d = half_at(block, 0);
    for (j, codes) in codes.chunks_exact_mut(32).enumerate() {
        let points = &block[2 + 8 * j..][..4];
        let word = word_at(block, 6 + 8 * j);
        for (l, codes) in codes.chunks_exact_mut(8).enumerate() {
            let point = &grid::IQ2_XXS[usize::from(points[l])];
            grid::signed(point, grid::even_signs(word >> (7 * l)), codes);
        }
        let scale = u8::try_from(word >> 28).expect("four bits");
        scales[j] = d * (0.5 + f32::from(scale)) * 0.25;
    }
}
