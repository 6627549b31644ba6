//! A small generator for the choices of a story.

pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low + 1)
    }

    pub(super) fn size(&mut self, low: usize, high: usize) -> usize {
        usize::try_from(self.between(low as u64, high as u64)).unwrap()
    }

    pub(super) fn count(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.between(low.into(), high.into())).unwrap()
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.roll() % 100 < percent
    }

    pub(super) fn share(&mut self) -> f32 {
        u16::try_from(self.roll() >> 48).map_or(0.0, f32::from) / 65_536.0
    }
}
