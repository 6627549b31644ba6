//! `MXFP4`: 32 floats of 4 bits (E2M1) under a power of two (E8M0), `w = 2^(e − 128) · MICROSCALING[q]`.
//!
//! Layout: `e`, 16 bytes; byte `i` holds element `i` low and element `i + 16` high. The values are
//! doubled, which the exponent makes up for.
//!
//! Source: OCP Microscaling Formats (MX) v1.0, 2023.

use super::{Affine, Codes, Encoder, FormatInfo, Scales};
use super::{expand, extreme, nearest, nibbles};

/// Twice the values of E2M1, by code: the fourth bit is the sign.
pub const MICROSCALING: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

const ELEMENTS: usize = 32;
const BYTES: usize = 17;
const _: () = assert!(BYTES == 1 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "MXFP4",
    gguf_id: 39,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.26,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 32,
    codes: Codes::Table(&MICROSCALING),
    scales: Scales::Brain,
    zero_point: Some(0),
    multiples: None,
    split,
};

/// `2^(e − 128)`; the two smallest are below the normal floats.
fn scale(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    nibbles(&block[1..], codes);
    scales[0] = scale(block[0]);
}

fn quantize(values: &[f32], block: &mut [u8]) {
    // The largest magnitude lies in 2^k..2^(k+1); 2^(k−2) brings it to 4..8, where E2M1 ends at 6.
    let exponent = (extreme(values).abs().to_bits() >> 23).saturating_sub(2);
    block[0] = u8::try_from(exponent).expect("a float's exponent has 8 bits");
    let d = scale(block[0]);
    for i in 0..ELEMENTS / 2 {
        let code = |value: f32| nearest(&MICROSCALING, value / d);
        block[1 + i] = code(values[i]) | code(values[i + 16]) << 4;
    }
}
