//! `IQ4_NL`: 32 codes of 4 bits through a table, `w = d · NONLINEAR[q]`.
//!
//! Layout: `d: f16`, 16 bytes; byte `i` holds element `i` low and element `i + 16` high.

use super::{Affine, Codes, Encoder, FormatInfo, Scales};
use super::{expand, extreme, half_at, nearest, nibbles, put_half};

/// What the codes of `IQ4_NL` and `IQ4_XS` stand for: close together around zero, where most weights are.
pub const NONLINEAR: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

const ELEMENTS: usize = 32;
const BYTES: usize = 18;
const _: () = assert!(BYTES == 2 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "IQ4_NL",
    gguf_id: 20,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.12,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 32,
    codes: Codes::Table(&NONLINEAR),
    scales: Scales::Half,
    zero_point: Some(0),
    multiples: None,
    split,
};

/// The code that comes nearest to `value`.
pub(super) fn code(value: f32, scale: f32) -> u8 {
    let wanted = if scale == 0.0 { 0.0 } else { value / scale };
    nearest(&NONLINEAR, wanted)
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    nibbles(&block[2..], codes);
    scales[0] = half_at(block, 0);
}

fn quantize(values: &[f32], block: &mut [u8]) {
    let d = put_half(block, 0, extreme(values) / -127.0);
    for i in 0..ELEMENTS / 2 {
        block[2 + i] = code(values[i], d) | code(values[i + 16], d) << 4;
    }
}
