//! `TQ2_0`: 256 ternary codes of 2 bits, `w = d · (q − 1)`.
//!
//! Layout: 64 bytes of bit pairs as in `Q2_K`, `d: f16`.

use super::q2_k::pair_place;
use super::{Affine, Codes, Encoder, FormatInfo, Scales, code, expand, extreme, half_at, put_half};

const ELEMENTS: usize = 256;
const BYTES: usize = 66;
const D: usize = 64;
const _: () = assert!(BYTES == ELEMENTS / 4 + 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "TQ2_0",
    gguf_id: 35,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.51,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 32,
    codes: Codes::Unsigned2,
    scales: Scales::Half,
    zero_point: Some(1),
    multiples: None,
    split,
};

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    for (i, code) in codes.iter_mut().enumerate() {
        let (byte, shift) = pair_place(i);
        *code = block[byte] >> shift & 3;
    }
    scales.fill(half_at(block, D));
}

fn quantize(values: &[f32], block: &mut [u8]) {
    block.fill(0);
    let d = put_half(block, D, extreme(values).abs());
    for (i, value) in values.iter().enumerate() {
        let (byte, shift) = pair_place(i);
        block[byte] |= code(value + d, d, 2) << shift;
    }
}
