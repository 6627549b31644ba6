//! `Q8_0`: 32 signed bytes, `w = d · q`.
//!
//! Layout: `d: f16`, 32 bytes.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand, extreme, half_at, put_half};

const ELEMENTS: usize = 32;
const BYTES: usize = 34;
const _: () = assert!(BYTES == 2 + ELEMENTS);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q8_0",
    gguf_id: 8,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.006,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 32,
    codes: Codes::Signed8,
    scales: Scales::Half,
    zero_point: Some(0),
    multiples: None,
    split,
};

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    codes.copy_from_slice(&block[2..]);
    scales[0] = half_at(block, 0);
}

#[expect(clippy::cast_possible_truncation, reason = "clamped first")]
fn quantize(values: &[f32], block: &mut [u8]) {
    let d = put_half(block, 0, extreme(values).abs() / 127.0);
    for (byte, value) in block[2..].iter_mut().zip(values) {
        let code = if d == 0.0 {
            0.0
        } else {
            (value / d).round().clamp(-127.0, 127.0)
        };
        *byte = (code as i8).cast_unsigned();
    }
}
