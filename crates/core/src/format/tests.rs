use super::*;
use proptest::prelude::*;

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
            let Encoder::Rounding { error, .. } = format.info().encoder else { continue };
            let mut back = vec![0.0; values.len()];
            format.dequantize(&format.quantize(&values), &mut back);
            let step = format.info().elements;
            for (chunk, back) in values.chunks(step).zip(back.chunks(step)) {
                let limit = error * extreme(chunk).abs() + floor(format);
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
            let block = &seed[..info.bytes];
            let subs = info.elements / affine.sub_block;
            let (mut codes, mut scales) = (vec![0; info.elements], vec![0.0; subs]);
            let (mut offsets, mut plain) = (vec![0.0; subs], vec![0.0; info.elements]);
            (affine.split)(block, &mut codes, &mut scales, &mut offsets);
            (info.dequantize)(block, &mut plain);
            if plain.iter().any(|value| !value.is_finite()) {
                continue;
            }
            prop_assert!(affine.zero_point.is_none() || offsets.iter().all(|&offset| offset == 0.0));
            for scale in scales.iter().chain(&offsets) {
                let kept = match affine.scales {
                    Scales::Half => half::f16::from_f32(*scale).to_f32(),
                    Scales::Brain => half::bf16::from_f32(*scale).to_f32(),
                    Scales::Single => *scale,
                };
                prop_assert_eq!(kept, *scale, "{} keeps its scales", format);
            }
            if let Some(multiples) = affine.multiples {
                let (mut of, mut by) = (vec![0; subs], vec![0; subs]);
                let factors = multiples(block, &mut of, &mut by);
                for factor in factors {
                    prop_assert_eq!(half::f16::from_f32(factor).to_f32(), factor, "{}", format);
                }
                let product = |factor: f32| move |&times: &i8| factor * f32::from(times);
                prop_assert!(of.iter().map(product(factors[0])).eq(scales.iter().copied()));
                prop_assert!(by.iter().map(product(factors[1])).eq(offsets.iter().copied()));
            }
            for (i, plain) in plain.iter().enumerate() {
                let (sub, code) = (i / affine.sub_block, f64::from(affine.codes.value(codes[i])));
                let (scale, zero) = (f64::from(scales[sub]), affine.zero_point.map(f64::from));
                let offset = zero.map_or(f64::from(offsets[sub]), |zero| -zero * scale);
                let slack = 1e-6 * (64.0 * scale.abs() + offset.abs());
                let value = scale * code + offset;
                prop_assert!((value - f64::from(*plain)).abs() <= slack, "{format} element {i}");
            }
        }
    }
}

/// `fixtures/formats` has blocks of every format and their values by an independent implementation.
#[test]
fn golden_blocks_expand_bit_for_bit() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats");
    for &format in Format::ALL {
        let info = format.info();
        let file = std::fs::read(folder.join(format!("{format}.bin"))).expect(info.name);
        let blocks = file.len() / (info.bytes + 4 * info.elements);
        assert!(blocks >= 2, "{format} has blocks");
        let (stored, expected) = file.split_at(blocks * info.bytes);
        let mut values = vec![0.0; blocks * info.elements];
        format.dequantize(stored, &mut values);
        let expected = expected
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes(four.try_into().unwrap()));
        assert_eq!(
            expected.len(),
            values.len(),
            "{format}: a value for each element"
        );
        for (i, (value, expected)) in values.iter().zip(expected).enumerate() {
            let expected = f32::from_bits(expected);
            assert_eq!(
                value.to_bits(),
                expected.to_bits(),
                "{format} element {i}: {value} {expected}"
            );
        }
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
