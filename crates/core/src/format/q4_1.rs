//! `Q4_1`: 32 codes of 4 bits, `w = d · q + m`.
//!
//! Layout: `d: f16`, `m: f16`, 16 bytes; byte `i` holds element `i` low and element `i + 16` high.

use super::{Affine, Codes, FormatInfo, code, half_at, min_max, nibbles, put_half};

const ELEMENTS: usize = 32;
const BYTES: usize = 20;
const _: () = assert!(BYTES == 2 + 2 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q4_1",
    gguf_id: 3,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize,
    quantize,
    affine: Some(Affine {
        sub_block: 32,
        codes: Codes::Unsigned4,
        half_scales: true,
        zero_point: None,
        split,
    }),
};

fn dequantize(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let mut codes = [0; ELEMENTS];
    nibbles(&block[4..], &mut codes);
    for (value, code) in out.iter_mut().zip(codes) {
        *value = d * f32::from(code) + m;
    }
}

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
