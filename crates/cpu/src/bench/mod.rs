//! What `cargo bench -p forthwith-cpu` times: every kernel at the sizes that decide speed.
//!
//! A case runs on one thread and walks more memory than a cache holds wherever the executor would:
//! weights, keys and values are read once a step. It knows what it reads and how many multiply-adds it
//! does, and nothing of clocks; the program in `benches/` times it.

mod attention;
mod elements;
mod matrix;

use crate::isa::IsaChoice;
use crate::memory::OutOfMemory;
use forthwith_core::clock::{Clock, SystemClock};
use std::time::Duration;

/// Which instructions bound a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Products of bytes.
    Bytes,
    /// Multiply-adds of single floats.
    Floats,
}

/// What one run of a case does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Bytes that it must read and write once.
    pub bytes: f64,
    /// Multiply-adds; for kernels that are not products, the vector operations on each element, each
    /// counted as one.
    pub multiply_adds: f64,
    /// Which of the two roofs of arithmetic holds.
    pub unit: Unit,
}

/// A kernel at one size, ready to run.
pub struct Case {
    /// What one run does.
    pub work: Work,
    run: Box<dyn FnMut()>,
}

impl Case {
    fn new(work: Work, run: impl FnMut() + 'static) -> Self {
        let run = Box::new(run);
        Self { work, run }
    }

    /// Runs the kernel once.
    pub fn run(&mut self) {
        (self.run)();
    }
}

/// A case that is not built yet.
pub struct Plan {
    /// `kernel/variant/size`
    pub name: String,
    build: Box<dyn Fn(IsaChoice) -> Result<Case, OutOfMemory>>,
}

impl Plan {
    fn new(name: String, build: impl Fn(IsaChoice) -> Result<Case, OutOfMemory> + 'static) -> Self {
        let build = Box::new(build);
        Self { name, build }
    }

    /// Makes the data of the case.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn build(&self, isa: IsaChoice) -> Result<Case, OutOfMemory> {
        (self.build)(isa)
    }
}

/// All cases, in the order of the table.
pub fn plans() -> Vec<Plan> {
    let mut plans = matrix::plans();
    plans.extend(attention::plans());
    plans.extend(elements::plans());
    plans
}

/// Cycles a second of the core that runs this, now: the fastest of some chains of multiplications of
/// which each waits for the one before, three cycles each on every x86-64 core of the last ten years.
/// `None` on other machines.
pub fn cycles_per_second() -> Option<f64> {
    const LINKS: u32 = 300_000;
    let clock = SystemClock::start();
    let chain = || {
        let start = clock.now();
        links(LINKS).then(|| clock.now().saturating_sub(start))
    };
    let times: Option<Vec<Duration>> = (0..20).map(|_| chain()).collect();
    let fastest = times?.into_iter().min()?;
    Some(3.0 * f64::from(LINKS) / fastest.as_secs_f64())
}

/// Runs a chain of multiplications; false where its cost is not known.
#[cfg(target_arch = "x86_64")]
fn links(count: u32) -> bool {
    let mut rounds = count / 10;
    // SAFETY: works on two registers, touches no memory and leaves the stack alone.
    unsafe {
        std::arch::asm!(
            "2:",
            "imul {value}, {value}", "imul {value}, {value}", "imul {value}, {value}",
            "imul {value}, {value}", "imul {value}, {value}", "imul {value}, {value}",
            "imul {value}, {value}", "imul {value}, {value}", "imul {value}, {value}",
            "imul {value}, {value}",
            "dec {rounds:e}",
            "jnz 2b",
            value = inout(reg) 3_u64 => _,
            rounds = inout(reg) rounds,
            options(nomem, nostack),
        );
    }
    rounds == 0
}

/// Runs a chain of multiplications; false where its cost is not known.
#[cfg(not(target_arch = "x86_64"))]
fn links(_count: u32) -> bool {
    false
}

/// A count as a number.
#[expect(clippy::cast_precision_loss, reason = "for rates only")]
fn number(count: usize) -> f64 {
    count as f64
}

/// Numbers in −1..1 without a pattern that a kernel could gain by.
fn noise(len: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let [_, _, low, high] = state.to_le_bytes();
        f32::from(i16::from_le_bytes([low, high])) / 32_768.0
    };
    (0..len).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = plans().into_iter().map(|plan| plan.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert!(names.len() == count && count > 70, "{count}");
    }

    #[test]
    fn the_clock_is_that_of_a_processor() {
        if let Some(cycles) = cycles_per_second() {
            assert!((1e7..1e11).contains(&cycles), "{cycles:e}");
        }
    }
}
