//! `F32`: little-endian 32-bit floats.

use super::{Encoder, FormatInfo};

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "F32",
    gguf_id: 0,
    elements: 1,
    bytes: 4,
    dequantize: |block, out| out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
    encoder: Encoder::Rounding {
        quantize: |values, block| block.copy_from_slice(&values[0].to_le_bytes()),
        error: 0.0,
    },
    affine: None,
};
