use super::*;
use proptest::prelude::*;

/// Runs every operation on given lanes and bytes and returns all results as bits.
struct AllOperations {
    a: [f32; 8],
    b: [f32; 8],
    x: [u8; 32],
    y: [u8; 32],
}

impl Kernel for AllOperations {
    type Output = Vec<u32>;

    #[inline(always)]
    #[expect(clippy::many_single_char_names, reason = "operands")]
    fn run<I: Isa>(self, isa: I) -> Vec<u32> {
        // SAFETY: every pointer below is to an array of the length its operation reads or writes.
        unsafe {
            let (a, b) = (isa.load(self.a.as_ptr()), isa.load(self.b.as_ptr()));
            let (x, y) = (
                isa.load_bytes(self.x.as_ptr()),
                isa.load_bytes(self.y.as_ptr()),
            );
            let halves: Vec<u16> = self.x.chunks(2).map(|h| u16::from(h[0]) << 6 | 3).collect();
            let n = isa.round(isa.max(isa.min(b, isa.splat(100.0)), isa.splat(-100.0)));
            let small = isa.and(x, isa.splat_byte(127));
            let floats = [
                isa.add(a, b),
                isa.sub(a, b),
                isa.mul(a, b),
                isa.div(a, b),
                isa.fma(a, b, a),
                isa.max(a, b),
                isa.min(a, b),
                isa.abs(a),
                isa.round(a),
                isa.zero_below(a, b, isa.splat(0.5)),
                isa.scale_exponent(isa.splat(1.25), n),
                isa.load_half(halves.as_ptr()),
                isa.load_bf16(halves.as_ptr()),
                isa.load_i8(self.x.as_ptr().cast()),
                math::exp(isa, a),
                math::tanh(isa, b),
                isa.to_float(isa.add_pairs16(isa.multiply_add_bytes(small, y))),
            ];
            let integers = [
                isa.and(x, y),
                isa.or(x, y),
                isa.shift_right16::<4>(x),
                isa.shift_left16::<2>(x),
                isa.add16(x, y),
                isa.add32(x, y),
                isa.multiply_add_bytes(small, y),
                isa.add_pairs16(x),
                isa.abs_bytes(x),
                isa.apply_sign(y, x),
                isa.zero(),
                isa.broadcast4(self.x.as_ptr().cast()),
            ];
            let mut out = Vec::new();
            for value in floats {
                out.extend(isa.to_array(value).map(|lane| (lane + 0.0).to_bits()));
            }
            for value in integers {
                let mut bytes = [0; 32];
                isa.store_bytes(bytes.as_mut_ptr(), value);
                out.extend(bytes.map(u32::from));
            }
            let (mut stored, mut bytes) = ([0_u16; 8], [0_i8; 8]);
            isa.store_half(stored.as_mut_ptr(), a);
            isa.store_as_i8(bytes.as_mut_ptr(), n);
            out.extend(stored.map(u32::from));
            out.extend(bytes.map(|byte| u32::from(byte.cast_unsigned())));
            out.push(math::sum_lanes(isa, a).to_bits());
            out.push(math::max_lane(isa, a).to_bits());
            out
        }
    }
}

proptest! {
    #[test]
    fn all_instruction_sets_give_the_same_bits(
        a in proptest::array::uniform8(-90.0_f32..90.0),
        b in proptest::array::uniform8(-4.0_f32..4.0),
        x in proptest::array::uniform32(any::<u8>()),
        y in proptest::array::uniform32(-127_i8..=127),
    ) {
        let y = y.map(i8::cast_unsigned);
        let results: Vec<_> = IsaChoice::available()
            .into_iter()
            .map(|isa| isa.run(AllOperations { a, b, x, y }))
            .collect();
        for other in &results[1..] {
            prop_assert_eq!(&results[0], other);
        }
    }

    #[test]
    fn exp_is_within_its_bound(x in -87.0_f32..87.0) {
        struct Exp(f32);
        impl Kernel for Exp {
            type Output = f32;
            #[inline(always)]
            fn run<I: Isa>(self, isa: I) -> f32 {
                isa.to_array(math::exp(isa, isa.splat(self.0)))[3]
            }
        }
        let (got, want) = (f64::from(IsaChoice::best().run(Exp(x))), f64::from(x).exp());
        prop_assert!((got / want - 1.0).abs() < 3e-7, "exp({x}) = {got}, not {want}");
    }
}

#[test]
fn names_are_found_or_listed() {
    assert_eq!(IsaChoice::named("scalar").unwrap().name(), "scalar");
    let error = IsaChoice::named("neon512").unwrap_err().to_string();
    assert!(
        error.contains("neon512") && error.contains("scalar"),
        "{error}"
    );
}
