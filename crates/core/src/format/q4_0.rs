//! `Q4_0`: 32 codes of 4 bits, `w = d · (q − 8)`.
//!
//! Layout: `d: f16`, 16 bytes; byte `i` holds element `i` low and element `i + 16` high.

use super::{Affine, Codes, FormatInfo, code, extreme, half_at, nibbles, put_half};

const ELEMENTS: usize = 32;
const BYTES: usize = 18;
const _: () = assert!(BYTES == 2 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q4_0",
    gguf_id: 2,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize,
    quantize,
    affine: Some(Affine {
        sub_block: 32,
        codes: Codes::Unsigned4,
        half_scales: true,
        zero_point: Some(8),
        split,
    }),
};

fn dequantize(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let mut codes = [0; ELEMENTS];
    nibbles(&block[2..], &mut codes);
    for (value, code) in out.iter_mut().zip(codes) {
        *value = d * (f32::from(code) - 8.0);
    }
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], offsets: &mut [f32]) {
    nibbles(&block[2..], codes);
    scales[0] = half_at(block, 0);
    offsets[0] = -8.0 * scales[0];
}

fn quantize(values: &[f32], block: &mut [u8]) {
    let d = put_half(block, 0, extreme(values) / -8.0);
    for i in 0..ELEMENTS / 2 {
        let (low, high) = (values[i] + 8.0 * d, values[i + 16] + 8.0 * d);
        block[2 + i] = code(low, d, 15) | code(high, d, 15) << 4;
    }
}
