//! What the machine gives at best: bytes read from memory and products of bytes, on a thread team.

use crate::isa::{Dots, Isa, IsaChoice, Kernel, Lanes};
use crate::memory::{Buffer, OutOfMemory};
use crate::team::Team;
use forthwith_core::clock::{Clock, SystemClock};
use std::time::Duration;

/// Vectors that are summed side by side, so that no sum waits for the one before it.
const SUMS: usize = 8;
const PRODUCT_ROUNDS: usize = 500_000;
const ROUNDS: usize = 5;

/// Medians of some rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roof {
    /// Bytes a second, in 10⁹, read from memory in huge pages by all threads together.
    pub read_gb_s: f64,
    /// Operations a second, in 10⁹, two for each product of bytes that is added to a sum: of 32 bits,
    /// or of 16 bits that is widened before it can overflow, whichever the instruction set does faster.
    pub int8_gop_s: f64,
    /// Operations a second, in 10⁹, two for each fused multiply-add of single floats.
    pub f32_gop_s: f64,
}

/// The roof cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum RoofError {
    /// No memory to read.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// No threads.
    #[error("cannot start threads: {0}")]
    Threads(#[from] std::io::Error),
    /// A thread broke.
    #[error("a thread broke: {0}")]
    Worker(String),
}

impl Roof {
    /// Measures for some seconds: the median of some samples.
    ///
    /// # Errors
    /// If there is no memory, or no thread starts.
    pub fn measure(isa: IsaChoice, threads: usize) -> Result<Self, RoofError> {
        let mut meter = RoofMeter::new(isa, threads)?;
        let mut samples = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            samples.push(meter.sample()?);
        }
        Ok(Self::median(&samples))
    }

    /// The median of each rate.
    ///
    /// # Panics
    /// If there is no sample.
    pub fn median(samples: &[Self]) -> Self {
        let middle = |of: fn(&Self) -> f64| {
            let mut rates: Vec<f64> = samples.iter().map(of).collect();
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        };
        Self {
            read_gb_s: middle(|roof| roof.read_gb_s),
            int8_gop_s: middle(|roof| roof.int8_gop_s),
            f32_gop_s: middle(|roof| roof.f32_gop_s),
        }
    }
}

/// Measures the roof of the moment, again and again: what a machine gives may halve from one second to
/// the next where it is shared.
pub struct RoofMeter {
    isa: IsaChoice,
    team: Team,
    memory: Buffer<u8>,
    clock: SystemClock,
}

impl RoofMeter {
    /// A meter with threads and [`Self::BYTES`] of memory of its own.
    ///
    /// # Errors
    /// If there is no memory, or no thread starts.
    pub fn new(isa: IsaChoice, threads: usize) -> Result<Self, RoofError> {
        let team = Team::new(threads.max(1))?;
        let mut memory: Buffer<u8> = Buffer::zeroed(Self::BYTES)?;
        memory.fill(1);
        let clock = SystemClock::start();
        Ok(Self {
            isa,
            team,
            memory,
            clock,
        })
    }

    /// What the meter takes of memory: far more than a cache holds.
    pub const BYTES: usize = 256 << 20;

    /// Measures once, for less than a tenth of a second on most machines.
    ///
    /// # Errors
    /// If a thread breaks.
    pub fn sample(&mut self) -> Result<Roof, RoofError> {
        let isa = self.isa;
        let members = self.team.members();
        let reading = |ask: bool| {
            move |memory: &[u8], index: usize| {
                let part = memory.len() / members;
                let bytes = &memory[index * part..(index + 1) * part];
                isa.run(Read { bytes, ask });
            }
        };
        // Asking ahead helps on some machines and harms on others.
        let read = self
            .time(reading(false))?
            .min(self.time(reading(true))?)
            .as_secs_f64();
        let multiply = self.time(|_, _| isa.run(Multiply))?.as_secs_f64();
        let float = self.time(|_, _| isa.run(MultiplyFloats))?.as_secs_f64();
        let lanes = isa.run(WideLanes);
        let operations = number(2 * 4 * lanes * SUMS * PRODUCT_ROUNDS * members);
        Ok(Roof {
            read_gb_s: number(Self::BYTES) / read / 1e9,
            int8_gop_s: operations / multiply / 1e9,
            f32_gop_s: operations / 4.0 / float / 1e9,
        })
    }

    fn time(&mut self, work: impl Fn(&[u8], usize) + Sync) -> Result<Duration, RoofError> {
        let memory = &self.memory[..];
        let began = self.clock.now();
        let job = |member: crate::team::Member<'_>| work(memory, member.index);
        self.team.run(&job).map_err(RoofError::Worker)?;
        Ok(self.clock.now().saturating_sub(began))
    }
}

fn number(value: usize) -> f64 {
    f64::from(u32::try_from(value / 1024).unwrap_or(u32::MAX)) * 1024.0
}

struct WideLanes;

impl Kernel for WideLanes {
    type Output = usize;

    #[inline(always)]
    fn run<I: Isa>(self, _: I) -> usize {
        I::Wide::LANES
    }
}

/// Reads every byte once; `ask`s for memory ahead or leaves that to the machine.
struct Read<'a> {
    bytes: &'a [u8],
    ask: bool,
}

impl Kernel for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let isa = isa.wide();
        let vector = 4 * I::Wide::LANES;
        let mut all = [isa.zero(); 4];
        for chunk in self.bytes.chunks_exact(4 * vector) {
            for (index, all) in all.iter_mut().enumerate() {
                // SAFETY: the chunk holds four vectors.
                unsafe {
                    let from = chunk.as_ptr().add(index * vector);
                    if self.ask {
                        isa.prefetch(from.wrapping_add(2048));
                    }
                    *all = isa.or(*all, isa.load_bytes(from));
                }
            }
        }
        keep(isa, all);
    }
}

/// Multiplies bytes from the nearest cache and adds the products up.
struct Multiply;

impl Kernel for Multiply {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let isa = isa.wide();
        let vector = 4 * I::Wide::LANES;
        let data = std::hint::black_box([3_u8; SUMS * 4 * 16]);
        let flip = isa.splat_byte(std::hint::black_box(1));
        // Changed in each round, or products of the same bytes would be computed once.
        let mut codes = isa.splat_byte(std::hint::black_box(2));
        let mut sums = [isa.zero(); SUMS];
        for _ in 0..PRODUCT_ROUNDS {
            codes = isa.xor(codes, flip);
            if I::DOTS != Dots::None {
                let held = if I::MANY_REGISTERS { SUMS } else { 5 };
                for index in 0..SUMS {
                    // SAFETY: `data` holds as many of the widest vectors as there are sums.
                    let bytes = unsafe { isa.load_bytes(data.as_ptr().add(index * vector)) };
                    sums[index % held] = isa.dot(sums[index % held], codes, bytes);
                }
                continue;
            }
            // Eight pairs of products of small codes fit 16 bits.
            let mut words = [isa.zero(); 2];
            for index in 0..SUMS {
                // SAFETY: as above.
                let bytes = unsafe { isa.load_bytes(data.as_ptr().add(index * vector)) };
                let product = isa.multiply_add_bytes(codes, bytes);
                words[index % 2] = isa.add16(words[index % 2], product);
            }
            let words = isa.add16(words[0], words[1]);
            sums[0] = isa.add32(sums[0], isa.add_pairs16(words));
        }
        keep(isa, sums);
    }
}

/// Multiplies floats in registers and adds the products up.
struct MultiplyFloats;

impl Kernel for MultiplyFloats {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // As many sums as there are registers for.
        if I::MANY_REGISTERS {
            multiply_floats::<I::Wide, SUMS>(isa.wide());
        } else {
            multiply_floats::<I::Wide, 5>(isa.wide());
        }
    }
}

#[inline(always)]
fn multiply_floats<L: Lanes, const N: usize>(isa: L) {
    let (factor, other) = (std::hint::black_box(0.5), std::hint::black_box(1.0));
    let (factor, other) = (isa.splat(factor), isa.splat(other));
    let mut sums = [isa.splat(0.0); N];
    for _ in 0..PRODUCT_ROUNDS * SUMS / N {
        for sum in &mut sums {
            *sum = isa.fma(*sum, factor, other);
        }
    }
    for sum in sums {
        let mut out = [0.0_f32; 16];
        // SAFETY: `out` holds the widest vector.
        unsafe { isa.store(out.as_mut_ptr(), sum) };
        std::hint::black_box(&out);
    }
}

/// Makes values count as used.
#[inline(always)]
fn keep<L: Lanes, const N: usize>(isa: L, values: [L::I; N]) {
    let mut out = [0; 64];
    for value in values {
        // SAFETY: `out` holds the widest vector.
        unsafe { isa.store_bytes(out.as_mut_ptr(), value) };
        std::hint::black_box(&out);
    }
}
