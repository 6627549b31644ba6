//! `IQ1_M`: points of a ternary grid of eight, `w = d·(1 + 2s) · (point ± 1/8)` with 3-bit `s` per 16
//! and a sign of the shift per 8.
//!
//! Layout: 32 bytes with the lower bits of the points' numbers, 16 bytes of nibbles, the lower half
//! first (the upper three bits of a number and the shift's sign), 4 words of 16 bits: four times `s`
//! from the lowest bits on, and in the highest four bits a quarter of `d: f16`, the lowest first.

use super::iq1_s::put_eighths;
use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand};

const ELEMENTS: usize = 256;
const BYTES: usize = 56;
const NIBBLES: usize = 32;
const WORDS: usize = 48;
const _: () = assert!(BYTES == ELEMENTS / 8 + ELEMENTS / 16 + ELEMENTS / 32);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "IQ1_M",
    gguf_id: 29,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Absent { rescale },
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

fn word(block: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([block[WORDS + 2 * i], block[WORDS + 2 * i + 1]])
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    for (i, codes) in codes.chunks_exact_mut(8).enumerate() {
        let nibble = block[NIBBLES + i / 2] >> (i % 2 * 4) & 0x0f;
        let number = usize::from(block[i]) | usize::from(nibble & 7) << 8;
        put_eighths(number, nibble >> 3 == 1, codes);
    }
    let quarter = |i: usize| (word(block, i) >> 12) << (4 * i);
    let bits = quarter(0) | quarter(1) | quarter(2) | quarter(3);
    let d = half::f16::from_bits(bits).to_f32();
    for (j, scale) in scales.iter_mut().enumerate() {
        let stored = word(block, j / 4) >> (j % 4 * 3) & 7;
        *scale = d * f32::from(1 + 2 * stored) * 0.125;
    }
}

fn rescale(block: &mut [u8], scale: f32) {
    let bits = half::f16::from_f32(scale).to_bits();
    for i in 0..4 {
        let word = word(block, i) & 0x0fff | (bits >> (4 * i) & 0x0f) << 12;
        block[WORDS + 2 * i..][..2].copy_from_slice(&word.to_le_bytes());
    }
}
