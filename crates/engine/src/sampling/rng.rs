//! Random numbers that are looked up, not drawn: Philox 4×32 with ten rounds.
//!
//! The number depends on the seed, the choice and the position alone, so an answer is the same
//! whichever batch it was made in and however often it was interrupted.
//!
//! Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

/// 64 random bits for one position of one choice of a request: those that draw the token.
pub(super) fn draw(seed: u64, choice: u32, position: u64) -> u64 {
    bits(seed, choice, position, 0)
}

/// As many that decide whether the most likely tokens are dropped there.
pub(super) fn chance(seed: u64, choice: u32, position: u64) -> u64 {
    bits(seed, choice, position, 1)
}

fn bits(seed: u64, choice: u32, position: u64, lane: u32) -> u64 {
    let [position_low, position_high] = halves(position);
    let out = philox([position_low, position_high, choice, lane], halves(seed));
    u64::from(out[0]) << 32 | u64::from(out[1])
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [low_a, high_a] = halves(u64::from(counter[0]) * 0xD251_1F53);
        let [low_b, high_b] = halves(u64::from(counter[2]) * 0xCD9E_8D57);
        counter = [
            high_b ^ counter[1] ^ key[0],
            low_b,
            high_a ^ counter[3] ^ key[1],
            low_a,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    counter
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a number")]
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_published_answers() {
        let cases = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn seed_choice_position_and_lane_each_matter() {
        let base = draw(1, 2, 3);
        assert_eq!(base, draw(1, 2, 3));
        for other in [
            draw(2, 2, 3),
            draw(1, 3, 3),
            draw(1, 2, 4),
            draw(1 << 32 | 1, 2, 3),
            chance(1, 2, 3),
        ] {
            assert_ne!(base, other);
        }
    }
}
