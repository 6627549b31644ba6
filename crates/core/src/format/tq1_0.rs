//! `TQ1_0`: 256 ternary codes, five to a byte, `w = d · (q − 1)`.
//!
//! Layout: 48 bytes of five codes, 4 bytes of four, `d: f16`. The first 32 bytes hold 160 elements,
//! element `32·j + l` as digit `j` of byte `l`; the next 16 hold 80, `16·j + l`; the last four hold
//! 16, `4·j + l`. The digits are those of a fraction in base 3: `byte = ⌈256 · 0.q₀q₁q₂q₃q₄⌉`.

use super::{Affine, Codes, Encoder, FormatInfo, Scales, code, expand, extreme, half_at, put_half};

const ELEMENTS: usize = 256;
const BYTES: usize = 54;
const D: usize = 52;
const _: () = assert!(BYTES == 48 + 4 + 2);

pub(super) const INFO: FormatInfo = FormatInfo {
    name: "TQ1_0",
    gguf_id: 34,
    elements: ELEMENTS,
    bytes: BYTES,
    dequantize: |block, out| expand(&AFFINE, block, out),
    encoder: Encoder::Rounding {
        quantize,
        error: 0.51,
    },
    affine: Some(AFFINE),
};

const AFFINE: Affine = Affine {
    sub_block: 32,
    codes: Codes::Unsigned2,
    scales: Scales::Half,
    zero_point: Some(1),
    multiples: None,
    split,
};

/// The byte and the digit of element `i`.
fn place(i: usize) -> (usize, u32) {
    let (start, width, i) = match i {
        0..160 => (0, 32, i),
        160..240 => (32, 16, i - 160),
        _ => (48, 4, i - 240),
    };
    (
        start + i % width,
        u32::try_from(i / width).expect("five digits"),
    )
}

fn split(block: &[u8], codes: &mut [u8], scales: &mut [f32], _: &mut [f32]) {
    for (i, code) in codes.iter_mut().enumerate() {
        let (byte, digit) = place(i);
        // Tripled as often as there are digits before, the fraction's next digit is its integer part.
        let rest = block[byte].wrapping_mul(3_u8.pow(digit));
        *code = u8::try_from((u16::from(rest) * 3) >> 8).expect("a digit");
    }
    scales.fill(half_at(block, D));
}

fn quantize(values: &[f32], block: &mut [u8]) {
    let d = put_half(block, D, extreme(values).abs());
    let mut numbers = [0_u16; D];
    for (i, value) in values.iter().enumerate() {
        let (byte, digit) = place(i);
        numbers[byte] += u16::from(code(value + d, d, 2)) * 3_u16.pow(4 - digit);
    }
    for (byte, number) in block.iter_mut().zip(numbers) {
        *byte = u8::try_from((number * 256).div_ceil(243)).expect("a fraction below one");
    }
}
