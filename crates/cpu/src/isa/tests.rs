use super::*;
use proptest::prelude::*;

/// Sixteen lanes of operands.
struct Operands {
    a: [f32; 16],
    b: [f32; 16],
    x: [u8; 64],
    y: [u8; 64],
    table: [u8; 16],
}

/// Runs every operation and returns all results as bits: the narrow vectors half by half, then the
/// wide ones.
struct AllOperations<'a>(&'a Operands);

impl Kernel for AllOperations<'_> {
    type Output = [Vec<u32>; 2];

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> [Vec<u32>; 2] {
        let halves = [operations(isa, self.0, 0), operations(isa, self.0, 8)];
        let narrow = halves[0].iter().zip(&halves[1]);
        let narrow = narrow.flat_map(|(first, second)| [first.clone(), second.clone()].concat());
        let wide = operations(isa.wide(), self.0, 0);
        let array = isa.to_array(isa.splat(self.0.a[0]));
        let single = [
            math::sum_lanes(isa, isa.splat(self.0.a[0])),
            math::max_lane(isa, isa.splat(0.5)),
        ];
        let single = array.into_iter().chain(single).map(f32::to_bits);
        [narrow.chain(single).collect(), wide.concat()]
    }
}

/// Every operation on the lanes from `first` on; one list of bits each.
#[inline(always)]
#[expect(clippy::many_single_char_names, reason = "operands")]
fn operations<L: Lanes>(isa: L, operands: &Operands, first: usize) -> Vec<Vec<u32>> {
    let halves: Vec<u16> = operands
        .x
        .chunks(2)
        .map(|h| u16::from(h[0]) << 6 | 3)
        .collect();
    // SAFETY: every pointer below is to an array that holds as many lanes behind `first`.
    unsafe {
        let (a, b) = (
            isa.load(operands.a.as_ptr().add(first)),
            isa.load(operands.b.as_ptr().add(first)),
        );
        let x = isa.load_bytes(operands.x.as_ptr().add(4 * first));
        let y = isa.load_bytes(operands.y.as_ptr().add(4 * first));
        let halves = halves.as_ptr().add(first);
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
            isa.load_half(halves),
            isa.load_bf16(halves),
            isa.load_i8(operands.x.as_ptr().add(first).cast()),
            math::exp(isa, a),
            math::tanh(isa, b),
            isa.to_float(isa.add_pairs16(isa.multiply_add_bytes(small, y))),
        ];
        let integers = [
            isa.and(x, y),
            isa.or(x, y),
            isa.xor(x, y),
            isa.look_up(&operands.table, isa.and(x, isa.splat_byte(15))),
            isa.shift_right16::<4>(x),
            isa.shift_left16::<2>(x),
            isa.add16(x, y),
            isa.add32(x, y),
            isa.multiply_add_bytes(small, y),
            isa.dot(x, small, y),
            isa.add_pairs16(x),
            isa.abs_bytes(x),
            isa.apply_sign(y, x),
            isa.zero(),
            isa.broadcast4(operands.x.as_ptr().cast()),
        ];
        let mut out = bits(isa, &floats, &integers);
        let (mut stored, mut bytes) = (vec![0_u16; L::LANES], vec![0_i8; L::LANES]);
        isa.store_half(stored.as_mut_ptr(), a);
        isa.store_as_i8(bytes.as_mut_ptr(), n);
        out.push(stored.into_iter().map(u32::from).collect());
        out.push(
            bytes
                .into_iter()
                .map(|byte| u32::from(byte.cast_unsigned()))
                .collect(),
        );
        out
    }
}

/// The bits of vectors, one list each.
#[inline(always)]
fn bits<L: Lanes>(isa: L, floats: &[L::F], integers: &[L::I]) -> Vec<Vec<u32>> {
    let mut out = Vec::new();
    for &value in floats {
        let mut lanes = vec![0.0_f32; L::LANES];
        // SAFETY: as many floats as lanes.
        unsafe { isa.store(lanes.as_mut_ptr(), value) };
        out.push(lanes.iter().map(|lane| (lane + 0.0).to_bits()).collect());
    }
    for &value in integers {
        let mut bytes = vec![0; 4 * L::LANES];
        // SAFETY: four bytes for each lane.
        unsafe { isa.store_bytes(bytes.as_mut_ptr(), value) };
        out.push(bytes.into_iter().map(u32::from).collect());
    }
    out
}

/// `dot` on all bytes, and what kind it is; the narrow vectors half by half, then the wide ones.
struct AllDots<'a>(&'a Operands);

impl Kernel for AllDots<'_> {
    type Output = [(Dots, Vec<u8>); 2];

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        let halves = [dot(isa, self.0, 0), dot(isa, self.0, 32)];
        [
            (I::DOTS, halves.concat()),
            (I::Wide::DOTS, dot(isa.wide(), self.0, 0)),
        ]
    }
}

#[inline(always)]
fn dot<L: Lanes>(isa: L, operands: &Operands, first: usize) -> Vec<u8> {
    let mut out = vec![0; 4 * L::LANES];
    // SAFETY: the operands hold a vector behind `first`, and `out` is one.
    unsafe {
        let x = isa.load_bytes(operands.x.as_ptr().add(first));
        let y = isa.load_bytes(operands.y.as_ptr().add(first));
        isa.store_bytes(out.as_mut_ptr(), isa.dot(y, x, y));
    }
    out
}

/// `dots_of_two` of two vectors and two rows of eight bytes each.
struct TwoByTwo<'a>(&'a Operands);

impl Kernel for TwoByTwo<'_> {
    type Output = [(Dots, [Vec<u8>; 2]); 2];

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        [
            (I::DOTS, two_by_two(isa, self.0)),
            (I::Wide::DOTS, two_by_two(isa.wide(), self.0)),
        ]
    }
}

#[inline(always)]
fn two_by_two<L: Lanes>(isa: L, operands: &Operands) -> [Vec<u8>; 2] {
    let mut out = [vec![0; 4 * L::LANES], vec![0; 4 * L::LANES]];
    let rows = operands.y.as_ptr().cast();
    // SAFETY: the operands hold two rows and a vector, and `out` two.
    unsafe {
        let x = isa.load_bytes(operands.x.as_ptr());
        let weights = [x, isa.xor(x, isa.splat_byte(0x5a))];
        let [first, second] = isa.dots_of_two(weights, [rows, rows.add(8)]);
        isa.store_bytes(out[0].as_mut_ptr(), first);
        isa.store_bytes(out[1].as_mut_ptr(), second);
    }
    out
}

/// `dots_of_two` in plain loops, for the first `lanes` lanes.
fn plain_two_by_two(dots: Dots, operands: &Operands, row: usize, lanes: usize) -> Vec<u8> {
    let weights = operands.x.as_chunks::<4>().0.iter().take(lanes);
    let row = &operands.y[8 * row..8 * row + 8];
    let sums = weights.flat_map(|four| {
        let other = four.map(|byte| byte ^ 0x5a);
        let all = four.iter().chain(&other).zip(row);
        let products = all.map(|(&x, &y)| product(dots, x, y));
        products.sum::<i32>().to_le_bytes()
    });
    sums.collect()
}

fn product(dots: Dots, x: u8, y: u8) -> i32 {
    let x = match dots {
        Dots::Signed => i32::from(x.cast_signed()),
        Dots::None | Dots::Unsigned => i32::from(x),
    };
    x * i32::from(y.cast_signed())
}

/// `dot` in plain loops.
fn plain_dot(dots: Dots, operands: &Operands) -> Vec<u8> {
    let mut out = Vec::new();
    let (x, y) = (operands.x.as_chunks::<4>().0, operands.y.as_chunks::<4>().0);
    for (x, y) in x.iter().zip(y) {
        let mut sum = i32::from_le_bytes(*y);
        for (&x, &y) in x.iter().zip(y) {
            sum = sum.wrapping_add(product(dots, x, y));
        }
        out.extend(sum.to_le_bytes());
    }
    out
}

proptest! {
    #[test]
    fn all_instruction_sets_give_the_same_bits(
        a in proptest::array::uniform16(-90.0_f32..90.0),
        b in proptest::array::uniform16(-4.0_f32..4.0),
        x in proptest::collection::vec(any::<u8>(), 64),
        y in proptest::collection::vec(-127_i8..=127, 64),
    ) {
        let table = std::array::from_fn(|i| x[4 * i]);
        let mut operands = Operands { a, b, x: [0; 64], y: [0; 64], table };
        operands.x.copy_from_slice(&x);
        for (to, from) in operands.y.iter_mut().zip(y) {
            *to = from.cast_unsigned();
        }
        let results: Vec<_> = IsaChoice::available()
            .into_iter()
            .map(|isa| isa.run(AllOperations(&operands)))
            .collect();
        for [narrow, wide] in &results {
            prop_assert_eq!(&results[0][0], narrow);
            prop_assert_eq!(&narrow[..wide.len()], wide);
        }
    }

    #[test]
    fn dots_are_exact(
        x in proptest::collection::vec(any::<u8>(), 64),
        y in proptest::collection::vec(-128_i8..=127, 64),
    ) {
        let mut operands = Operands { a: [0.0; 16], b: [0.0; 16], x: [0; 64], y: [0; 64], table: [0; 16] };
        operands.x.copy_from_slice(&x);
        for (to, from) in operands.y.iter_mut().zip(y) {
            *to = from.cast_unsigned();
        }
        for isa in IsaChoice::available() {
            for (dots, got) in isa.run(AllDots(&operands)) {
                prop_assert_eq!(got, plain_dot(dots, &operands), "{:?}, {:?}", isa, dots);
            }
            for (dots, rows) in isa.run(TwoByTwo(&operands)) {
                for (row, got) in rows.into_iter().enumerate() {
                    let want = plain_two_by_two(dots, &operands, row, got.len() / 4);
                    prop_assert_eq!(got, want, "{:?}, {:?}, row {}", isa, dots, row);
                }
            }
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
