//! `NVFP4`: 64 floats of 4 bits (E2M1), `w = e/2 · MICROSCALING[q]` with a float of 8 bits (E4M3,
//! unsigned) `e` per 16.
//!
//! Layout: 4 bytes of scales, then for each 16 elements 8 bytes; byte `i` holds element `i` low and
//! element `i + 8` high. The values are doubled, which the half makes up for. The scales 0 and 127
//! stand for zero.

use super::{Affine, Codes, Encoder, FormatInfo, MICROSCALING, Scales, expand, nibbles};

const ELEMENTS: usize = 64;
const BYTES: usize = 36;
const _: () = assert!(BYTES == ELEMENTS / 16 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "NVFP4",
    gguf_id: 40,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Absent { rescale },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 16,
    codes: Codes::Table(&MICROSCALING),
    scales: Scales::Brain,
    zero_point: Some(0),
    multiples: None,
    split,
};

/// Half of the float: four bits of exponent, three of mantissa.
fn scale(e: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(e >> 3 & 0x0f), f32::from(e & 7));
    match e {
        0 | 0x7f => 0.0,
        _ if exponent == 0 => mantissa * 2.0_f32.powi(-10),
        _ => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 8),
    }
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    let (floats, packed) = block.split_at(4);
    for (j, codes) in codes.chunks_exact_mut(16).enumerate() {
        nibbles(&packed[8 * j..][..8], codes);
        scales[j] = scale(floats[j]);
    }
}

/// The largest float that is not above `wanted`, in all four places.
fn rescale(block: &mut [u8], wanted: f32) {
    let below = (1..0x7f).filter(|&e| 2.0 * scale(e) <= wanted);
    let chosen = below.max().unwrap_or(1);
    block[..4].fill(chosen);
}
