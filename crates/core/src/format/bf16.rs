//! `BF16`: the upper 16 bits of a 32-bit float, little-endian.

use super::{Encoder, FormatInfo};

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "BF16",
    gguf_id: 30,
    elements: 1,
    bytes: 2,
    dequantize: |block, out| out[0] = half::bf16::from_le_bytes([block[0], block[1]]).to_f32(),
    encoder: Encoder::Rounding {
        quantize: |values, block| {
            block.copy_from_slice(&half::bf16::from_f32(values[0]).to_le_bytes());
        },
        error: 1e-2,
    },
    affine: None,
};
