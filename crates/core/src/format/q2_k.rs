//! `Q2_K`: 256 codes of 2 bits, `w = d·sc · q − dmin·m` with 4-bit `sc`, `m` per 16.
//!
//! Layout: 16 bytes with `sc` low and `m` high, 64 bytes of bit pairs, `d: f16`, `dmin: f16`. Each
//! run of 32 bytes holds 128 elements: element `32·j + l` is the pair `j` of byte `l`.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, code, expand, half_at, min_max, put_half};

const ELEMENTS: usize = 256;
const BYTES: usize = 84;
const PAIRS: usize = 16;
const D: usize = 80;
const _: () = assert!(BYTES == ELEMENTS / 16 + ELEMENTS / 4 + 2 + 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "Q2_K",
    gguf_id: 10,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.5,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 16,
    codes: Codes::Unsigned2,
    scales: Scales::Single,
    zero_point: None,
    multiples: Some(multiples),
    split,
};

/// The byte and shift of element `i`'s bit pair in blocks that keep 128 elements in 32 bytes.
pub(super) fn pair_place(i: usize) -> (usize, usize) {
    (i / 128 * 32 + i % 32, i % 128 / 32 * 2)
}

fn multiples(block: &[u8], scales: &mut [i8], offsets: &mut [i8]) -> [f32; 2] {
    for (j, &byte) in block[..PAIRS].iter().enumerate() {
        scales[j] = (byte & 0x0f).cast_signed();
        offsets[j] = (byte >> 4).cast_signed();
    }
    [half_at(block, D), -half_at(block, D + 2)]
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], offsets: &mut [f32]) {
    for (i, code) in codes.iter_mut().enumerate() {
        let (byte, shift) = pair_place(i);
        *code = block[PAIRS + byte] >> shift & 3;
    }
    let (d, dmin) = (half_at(block, D), half_at(block, D + 2));
    for (j, &byte) in block[..PAIRS].iter().enumerate() {
        scales[j] = d * f32::from(byte & 0x0f);
        offsets[j] = -(dmin * f32::from(byte >> 4));
    }
}

fn quantize(values: &[f32], block: &mut [u8]) {
    block.fill(0);
    let ranges: Vec<(f32, f32)> = values
        .chunks_exact(16)
        .map(|sub| {
            let (low, high) = min_max(sub);
            (low.min(0.0), high.max(low.min(0.0)))
        })
        .collect();
    let scale = |range: &(f32, f32)| (range.1 - range.0) / 3.0;
    let widest = ranges.iter().map(scale).fold(0.0, f32::max);
    let deepest = ranges.iter().map(|range| -range.0).fold(0.0, f32::max);
    let d = put_half(block, D, widest / 15.0);
    let dmin = put_half(block, D + 2, deepest / 15.0);
    for (j, range) in ranges.iter().enumerate() {
        block[j] = code(scale(range), d, 15) | code(-range.0, dmin, 15) << 4;
    }
    for (i, value) in values.iter().enumerate() {
        let (scale, minimum) = (block[i / 16] & 0x0f, block[i / 16] >> 4);
        let above = value + dmin * f32::from(minimum);
        let (byte, shift) = pair_place(i);
        block[PAIRS + byte] |= code(above, d * f32::from(scale), 3) << shift;
    }
}
