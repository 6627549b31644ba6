//! `Q5_1`: 32 codes of 5 bits, `w = d · q + m`.
//!
//! Layout: `d: f16`, `m: f16`, 4 bytes of fifth bits, 16 bytes of low nibbles, as in `Q5_0`.

use super::q5_0::{five_bit_codes, pack_five_bit_codes};
use super::{Affine, Codes, Encoder, FormatInfo, Scales, code, expand, half_at, min_max, put_half};

const ELEMENTS: usize = 32;
const BYTES: usize = 24;
const _: () = assert!(BYTES == 2 + 2 + ELEMENTS / 8 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q5_1",
    gguf_id: 7,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.07,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 32,
    codes: Codes::Unsigned5,
    scales: Scales::Half,
    zero_point: None,
    multiples: None,
    split,
};

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], offsets: &mut [f32]) {
    five_bit_codes(&block[4..], codes);
    scales[0] = half_at(block, 0);
    offsets[0] = half_at(block, 2);
}

fn quantize(values: &[f32], block: &mut [u8]) {
    let (low, high) = min_max(values);
    let d = put_half(block, 0, (high - low) / 31.0);
    let m = put_half(block, 2, low);
    let codes: Vec<u8> = values.iter().map(|value| code(value - m, d, 31)).collect();
    pack_five_bit_codes(&codes, &mut block[4..]);
}
