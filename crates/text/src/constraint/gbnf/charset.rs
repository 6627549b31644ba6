//! Sets of characters, kept as sorted ranges of code points, and sets of bytes.
//!
//! A set holds only what a `char` can be: the surrogates are never in it.

const SURROGATE_FIRST: u32 = 0xD800;
const SURROGATE_LAST: u32 = 0xDFFF;
const LAST: u32 = 0x0010_FFFF;

/// A set of characters: sorted ranges, both ends included, that neither touch nor overlap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CharSet(Vec<(u32, u32)>);

impl CharSet {
    /// Makes a set out of ranges in any order. Surrogates and what lies past the last code point
    /// are left out, and so is a range that ends before it begins.
    pub(super) fn new(ranges: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut valid = Vec::new();
        for (low, high) in ranges {
            let high = high.min(LAST);
            for (low, high) in [
                (low, high.min(SURROGATE_FIRST - 1)),
                (low.max(SURROGATE_LAST + 1), high),
            ] {
                if low <= high {
                    valid.push((low, high));
                }
            }
        }
        valid.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(valid.len());
        for (low, high) in valid {
            match merged.last_mut() {
                Some(last) if low <= last.1 + 1 => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        Self(merged)
    }

    /// The set of one character.
    pub(super) fn one(character: char) -> Self {
        Self::new([(character.into(), character.into())])
    }

    /// The set of all characters.
    pub(super) fn all() -> Self {
        Self::new([(0, LAST)])
    }

    /// The characters that are not in this set.
    pub(super) fn complement(&self) -> Self {
        let mut gaps = Vec::with_capacity(self.0.len() + 1);
        let mut next = 0;
        for &(low, high) in &self.0 {
            if next < low {
                gaps.push((next, low - 1));
            }
            next = high + 1;
        }
        if next <= LAST {
            gaps.push((next, LAST));
        }
        Self::new(gaps)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges in ascending order, both ends included.
    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }
}

/// A set of bytes, used for the bytes with which the UTF-8 form of a character can begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    pub(super) const NONE: Self = Self([0; 4]);
    /// The set of all bytes.
    pub(super) const ALL: Self = Self([u64::MAX; 4]);

    /// Adds the first bytes of the UTF-8 forms of all characters from `low` to `high`.
    pub(super) fn add_leads(&mut self, low: u32, high: u32) {
        for byte in lead(low)..=lead(high) {
            self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
        }
    }

    pub(super) fn add_all(&mut self, other: Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }

    /// Whether a byte is in both sets.
    pub(super) fn meets(self, other: Self) -> bool {
        self.0
            .iter()
            .zip(other.0)
            .any(|(mine, theirs)| mine & theirs != 0)
    }
}

/// The first byte of the UTF-8 form of a code point. It never falls as the code point grows.
fn lead(point: u32) -> u8 {
    let (mark, shift) = match point {
        0..=0x7F => (0, 0),
        0x80..=0x7FF => (0xC0, 6),
        0x800..=0xFFFF => (0xE0, 12),
        _ => (0xF0, 18),
    };
    u8::try_from(mark | (point >> shift)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_surrogates_left_out() {
        let set = CharSet::new([(0x62, 0x63), (0x61, 0x61), (0xD000, 0xE000), (0x7A, 0x70)]);
        assert_eq!(
            set.ranges(),
            [(0x61, 0x63), (0xD000, 0xD7FF), (0xE000, 0xE000)]
        );
        assert!(CharSet::new([(0xD800, 0xDFFF), (0x0011_0000, u32::MAX)]).is_empty());
    }

    #[test]
    fn a_set_and_its_complement_are_everything_and_do_not_meet() {
        for ranges in [
            vec![],
            vec![(0, 0)],
            vec![(5, 9), (0x41, 0xFFFF)],
            vec![(0, LAST)],
        ] {
            let set = CharSet::new(ranges);
            let rest = set.complement();
            let count = |set: &CharSet| {
                set.ranges()
                    .iter()
                    .map(|range| range.1 - range.0 + 1)
                    .sum::<u32>()
            };
            assert_eq!(count(&set) + count(&rest), count(&CharSet::all()));
            let both = set.ranges().iter().chain(rest.ranges()).copied();
            assert_eq!(CharSet::new(both), CharSet::all());
        }
    }

    #[test]
    fn first_bytes_are_those_of_utf8() {
        for point in [
            '\0', 'a', '\u{7F}', '\u{80}', 'ß', '\u{7FF}', '\u{800}', '€', '😀',
        ] {
            let mut buffer = [0; 4];
            let bytes = point.encode_utf8(&mut buffer).as_bytes()[0];
            assert_eq!(lead(point.into()), bytes, "{point:?}");
        }
        assert_eq!(lead(LAST), 0xF4);
    }
}
