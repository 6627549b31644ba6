//! SipHash-2-4 with 128 bits: a keyed hash that nobody without the key can make collide.
//!
//! # Source     Aumasson and Bernstein 2012, "`SipHash`: a fast short-input PRF"; the 128-bit output
//! is that of the authors' reference implementation.

/// Takes in bytes and gives their hash under a key.
pub(crate) struct SipHash {
    state: [u64; 4],
    /// Bytes that do not fill a word yet, the first one lowest.
    tail: u64,
    length: usize,
}

impl SipHash {
    pub(crate) fn new(key: [u64; 2]) -> Self {
        Self {
            state: [
                key[0] ^ 0x736f_6d65_7073_6575,
                key[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                key[0] ^ 0x6c79_6765_6e65_7261,
                key[1] ^ 0x7465_6462_7974_6573,
            ],
            tail: 0,
            length: 0,
        }
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        while self.length.is_multiple_of(8)
            && let Some((word, rest)) = bytes.split_first_chunk()
        {
            self.absorb(u64::from_le_bytes(*word));
            self.length += 8;
            bytes = rest;
        }
        for &byte in bytes {
            self.tail |= u64::from(byte) << (8 * (self.length % 8));
            self.length += 1;
            if self.length.is_multiple_of(8) {
                self.absorb(self.tail);
                self.tail = 0;
            }
        }
    }

    pub(crate) fn finish(mut self) -> u128 {
        let last = self.tail | ((self.length as u64) << 56);
        self.absorb(last);
        self.state[2] ^= 0xee;
        let low = self.squeeze();
        self.state[1] ^= 0xdd;
        let high = self.squeeze();
        u128::from(low) | (u128::from(high) << 64)
    }

    fn absorb(&mut self, word: u64) {
        self.state[3] ^= word;
        self.round();
        self.round();
        self.state[0] ^= word;
    }

    fn squeeze(&mut self) -> u64 {
        for _ in 0..4 {
            self.round();
        }
        self.state.iter().fold(0, |all, word| all ^ word)
    }

    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.state;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.state = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];

    fn hash(bytes: &[u8]) -> [u8; 16] {
        let mut hash = SipHash::new(KEY);
        hash.write(bytes);
        hash.finish().to_le_bytes()
    }

    #[test]
    fn agrees_with_the_reference_vectors() {
        assert_eq!(
            hash(&[]),
            [
                0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55,
                0x02, 0x93
            ]
        );
        assert_eq!(
            hash(&[0]),
            [
                0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22,
                0xfc, 0x45
            ]
        );
    }

    #[test]
    fn every_byte_and_its_place_counts() {
        let bytes: Vec<u8> = (0..40).collect();
        let whole = hash(&bytes);
        for place in 0..bytes.len() {
            let mut other = bytes.clone();
            other[place] ^= 1;
            assert_ne!(hash(&other), whole);
            assert_ne!(hash(&bytes[..place]), whole);
        }
        let mut in_pieces = SipHash::new(KEY);
        for piece in bytes.chunks(7) {
            in_pieces.write(piece);
        }
        assert_eq!(in_pieces.finish().to_le_bytes(), whole);
    }
}
