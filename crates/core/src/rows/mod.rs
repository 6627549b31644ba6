//! Passes over a row of logits, of which the sampler makes its choice.
//!
//! A pass reads a row in stretches of [`STRETCH`] logits and says something about each, or adds to a
//! table. Every result is a comparison or a sum of whole numbers, so that neither the order of work
//! nor its division among threads changes a bit. The passes stand in [`plain`], in loops that use
//! additions, multiplications, comparisons and moves of bits alone, each rounded by itself: a backend
//! may compile these very loops for its instruction set, or compute the same otherwise.

mod exp;
pub mod plain;
#[cfg(test)]
mod tests;

use exp::exp;

/// Logits in a stretch; the last one of a row may be shorter.
pub const STRETCH: usize = 256;

/// The weight of the most likely token; a million tokens of it still sum to less than 2⁶⁰.
pub const ONE: u64 = 1 << 40;

/// Entries of a histogram: 24 octaves of depth, 128 in each.
pub const BUCKETS: usize = 24 * 128;

/// An empty histogram.
///
/// # Panics
/// Never.
pub fn table() -> Box<[u64; BUCKETS]> {
    vec![0; BUCKETS].try_into().expect("as many as it says")
}

/// Nearer to the most likely token than this is as good as equal to it, for a histogram.
const SHALLOWEST: f32 = 1.0 / 262_144.0;
/// The last depth of a histogram, just below 64: whatever is deeper weighs nothing.
const DEEPEST: f32 = 63.999_996;
/// A token at this depth weighs nothing: `e^-29 < 2^-41`.
const WEIGHTLESS: f32 = 29.0;

/// A part of a row that begins with a whole stretch.
#[derive(Clone, Copy, Debug)]
pub struct Stretches<'a> {
    /// The logits; none is NaN or plus infinity.
    pub logits: &'a [f32],
    /// The largest logit of each stretch, as [`RowPasses::maxima`] tells it.
    pub maxima: &'a [f32],
}

/// How much logits weigh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighing {
    /// The largest logit of the row.
    pub max: f32,
    /// One over the temperature.
    pub factor: f32,
    /// Smaller logits weigh nothing.
    pub least_logit: f32,
    /// Smaller shares weigh nothing.
    pub least_share: f32,
}

impl Weighing {
    /// All tokens at a temperature.
    pub fn new(max: f32, temperature: f32) -> Self {
        Self {
            max,
            factor: 1.0 / temperature,
            least_logit: f32::NEG_INFINITY,
            least_share: 0.0,
        }
    }

    /// How far below the most likely token: `(max − logit) / temperature`. It never falls where the
    /// logit rises not.
    #[inline]
    fn depth(&self, logit: f32) -> f32 {
        (self.max - logit) * self.factor
    }

    /// A token's probability as a share of the most likely one's: `e^-depth`.
    #[inline]
    pub fn share(&self, logit: f32) -> f32 {
        exp(-self.depth(logit))
    }

    /// The share of a logit, or zero where the token is too small to count.
    #[inline]
    fn if_counted(&self, logit: f32, share: f32) -> f32 {
        let counts = logit >= self.least_logit && share >= self.least_share;
        if counts { share } else { 0.0 }
    }

    /// The share in parts of [`ONE`], or zero where the token is too small to count.
    #[inline]
    pub fn weight(&self, logit: f32) -> u64 {
        weight(self.if_counted(logit, self.share(logit)))
    }

    /// Whether such a logit and all below it weigh nothing.
    #[inline]
    pub fn is_weightless(&self, logit: f32) -> bool {
        logit < self.least_logit || self.depth(logit) > WEIGHTLESS
    }

    /// Where a logit stands in a histogram: a larger logit is never in a later bucket.
    #[inline]
    pub fn bucket(&self, logit: f32) -> u32 {
        let depth = self.depth(logit);
        let depth = if depth > SHALLOWEST {
            depth
        } else {
            SHALLOWEST
        };
        let depth = if depth < DEEPEST { depth } else { DEEPEST };
        // The exponent and seven bits behind it.
        (depth.to_bits() >> 16) - (SHALLOWEST.to_bits() >> 16)
    }
}

/// A share between 0 and 1 in parts of [`ONE`], rounded to the nearest.
#[inline]
pub fn weight(share: f32) -> u64 {
    fixed(f64::from(share))
}

/// The same of a share in double precision.
#[inline]
pub fn fixed(share: f64) -> u64 {
    const TWO_POW_40: f64 = 1_099_511_627_776.0;
    const TWO_POW_52: f64 = 4_503_599_627_370_496.0;
    // The sum's low bits are the whole number.
    (share * TWO_POW_40 + TWO_POW_52).to_bits() & ((1 << 52) - 1)
}

/// The passes, as fast as a backend can make them. Each equals its namesake in [`plain`], bit for bit.
pub trait RowPasses: Send + Sync {
    /// Writes the largest logit of each stretch, and tells whether no logit is NaN or plus infinity.
    fn maxima(&self, logits: &[f32], maxima: &mut [f32]) -> bool;

    /// Writes the weight of each stretch.
    fn masses(&self, row: Stretches<'_>, weighing: &Weighing, masses: &mut [u64]);

    /// Adds the weight of each logit to its bucket.
    fn histogram(&self, row: Stretches<'_>, weighing: &Weighing, table: &mut [u64; BUCKETS]);

    /// Calls `found` with the index of each logit of a bucket, however little it weighs.
    fn in_bucket(
        &self,
        row: Stretches<'_>,
        weighing: &Weighing,
        bucket: u32,
        found: &mut dyn FnMut(usize),
    );
}

/// The passes as they are written down.
#[derive(Clone, Copy, Debug)]
pub struct PlainPasses;

impl RowPasses for PlainPasses {
    fn maxima(&self, logits: &[f32], maxima: &mut [f32]) -> bool {
        plain::maxima(logits, maxima)
    }

    fn masses(&self, row: Stretches<'_>, weighing: &Weighing, masses: &mut [u64]) {
        plain::masses(row, weighing, masses);
    }

    fn histogram(&self, row: Stretches<'_>, weighing: &Weighing, table: &mut [u64; BUCKETS]) {
        plain::histogram(row, weighing, table);
    }

    fn in_bucket(
        &self,
        row: Stretches<'_>,
        weighing: &Weighing,
        bucket: u32,
        found: &mut dyn FnMut(usize),
    ) {
        plain::in_bucket(row, weighing, bucket, found);
    }
}
