//! `Q4_0`: 32 codes of 4 bits, `w = d · (q − 8)`.
//!
//! Layout: `d: f16`, 16 bytes; byte `i` holds element `i` low and element `i + 16` high.

use super::{
    Affine, Codes, Encoder, FormatInfo, Scales, code, expand, extreme, half_at, nibbles, put_half,
};

const ELEMENTS: usize = 32;
const BYTES: usize = 18;
const _: () = assert!(BYTES == 2 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q4_0",
    gguf_id: 2,
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
    zero_point: Some(8),
    multiples: None,
    split,
};

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    nibbles(&block[2..], codes);
    scales[0] = half_at(block, 0);
}

fn quantize(values: &[f32], block: &mut [u8]) {
    let d = put_half(block, 0, extreme(values) / -8.0);
    for i in 0..ELEMENTS / 2 {
        let (low, high) = (values[i] + 8.0 * d, values[i + 16] + 8.0 * d);
        block[2 + i] = code(low, d, 15) | code(high, d, 15) << 4;
    }
}
