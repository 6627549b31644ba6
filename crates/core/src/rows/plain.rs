//! The passes in plain loops, inlined into whoever compiles them for an instruction set.
//!
//! Loops are short, of one kind of number each, and reduce whole numbers alone, so that the compiler
//! can use wide registers.
#![allow(
    clippy::inline_always,
    reason = "they compile with the features of their caller"
)]

use super::exp::{series, split};
use super::{BUCKETS, STRETCH, Stretches, Weighing, weight};

/// Logits that are looked at together.
const LANES: usize = 16;

/// [`super::RowPasses::maxima`]
#[inline(always)]
pub fn maxima(logits: &[f32], maxima: &mut [f32]) -> bool {
    let (mut most, mut least) = (i32::MIN, i32::MAX);
    for (stretch, max) in logits.chunks(STRETCH).zip(maxima) {
        let mut largest = i32::MIN;
        for &logit in stretch {
            let rank = rank(logit);
            largest = if rank > largest { rank } else { largest };
            least = if rank < least { rank } else { least };
        }
        *max = f32::from_bits(rank(f32::from_bits(largest.cast_unsigned())).cast_unsigned());
        most = if largest > most { largest } else { most };
    }
    // NaN ranks beyond the infinity of its sign.
    most < rank(f32::INFINITY) && least >= rank(f32::NEG_INFINITY)
}

/// A whole number that orders as the numbers do; bits are their own rank's rank.
#[inline(always)]
fn rank(number: f32) -> i32 {
    let bits = number.to_bits().cast_signed();
    bits ^ ((bits >> 31).cast_unsigned() >> 1).cast_signed()
}

/// The shares of a stretch's logits, zero where a token is too small to count.
///
/// In two loops, each with a short chain of operations: the CPU then works on many numbers at once.
#[inline(always)]
fn counted_shares<'a>(
    stretch: &[f32],
    weighing: &Weighing,
    space: &'a mut [[f32; STRETCH]; 2],
) -> &'a [f32] {
    let [shares, scales] = space;
    let (shares, scales) = (&mut shares[..stretch.len()], &mut scales[..stretch.len()]);
    for ((rest, scale), &logit) in shares.iter_mut().zip(scales.iter_mut()).zip(stretch) {
        (*rest, *scale) = split(-weighing.depth(logit));
    }
    for ((share, &scale), &logit) in shares.iter_mut().zip(scales.iter()).zip(stretch) {
        *share = weighing.if_counted(logit, series(*share) * scale);
    }
    shares
}

/// [`super::RowPasses::masses`]
#[inline(always)]
pub fn masses(row: Stretches<'_>, weighing: &Weighing, masses: &mut [u64]) {
    let mut space = [[0.0; STRETCH]; 2];
    let stretches = row.logits.chunks(STRETCH).zip(row.maxima);
    for ((stretch, &max), mass) in stretches.zip(masses) {
        if weighing.is_weightless(max) {
            *mass = 0;
            continue;
        }
        let mut sum = 0;
        for &share in counted_shares(stretch, weighing, &mut space) {
            sum += weight(share);
        }
        *mass = sum;
    }
}

/// [`super::RowPasses::histogram`]
#[inline(always)]
pub fn histogram(row: Stretches<'_>, weighing: &Weighing, table: &mut [u64; BUCKETS]) {
    let (mut space, mut weights) = ([[0.0; STRETCH]; 2], [0; STRETCH]);
    let mut buckets = [0; STRETCH];
    for (stretch, &max) in row.logits.chunks(STRETCH).zip(row.maxima) {
        if weighing.is_weightless(max) {
            continue;
        }
        let shares = counted_shares(stretch, weighing, &mut space);
        for (exact, &share) in weights.iter_mut().zip(shares) {
            *exact = weight(share);
        }
        for (bucket, &logit) in buckets.iter_mut().zip(stretch) {
            *bucket = weighing.bucket(logit);
        }
        for (&weight, &bucket) in weights.iter().zip(&buckets[..stretch.len()]) {
            table[bucket as usize] += weight;
        }
    }
}

/// [`super::RowPasses::in_bucket`]
#[inline(always)]
pub fn in_bucket(
    row: Stretches<'_>,
    weighing: &Weighing,
    bucket: u32,
    found: &mut dyn FnMut(usize),
) {
    for (index, (stretch, &max)) in row.logits.chunks(STRETCH).zip(row.maxima).enumerate() {
        if weighing.bucket(max) > bucket {
            continue;
        }
        let start = index * STRETCH;
        let (chunks, rest) = stretch.as_chunks::<LANES>();
        for (part, chunk) in chunks.iter().enumerate() {
            let mut equal = 0;
            for &logit in chunk {
                equal |= u32::from(weighing.bucket(logit) == bucket);
            }
            if equal == 0 {
                continue;
            }
            for (lane, &logit) in chunk.iter().enumerate() {
                if weighing.bucket(logit) == bucket {
                    found(start + part * LANES + lane);
                }
            }
        }
        let start = start + stretch.len() - rest.len();
        for (lane, &logit) in rest.iter().enumerate() {
            if weighing.bucket(logit) == bucket {
                found(start + lane);
            }
        }
    }
}
