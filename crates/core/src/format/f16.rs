//! `F16`: little-endian IEEE half floats.

use super::{Encoder, FormatInfo, half_at, put_half};

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "F16",
    gguf_id: 1,
    elements: 1,
    bytes: 2,
    dequantize: |block, out| out[0] = half_at(block, 0),
    encoder: Encoder::Rounding {
        quantize: |values, block| {
            put_half(block, 0, values[0]);
        },
        error: 1e-3,
    },
    affine: None,
};
