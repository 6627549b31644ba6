use super::*;
use proptest::prelude::*;

/// The largest error of plain rounding, as a share of the largest magnitude in the block.
fn bound(format: Format) -> f32 {
    match format {
        Format::F32 => 0.0,
        Format::F16 => 1e-3,
        Format::BF16 => 1e-2,
        Format::Q8_0 => 0.006,
        Format::Q6_K => 0.05,
        Format::Q5_0 | Format::Q5_1 => 0.07,
        Format::Q5_K => 0.12,
        Format::Q4_0 | Format::Q4_1 => 0.14,
        Format::Q4_K => 0.18,
    }
}

/// The error that remains however small the value: the numbers of a half float are 2^-24 apart below its
/// normal ones (IEEE 754), and rounding misses by half of that.
fn floor(format: Format) -> f32 {
    match format {
        Format::F16 => 2.0_f32.powi(-25),
        _ => 0.0,
    }
}

fn values() -> impl Strategy<Value = Vec<f32>> {
    (
        proptest::collection::vec(-1.0_f32..1.0, 512),
        0.01_f32..100.0,
    )
        .prop_map(|(values, size)| values.into_iter().map(|value| value * size).collect())
}

proptest! {
    #[test]
    fn round_trip_stays_within_the_bound(values in values()) {
        for &format in Format::ALL {
            let mut back = vec![0.0; values.len()];
            format.dequantize(&format.quantize(&values), &mut back);
            let step = format.info().elements;
            for (chunk, back) in values.chunks(step).zip(back.chunks(step)) {
                let limit = bound(format) * extreme(chunk).abs() + floor(format);
                for (value, back) in chunk.iter().zip(back) {
                    prop_assert!((value - back).abs() <= limit, "{format}: {value} became {back}");
                }
            }
        }
    }

    #[test]
    fn halves_round_to_the_nearest_down_to_zero(value in -7e-5_f32..7e-5) {
        let mut back = [0.0];
        Format::F16.dequantize(&Format::F16.quantize(&[value]), &mut back);
        prop_assert!((value - back[0]).abs() <= floor(Format::F16).max(value.abs() / 2048.0));
    }

    #[test]
    fn affine_split_agrees_with_dequantize(seed in proptest::collection::vec(any::<u8>(), 256)) {
        for &format in Format::ALL {
            let info = format.info();
            let Some(affine) = &info.affine else { continue };
            let mut block = seed[..info.bytes].to_vec();
            tame_halves(format, &mut block);
            let subs = info.elements / affine.sub_block;
            let (mut codes, mut scales) = (vec![0; info.elements], vec![0.0; subs]);
            let (mut offsets, mut plain) = (vec![0.0; subs], vec![0.0; info.elements]);
            (affine.split)(&block, &mut codes, &mut scales, &mut offsets);
            (info.dequantize)(&block, &mut plain);
            for (i, plain) in plain.iter().enumerate() {
                let code = match affine.codes {
                    Codes::Signed8 => f32::from(codes[i].cast_signed()),
                    _ => f32::from(codes[i]),
                };
                let sub = i / affine.sub_block;
                let value = f64::from(scales[sub]) * f64::from(code) + f64::from(offsets[sub]);
                let slack = 1e-6 * f64::from(scales[sub].abs()) * 64.0 + 1e-6;
                prop_assert!((value - f64::from(*plain)).abs() <= slack, "{format} element {i}");
            }
        }
    }
}

/// Random bytes may spell infinite or NaN half floats; scales of real files are finite.
fn tame_halves(format: Format, block: &mut [u8]) {
    let halves: &[usize] = match format {
        Format::Q6_K => &[208],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        _ => &[0],
    };
    for &at in halves {
        block[at + 1] = (block[at + 1] & 0x83) | 0x20;
    }
}

#[test]
fn known_bytes_decode_to_known_values() {
    // d = 0.5, m = -1.0; element 0 has code 3, element 16 code 10, the rest 0.
    let mut block = vec![0x00, 0x38, 0x00, 0xbc];
    block.push(0xa3);
    block.resize(20, 0);
    let mut out = [0.0; 32];
    Format::Q4_1.dequantize(&block, &mut out);
    assert_eq!((out[0], out[16], out[1]), (0.5, 4.0, -1.0));
}

#[test]
fn gguf_ids_are_unique_and_found() {
    for &format in Format::ALL {
        assert_eq!(Format::from_gguf_id(format.info().gguf_id), Some(format));
    }
    assert_eq!(Format::from_gguf_id(9999), None);
}
