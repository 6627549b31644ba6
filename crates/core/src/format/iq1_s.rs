//! `IQ1_S`: points of a ternary grid of eight, `w = d·(1 + 2s) · (point ± 1/8)` with 3-bit `s` and a
//! sign of the shift per 32.
//!
//! Layout: `d: f16`, 32 bytes with the lower bits of the points' numbers, 8 words of 16 bits: four
//! times the upper three bits from the lowest on, `s`, and the shift's sign in the highest.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand, grid, half_at, put_half};

const ELEMENTS: usize = 256;
const BYTES: usize = 50;
const POINTS: usize = 2;
const WORDS: usize = 34;
const _: () = assert!(BYTES == 2 + ELEMENTS / 8 + ELEMENTS / 16);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "IQ1_S",
    gguf_id: 19,
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

/// Writes the codes of the point of that number, shifted up or down, in eighths.
pub(super) fn put_eighths(number: usize, down: bool, codes: &mut [u8]) {
    let shift = if down { -1 } else { 1 };
    for (code, &coordinate) in codes.iter_mut().zip(&grid::IQ1[number]) {
        *code = (8 * coordinate + shift).cast_unsigned();
    }
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    let d = half_at(block, 0);
    for (j, codes) in codes.chunks_exact_mut(32).enumerate() {
        let word = u16::from_le_bytes([block[WORDS + 2 * j], block[WORDS + 2 * j + 1]]);
        for (l, codes) in codes.chunks_exact_mut(8).enumerate() {
            let upper = usize::from(word >> (3 * l) & 7);
            let number = usize::from(block[POINTS + 4 * j + l]) | upper << 8;
            put_eighths(number, word >> 15 == 1, codes);
        }
        scales[j] = d * f32::from(1 + 2 * (word >> 12 & 7)) * 0.125;
    }
}
