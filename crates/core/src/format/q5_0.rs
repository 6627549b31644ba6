//! `Q5_0`: 32 codes of 5 bits, `w = d · (q − 16)`.
//!
//! Layout: `d: f16`, 4 bytes of fifth bits (bit `i` for element `i`), 16 bytes of low nibbles as in `Q4_0`.

use super::{
    Affine, Codes, Encoder, FormatInfo, Scales, code, expand, extreme, half_at, nibbles, put_half,
};

const ELEMENTS: usize = 32;
const BYTES: usize = 22;
const _: () = assert!(BYTES == 2 + ELEMENTS / 8 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q5_0",
    gguf_id: 6,
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
    zero_point: Some(16),
    multiples: None,
    split,
};

/// The 32 five-bit codes from the fifth bits and the nibbles that follow them.
pub(super) fn five_bit_codes(packed: &[u8], codes: &mut [u8]) {
    let (high, low) = packed.split_at(4);
    nibbles(low, codes);
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= (high[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// The inverse of [`five_bit_codes`].
pub(super) fn pack_five_bit_codes(codes: &[u8], packed: &mut [u8]) {
    packed.fill(0);
    for (i, &code) in codes.iter().enumerate() {
        packed[i / 8] |= (code >> 4) << (i % 8);
        packed[4 + i % 16] |= (code & 0x0f) << (i / 16 * 4);
    }
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    five_bit_codes(&block[2..], codes);
    scales[0] = half_at(block, 0);
}

fn quantize(values: &[f32], block: &mut [u8]) {
    let d = put_half(block, 0, extreme(values) / -16.0);
    let codes: Vec<u8> = values
        .iter()
        .map(|value| code(value + 16.0 * d, d, 31))
        .collect();
    pack_five_bit_codes(&codes, &mut block[2..]);
}
