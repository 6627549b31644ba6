//! `Q5_K`: 256 codes of 5 bits, `w = d·sc · q − dmin·m` with 6-bit `sc`, `m` per 32.
//!
//! Layout: `d: f16`, `dmin: f16`, 12 bytes of scales (`k_scales`), 32 bytes of fifth bits (bit `j`
//! of byte `l` for element `32·j + l`), 128 bytes of nibbles as in `Q4_K`.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, expand, k_scales, nibbles};

const ELEMENTS: usize = 256;
const BYTES: usize = 176;
const _: () = assert!(BYTES == 2 + 2 + 12 + ELEMENTS / 8 + ELEMENTS / 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q5_K",
    gguf_id: 13,
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
    codes: Codes::Unsigned5,
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
    let (high, low) = block[16..].split_at(32);
    for (packed, codes) in low.chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        nibbles(packed, codes);
    }
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= (high[i % 32] >> (i / 32) & 1) << 4;
    }
}

fn quantize(values: &[f32], block: &mut [u8]) {
    let codes = k_scales::quantize(values, 31, block);
    let (high, low) = block[16..].split_at_mut(32);
    high.fill(0);
    for (i, code) in codes.iter().enumerate() {
        high[i % 32] |= (code >> 4) << (i / 32);
    }
    for (packed, codes) in low.chunks_exact_mut(32).zip(codes.chunks_exact(64)) {
        for (i, byte) in packed.iter_mut().enumerate() {
            *byte = (codes[i] & 0x0f) | (codes[i + 32] & 0x0f) << 4;
        }
    }
}
