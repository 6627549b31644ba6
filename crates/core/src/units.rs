//! Newtypes for everything that is counted, so that tokens, blocks and bytes cannot be mixed up.
//!
//! Arithmetic exists only where it means something. Ids have none.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub, SubAssign};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($repr);

        impl $name {
            /// None of them.
            pub const ZERO: Self = Self(0);

            /// Wraps a plain count.
            pub const fn new(count: $repr) -> Self {
                Self(count)
            }

            /// The plain count.
            pub const fn get(self) -> $repr {
                self.0
            }

            /// The difference, or zero where it would be negative.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }
    };
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($repr);

        impl $name {
            /// Wraps a raw id.
            pub const fn new(id: $repr) -> Self {
                Self(id)
            }

            /// The raw id.
            pub const fn get(self) -> $repr {
                self.0
            }

            /// The id as an index into a table.
            #[allow(clippy::cast_possible_truncation, reason = "targets are 64-bit; not all ids need it")]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

unit!(
    /// A number of tokens.
    Tokens(usize)
);
unit!(
    /// A number of KV cache blocks.
    Blocks(usize)
);
unit!(
    /// A number of bytes; displays as KiB, MiB or GiB.
    Bytes(u64)
);
id!(
    /// Someone whose requests are served as one party, such as an API key.
    TenantId(u64)
);
id!(
    /// An entry of a model's vocabulary.
    TokenId(u32)
);
id!(
    /// One sequence inside the engine; never reused while the engine lives.
    SeqId(u64)
);
id!(
    /// One block of the KV cache; the same block in every attention layer.
    BlockId(u32)
);

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Bytes {
    #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 as f64;
        match self.0 {
            0..=1023 => write!(f, "{} B", self.0),
            1024..=0xF_FFFF => write!(f, "{:.1} KiB", value / 1024.0),
            0x10_0000..=0x3FFF_FFFF => write!(f, "{:.1} MiB", value / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", value / 1_073_741_824.0),
        }
    }
}

impl Tokens {
    /// How many blocks of `block_size` tokens hold this many tokens.
    #[must_use]
    pub const fn blocks_needed(self, block_size: Self) -> Blocks {
        Blocks(self.0.div_ceil(block_size.0))
    }
}

impl Mul<Bytes> for Blocks {
    type Output = Bytes;
    fn mul(self, per_block: Bytes) -> Bytes {
        Bytes(self.0 as u64 * per_block.0)
    }
}

impl Blocks {
    /// The capacity of this many blocks in tokens.
    #[must_use]
    pub const fn tokens(self, block_size: Tokens) -> Tokens {
        Tokens(self.0 * block_size.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_needed_rounds_up() {
        let size = Tokens::new(32);
        for (tokens, blocks) in [(0, 0), (1, 1), (32, 1), (33, 2), (64, 2)] {
            assert_eq!(Tokens::new(tokens).blocks_needed(size), Blocks::new(blocks));
        }
    }

    #[test]
    fn bytes_show_their_unit() {
        for (bytes, shown) in [
            (12, "12 B"),
            (2048, "2.0 KiB"),
            (3 << 20, "3.0 MiB"),
            (5 << 29, "2.50 GiB"),
        ] {
            assert_eq!(Bytes::new(bytes).to_string(), shown);
        }
    }
}
