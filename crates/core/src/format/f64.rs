//! `F64`: little-endian 64-bit floats, read to the nearest 32-bit float.

use super::{Encoder, FormatInfo};

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "F64",
    gguf_id: 28,
    elements: 1,
    bytes: 8,
    dequantize,
    encoder: Encoder::Rounding {
        quantize: |values, block| block.copy_from_slice(&f64::from(values[0]).to_le_bytes()),
        error: 0.0,
    },
    affine: None,
};

#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
fn dequantize(block: &[u8], out: &mut [f32]) {
    out[0] = f64::from_le_bytes(block.try_into().expect("eight bytes")) as f32;
}
