//! `IQ3_XXS`: points of a grid of four with signs, `w = d·(1/2 + s)/2 · ±point` with 4-bit `s` per 32.
//!
//! Layout: `d: f16`, 64 bytes that name points, then for each 32 elements a 32-bit word: four times
//! seven bits of signs from the lowest on, `s` in the highest four.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand, grid, half_at, put_half, word_at};

const ELEMENTS: usize = 256;
const BYTES: usize = 98;
const POINTS: usize = 2;
const WORDS: usize = 66;
const _: () = assert!(BYTES == 2 + ELEMENTS / 4 + ELEMENTS / 8);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "IQ3_XXS",
    gguf_id: 18,
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
    let word = |j: usize| word_at(block, WORDS + 4 * j);
    for (i, codes) in codes.chunks_exact_mut(4).enumerate() {
        let signs = grid::even_signs(word(i / 8) >> (i % 8 / 2 * 7));
        let point = &grid::IQ3_XXS[usize::from(block[POINTS + i])];
        grid::signed(point, signs >> (i % 2 * 4), codes);
    }
    let d = half_at(block, 0);
    for (j, value) in scales.iter_mut().enumerate() {
        let scale = u8::try_from(word(j) >> 28).expect("four bits");
        *value = d * (0.5 + f32::from(scale)) * 0.5;
    }
}
