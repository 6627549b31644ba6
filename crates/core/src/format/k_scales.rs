//! The 12 bytes of 6-bit scales and minima that `Q4_K` and `Q5_K` share.
//!
//! Sub-blocks 0..4 keep their scale in the low 6 bits of bytes 0..4 and their minimum in those of
//! bytes 4..8; sub-blocks 4..8 keep the low nibbles in bytes 8..12 and the upper 2 bits in the
//! tops of bytes 0..8.

use super::{code, half_at, min_max, put_half};

/// Scales and minima (as stored, 0..=63) of the eight sub-blocks.
pub(super) fn unpack(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = packed[j] & 63;
        minima[j] = packed[j + 4] & 63;
        scales[j + 4] = (packed[j + 8] & 0x0f) | (packed[j] >> 6) << 4;
        minima[j + 4] = packed[j + 8] >> 4 | (packed[j + 4] >> 6) << 4;
    }
    (scales, minima)
}

fn pack(scales: [u8; 8], minima: [u8; 8], packed: &mut [u8]) {
    for j in 0..4 {
        packed[j] = scales[j] | (scales[j + 4] >> 4) << 6;
        packed[j + 4] = minima[j] | (minima[j + 4] >> 4) << 6;
        packed[j + 8] = (scales[j + 4] & 0x0f) | (minima[j + 4] & 0x0f) << 4;
    }
}

/// The same as signed numbers, and what they multiply: `d` and `−dmin`.
pub(super) fn multiples(block: &[u8], scales: &mut [i8], offsets: &mut [i8]) -> [f32; 2] {
    let (codes, minima) = unpack(&block[4..16]);
    for j in 0..8 {
        scales[j] = codes[j].cast_signed();
        offsets[j] = minima[j].cast_signed();
    }
    [half_at(block, 0), -half_at(block, 2)]
}

/// The affine scales and offsets of a block that starts with `d`, `dmin` and the packed scales.
pub(super) fn affine(block: &[u8], scales: &mut [f32], offsets: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (codes, minima) = unpack(&block[4..16]);
    for j in 0..8 {
        scales[j] = d * f32::from(codes[j]);
        offsets[j] = -(dmin * f32::from(minima[j]));
    }
}

/// Chooses and writes the scales of a 256-element block; returns the codes of its elements.
pub(super) fn quantize(values: &[f32], top: u8, block: &mut [u8]) -> Vec<u8> {
    let ranges: Vec<(f32, f32)> = values
        .chunks_exact(32)
        .map(|sub| {
            let (low, high) = min_max(sub);
            (low.min(0.0), high.max(low.min(0.0)))
        })
        .collect();
    let scale = |range: &(f32, f32)| (range.1 - range.0) / f32::from(top);
    let widest = ranges.iter().map(scale).fold(0.0, f32::max);
    let deepest = ranges.iter().map(|range| -range.0).fold(0.0, f32::max);
    let d = put_half(block, 0, widest / 63.0);
    let dmin = put_half(block, 2, deepest / 63.0);
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for (j, range) in ranges.iter().enumerate() {
        scales[j] = code(scale(range), d, 63);
        minima[j] = code(-range.0, dmin, 63);
    }
    pack(scales, minima, &mut block[4..16]);
    let (mut stored, mut offsets) = ([0.0; 8], [0.0; 8]);
    affine(block, &mut stored, &mut offsets);
    let element = |(i, value): (usize, &f32)| code(value - offsets[i / 32], stored[i / 32], top);
    values.iter().enumerate().map(element).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn pack_and_unpack_are_inverse() {
        let scales = [0, 1, 33, 63, 62, 17, 16, 15];
        let minima = [63, 5, 48, 2, 63, 31, 32, 0];
        let mut packed = [0; 12];
        super::pack(scales, minima, &mut packed);
        assert_eq!(super::unpack(&packed), (scales, minima));
    }
}
