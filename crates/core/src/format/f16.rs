//! `F16`: little-endian IEEE half floats.

use super::{FormatInfo, half_at, put_half};

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "F16",
    gguf_id: 1,
    elements: 1,
    bytes: 2,
    dequantize: |block, out| out[0] = half_at(block, 0),
    quantize: |values, block| {
        put_half(block, 0, values[0]);
    },
    affine: None,
};
