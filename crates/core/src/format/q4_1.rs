//! `Q4_1`: 32 codes of 4 bits, `w = d · q + m`.
//!
//! Layout: `d: f16`, `m: f16`, 16 bytes; byte `i` holds element `i` low and element `i + 16` high.

use super::{
    Affine, Codes, Encoder, FormatInfo, Scales, code, expand, half_at, min_max, nibbles, put_half,
};

const ELEMENTS: usize = 32;
const BYTES: usize = 20;
const _: () = assert!(BYTES == 2 + 2 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q4_1",
    gguf_id: 3,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.14,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 32,
    codes: Codes::Unsigned4,
    scales: Scales::Half,
    zero_point: None,
    multiples: None,
    split,
};

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], offsets: &mut [f32]) {
    nibbles(&block[4..], codes);
    scales[0] = half_at(block, 0);
    offsets[0] = half_at(block, 2);
}

fn quantize(values: &[f32], block: &mut [u8]) {
    let (low, high) = min_max(values);
    let d = put_half(block, 0, (high - low) / 15.0);
    let m = put_half(block, 2, low);
    for i in 0..ELEMENTS / 2 {
        block[4 + i] = code(values[i] - m, d, 15) | code(values[i + 16] - m, d, 15) << 4;
    }
}
