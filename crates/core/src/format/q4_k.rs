//! `Q4_K`: 256 codes of 4 bits, `w = d·sc · q − dmin·m` with 6-bit `sc`, `m` per 32.
//!
//! Layout: `d: f16`, `dmin: f16`, 12 bytes of scales (`k_scales`), 128 bytes of nibbles; each run
//! of 32 bytes holds 64 elements, the first 32 low and the next 32 high.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand, k_scales, nibbles};

const ELEMENTS: usize = 256;
const BYTES: usize = 144;
const _: () = assert!(BYTES == 2 + 2 + 12 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q4_K",
    gguf_id: 12,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.18,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 32,
    codes: Codes::Unsigned4,
    scales: Scales::Single,
    zero_point: None,
    multiples: Some(multiples),
    split,
};

fn multiples(block: &[u8], scales: &mut [i8], offsets: &mut [i8]) -> [f32; 2] {
    k_scales::multiples(block, scales, offsets)
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], offsets: &mut [f32]) {
    k_scales::affine(block, scales, offsets);
    for (packed, codes) in block[16..].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        nibbles(packed, codes);
    }
}

fn quantize(values: &[f32], block: &mut [u8]) {
    let codes = k_scales::quantize(values, 15, block);
    for (packed, codes) in block[16..].chunks_exact_mut(32).zip(codes.chunks_exact(64)) {
        for (i, byte) in packed.iter_mut().enumerate() {
            *byte = codes[i] | codes[i + 32] << 4;
        }
    }
}
