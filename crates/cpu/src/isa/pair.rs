//! Vectors of twice the lanes, made of two.

use super::{Dots, Lanes};

/// Two vectors as one: the lower lanes first.
#[derive(Clone, Copy)]
pub(crate) struct Pair<L>(pub(super) L);

/// Operations that treat each half alone.
macro_rules! halves {
    ($($name:ident($($operand:ident: $kind:ident),*) -> $out:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($operand: Self::$kind),*) -> Self::$out {
            (self.0.$name($($operand.0),*), self.0.$name($($operand.1),*))
        }
    )*};
}

/// Reads and writes of each half where it lies: `lanes` elements apart.
macro_rules! memory {
    ($(load $load:ident($from:ty) -> $out:ident;)* $(store $store:ident($to:ty, $in:ident);)*) => {
        $(#[inline(always)]
        unsafe fn $load(self, from: *const $from) -> Self::$out {
            // SAFETY: the caller vouches for both halves.
            unsafe { (self.0.$load(from), self.0.$load(from.add(L::LANES))) }
        })*
        $(#[inline(always)]
        unsafe fn $store(self, to: *mut $to, value: Self::$in) {
            // SAFETY: the caller vouches for both halves.
            unsafe {
                self.0.$store(to, value.0);
                self.0.$store(to.add(L::LANES), value.1);
            }
        })*
    };
}

impl<L: Lanes> Lanes for Pair<L> {
    type F = (L::F, L::F);
    type I = (L::I, L::I);
    const LANES: usize = 2 * L::LANES;
    const DOTS: Dots = L::DOTS;
    const MANY_REGISTERS: bool = false;
    const MATRICES: bool = L::MATRICES;

    halves! {
        add(a: F, b: F) -> F;
        sub(a: F, b: F) -> F;
        mul(a: F, b: F) -> F;
        div(a: F, b: F) -> F;
        fma(a: F, b: F, c: F) -> F;
        max(a: F, b: F) -> F;
        min(a: F, b: F) -> F;
        abs(a: F) -> F;
        round(a: F) -> F;
        zero_below(a: F, x: F, limit: F) -> F;
        scale_exponent(a: F, n: F) -> F;
        and(a: I, b: I) -> I;
        or(a: I, b: I) -> I;
        xor(a: I, b: I) -> I;
        add16(a: I, b: I) -> I;
        add32(a: I, b: I) -> I;
        multiply_add_bytes(a: I, b: I) -> I;
        dot(sum: I, a: I, b: I) -> I;
        add_pairs16(a: I) -> I;
        abs_bytes(a: I) -> I;
        apply_sign(a: I, sign: I) -> I;
        to_float(a: I) -> F;
    }

    memory! {
        load load(f32) -> F;
        load load_half(u16) -> F;
        load load_bf16(u16) -> F;
        load load_i8(i8) -> F;
        store store(f32, F);
        store store_half(u16, F);
        store store_as_i8(i8, F);
    }

    #[inline(always)]
    unsafe fn dots_of_two<const N: usize>(
        self,
        weights: [Self::I; N],
        rows: [*const i8; 2],
    ) -> [Self::I; 2] {
        let (mut lower, mut upper) = ([self.0.zero(); N], [self.0.zero(); N]);
        for (j, &half) in weights.iter().enumerate() {
            (lower[j], upper[j]) = half;
        }
        // SAFETY: the caller vouches for the rows.
        unsafe {
            let [a, b] = self.0.dots_of_two(lower, rows);
            let [c, d] = self.0.dots_of_two(upper, rows);
            [(a, c), (b, d)]
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Self::I {
        // SAFETY: the caller vouches for both halves.
        unsafe {
            let second = from.add(4 * L::LANES);
            (self.0.load_bytes(from), self.0.load_bytes(second))
        }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, value: Self::I) {
        // SAFETY: the caller vouches for both halves.
        unsafe {
            self.0.store_bytes(to, value.0);
            self.0.store_bytes(to.add(4 * L::LANES), value.1);
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        let value = self.0.splat(value);
        (value, value)
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        self.0.prefetch(at);
    }

    #[inline(always)]
    fn prefetch_far(self, at: *const u8) {
        self.0.prefetch_far(at);
    }

    #[inline(always)]
    fn zero(self) -> Self::I {
        (self.0.zero(), self.0.zero())
    }

    #[inline(always)]
    unsafe fn broadcast4(self, from: *const i8) -> Self::I {
        // SAFETY: passed on to the caller.
        let four = unsafe { self.0.broadcast4(from) };
        (four, four)
    }

    #[inline(always)]
    fn splat_byte(self, value: u8) -> Self::I {
        let value = self.0.splat_byte(value);
        (value, value)
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], index: Self::I) -> Self::I {
        (
            self.0.look_up(table, index.0),
            self.0.look_up(table, index.1),
        )
    }

    #[inline(always)]
    fn shift_right16<const N: i32>(self, a: Self::I) -> Self::I {
        (
            self.0.shift_right16::<N>(a.0),
            self.0.shift_right16::<N>(a.1),
        )
    }

    #[inline(always)]
    fn shift_left16<const N: i32>(self, a: Self::I) -> Self::I {
        (self.0.shift_left16::<N>(a.0), self.0.shift_left16::<N>(a.1))
    }
}
