//! How keys and values are stored: one type each, behind one trait for the attention kernel.

use super::BLOCK;
use crate::isa::{Isa, Kernel, Lanes};
use std::fmt;

/// Elements of a head that share one scale in [`KvFormat::Q8_0`].
pub(crate) const SCALE_GROUP: usize = 32;

/// A storage format of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// IEEE half floats: 11 bits of precision, magnitudes up to 65,504.
    #[default]
    F16,
    /// The upper half of single floats: 8 bits of precision, any magnitude.
    BF16,
    /// Single floats: nothing is rounded, twice the memory.
    F32,
    /// Signed bytes, one half-float scale per 32 elements of a head: about half the memory.
    Q8_0,
}

impl KvFormat {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::F16, Self::BF16, Self::F32, Self::Q8_0];

    /// The name, as in `--kv-format`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::Q8_0 => "q8_0",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Result<Self, UnknownKvFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| UnknownKvFormat(name.to_owned()))
    }

    /// Bytes of the keys (or of the values) of one head in one block, scales included.
    pub(crate) const fn head_bytes(self, head_dim: usize) -> usize {
        let scales = match self {
            Self::Q8_0 => head_dim.div_ceil(SCALE_GROUP) * BLOCK * 2,
            _ => 0,
        };
        self.element_bytes() * head_dim * BLOCK + scales
    }

    /// Bytes of one element.
    pub(crate) const fn element_bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
            Self::Q8_0 => 1,
        }
    }

    /// What the cache gives back for a head that was stored in it: the meaning of the format.
    pub(crate) fn reference(self, head: &[f32]) -> Vec<f32> {
        match self {
            Self::F16 => head
                .iter()
                .map(|&x| half::f16::from_f32(x).to_f32())
                .collect(),
            Self::BF16 => head
                .iter()
                .map(|&x| half::bf16::from_f32(x).to_f32())
                .collect(),
            Self::F32 => head.to_vec(),
            Self::Q8_0 => head
                .chunks(SCALE_GROUP)
                .flat_map(|group| {
                    let scale = scale_of(group);
                    group
                        .iter()
                        .map(move |&x| f32::from(code_of(x, scale)) * scale)
                })
                .collect(),
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The asked-for format of the KV cache is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no format of the KV cache; there are f16, bf16, f32 and q8_0")]
pub struct UnknownKvFormat(String);

/// The scale of a group: `max|x| / 127` as a half float; NaN if a value is not finite.
fn scale_of(group: &[f32]) -> f32 {
    let mut largest = 0.0_f32;
    for x in group {
        if !x.is_finite() {
            return f32::NAN;
        }
        largest = largest.max(x.abs());
    }
    half::f16::from_f32(largest / 127.0).to_f32()
}

#[expect(clippy::cast_possible_truncation, reason = "clamped; NaN becomes zero")]
fn code_of(x: f32, scale: f32) -> i8 {
    if scale > 0.0 {
        (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8
    } else {
        0
    }
}

/// Elements of the cache as the attention kernel reads them.
pub(crate) trait Store: Copy + 'static {
    /// The format.
    const FORMAT: KvFormat;
    /// Whether groups of [`SCALE_GROUP`] elements have scales.
    const SCALED: bool = matches!(Self::FORMAT, KvFormat::Q8_0);
    /// Whether elements are narrower floats, which loading expands.
    const NARROW: bool = matches!(Self::FORMAT, KvFormat::F16 | KvFormat::BF16);

    /// Neighbouring elements, without their scales.
    ///
    /// # Safety
    /// As many elements as lanes are readable from `at` on behind `from`.
    unsafe fn load<I: Lanes>(isa: I, from: *const u8, at: usize) -> I::F;
}

macro_rules! store {
    ($name:ident, $format:ident, $element:ty, $load:ident) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Store for $name {
            const FORMAT: KvFormat = KvFormat::$format;

            #[inline(always)]
            unsafe fn load<I: Lanes>(isa: I, from: *const u8, at: usize) -> I::F {
                // SAFETY: passed on to the caller.
                unsafe { isa.$load(from.cast::<$element>().add(at)) }
            }
        }
    };
}

store!(HalfStore, F16, u16, load_half);
store!(BrainStore, BF16, u16, load_bf16);
store!(SingleStore, F32, f32, load);
store!(ByteStore, Q8_0, i8, load_i8);

/// Encodes one head: elements as bytes in order, then (for scaled formats) one half float a group.
pub(crate) struct Encode<'a> {
    pub(crate) format: KvFormat,
    pub(crate) head: &'a [f32],
    /// `element_bytes · head_dim`
    pub(crate) elements: &'a mut [u8],
    /// One per group; left alone by formats without scales.
    pub(crate) scales: &'a mut [u16],
}

impl Kernel for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self {
            format,
            head,
            elements,
            scales,
        } = self;
        assert!(
            elements.len() == head.len() * format.element_bytes(),
            "room for the head"
        );
        match format {
            KvFormat::F16 => {
                for (x, to) in head
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .zip(elements.as_chunks_mut::<16>().0)
                {
                    // SAFETY: eight floats are read, eight halves written.
                    unsafe { isa.store_half(to.as_mut_ptr().cast(), isa.load(x.as_ptr())) };
                }
            }
            KvFormat::BF16 => {
                for (x, to) in head.iter().zip(elements.as_chunks_mut::<2>().0) {
                    *to = half::bf16::from_f32(*x).to_le_bytes();
                }
            }
            KvFormat::F32 => {
                for (x, to) in head.iter().zip(elements.as_chunks_mut::<4>().0) {
                    *to = x.to_le_bytes();
                }
            }
            KvFormat::Q8_0 => {
                let groups = head
                    .chunks(SCALE_GROUP)
                    .zip(elements.chunks_mut(SCALE_GROUP));
                for ((group, to), stored) in groups.zip(scales) {
                    let scale = scale_of(group);
                    *stored = half::f16::from_f32(scale).to_bits();
                    for (x, to) in group.iter().zip(to) {
                        *to = code_of(*x, scale).cast_unsigned();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::IsaChoice;
    use proptest::prelude::*;

    fn decode(format: KvFormat, elements: &[u8], scales: &[u16]) -> Vec<f32> {
        let element = |(i, bytes): (usize, &[u8])| match *bytes {
            [a, b] if format == KvFormat::F16 => half::f16::from_le_bytes([a, b]).to_f32(),
            [a, b] => half::bf16::from_le_bytes([a, b]).to_f32(),
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            _ => {
                let scale = half::f16::from_bits(scales[i / SCALE_GROUP]).to_f32();
                f32::from(bytes[0].cast_signed()) * scale
            }
        };
        elements
            .chunks(format.element_bytes())
            .enumerate()
            .map(element)
            .collect()
    }

    proptest! {
        #[test]
        fn heads_come_back_as_the_reference_says(
            head in (1_usize..12).prop_flat_map(|n| {
                proptest::collection::vec(-300.0_f32..300.0, 8 * n)
            }),
            size in prop_oneof![Just(0.0_f32), Just(1e-6), Just(1.0)],
        ) {
            let head: Vec<f32> = head.iter().map(|x| x * size).collect();
            for format in KvFormat::ALL {
                for isa in IsaChoice::available() {
                    let mut elements = vec![0; head.len() * format.element_bytes()];
                    let mut scales = [0; 3];
                    let (to, scales_to) = (&mut elements, &mut scales);
                    isa.run(Encode { format, head: &head, elements: to, scales: scales_to });
                    prop_assert_eq!(decode(format, &elements, &scales), format.reference(&head));
                }
            }
        }
    }

    #[test]
    fn names_are_found() {
        for format in KvFormat::ALL {
            assert_eq!(KvFormat::named(format.name()), Ok(format));
        }
        assert!(
            KvFormat::named("int3")
                .unwrap_err()
                .to_string()
                .contains("int3")
        );
    }
}
