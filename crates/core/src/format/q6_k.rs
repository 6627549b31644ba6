//! `Q6_K`: 256 codes of 6 bits, `w = d·sc · (q − 32)` with signed 8-bit `sc` per 16.
//!
//! Layout: 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 scales (`i8`), `d: f16`.
//! Each half of 128 elements uses 64 nibble bytes and 32 pair bytes: element `32·j + l` takes the
//! nibble `j / 2` of byte `32·(j % 2) + l` and the bit pair `j` of byte `l`, for `j` in 0..4.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand, extreme, half_at, put_half};

const ELEMENTS: usize = 256;
const BYTES: usize = 210;
const SCALES: usize = 192;
const D: usize = 208;
const _: () = assert!(BYTES == ELEMENTS / 2 + ELEMENTS / 4 + ELEMENTS / 16 + 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q6_K",
    gguf_id: 14,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.05,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 16,
    codes: Codes::Unsigned6,
    scales: Scales::Single,
    zero_point: Some(32),
    multiples: Some(multiples),
    split,
};

/// The byte and shift of element `i`'s nibble, and the byte and shift of its bit pair.
fn place(i: usize) -> (usize, usize, usize, usize) {
    let (half, j, l) = (i / 128, i % 128 / 32, i % 32);
    (
        64 * half + 32 * (j % 2) + l,
        j / 2 * 4,
        128 + 32 * half + l,
        j * 2,
    )
}

fn codes_of(block: &[u8], codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        let (low, low_shift, high, high_shift) = place(i);
        *code = (block[low] >> low_shift & 0x0f) | (block[high] >> high_shift & 3) << 4;
    }
}

fn multiples(block: &[u8], scales: &mut [i8], _: &mut [i8]) -> [f32; 2] {
    for (scale, &byte) in scales.iter_mut().zip(&block[SCALES..D]) {
        *scale = byte.cast_signed();
    }
    [half_at(block, D), 0.0]
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    codes_of(block, codes);
    let d = half_at(block, D);
    for j in 0..16 {
        scales[j] = d * f32::from(block[SCALES + j].cast_signed());
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped first"
)]
fn quantize(values: &[f32], block: &mut [u8]) {
    block.fill(0);
    let wanted: Vec<f32> = values
        .chunks_exact(16)
        .map(|sub| extreme(sub) / -32.0)
        .collect();
    let d = put_half(block, D, extreme(&wanted) / -128.0);
    for (j, scale) in wanted.iter().enumerate() {
        let stored = if d == 0.0 {
            0.0
        } else {
            (scale / d).round().clamp(-128.0, 127.0)
        };
        block[SCALES + j] = (stored as i8).cast_unsigned();
    }
    for (i, value) in values.iter().enumerate() {
        let scale = d * f32::from(block[SCALES + i / 16].cast_signed());
        let code = if scale == 0.0 {
            32.0
        } else {
            (value / scale + 32.0).round()
        };
        let code = code.clamp(0.0, 63.0) as u8;
        let (low, low_shift, high, high_shift) = place(i);
        block[low] |= (code & 0x0f) << low_shift;
        block[high] |= (code >> 4) << high_shift;
    }
}
