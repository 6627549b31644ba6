//! A row of logits, walked as a whole: largest logits, weights, and the border of a nucleus.
//!
//! The passes are the executor's, and a long row is divided among its threads. All results are
//! comparisons and sums of whole numbers, so that the division changes nothing.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forthwith_core::executor::{Executor, StepError};
use forthwith_core::rows::{self, BUCKETS, ONE, RowPasses, STRETCH, Stretches, Weighing};

use super::SampleError;
use super::exact::ln;
use super::filters::{Candidate, crossing_by_likelihood, scale};

/// Fewer stretches are not worth a thread of their own.
const LEAST_STRETCHES: usize = 64;

/// Logits that a thread collects before it hands them over.
const HANDFUL: usize = 64;

/// So far `e^x` of rounded numbers may be off, and more.
const MARGIN: f64 = 1e-3;

/// The threads that walk a row together.
pub(super) trait Crew {
    /// How many there are.
    fn count(&self) -> usize;

    /// Runs the work on each, with numbers from 0 to the count exclusive.
    fn run(&mut self, work: &(dyn Fn(usize) + Sync)) -> Result<(), StepError>;
}

/// The calling thread.
pub(super) struct Alone;

impl Crew for Alone {
    fn count(&self) -> usize {
        1
    }

    fn run(&mut self, work: &(dyn Fn(usize) + Sync)) -> Result<(), StepError> {
        work(0);
        Ok(())
    }
}

/// All threads of an executor.
pub(super) struct Lent<'a>(pub(super) &'a mut dyn Executor);

impl Crew for Lent<'_> {
    fn count(&self) -> usize {
        self.0.threads()
    }

    fn run(&mut self, work: &(dyn Fn(usize) + Sync)) -> Result<(), StepError> {
        self.0.lend_threads(work)
    }
}

/// How many threads are worth waking for one row.
pub(super) fn worthwhile(vocab: usize, threads: usize) -> usize {
    (vocab.div_ceil(STRETCH) / LEAST_STRETCHES).clamp(1, threads.max(1))
}

/// Where a nucleus ends: at this token, which still belongs to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Border {
    pub(super) logit: f32,
    pub(super) id: u32,
}

impl Border {
    fn excludes(self, logit: f32, id: usize) -> bool {
        logit < self.logit || logit == self.logit && id > self.id as usize
    }
}

/// What is known of a row, and what finding it out takes.
pub(super) struct Scan {
    passes: Arc<dyn RowPasses>,
    parts: Vec<Mutex<Part>>,
    /// How many of the parts have stretches of this row.
    active: usize,
    /// The largest logit of each stretch.
    pub(super) maxima: Vec<f32>,
    /// The weight of each stretch.
    masses: Vec<u64>,
    /// How the masses were weighed, if they are of this row.
    weighed: Option<Weighing>,
}

/// What one thread says of its stretches.
struct Part {
    stretches: Range<usize>,
    sound: bool,
    maxima: Vec<f32>,
    masses: Vec<u64>,
    histogram: Box<[u64; BUCKETS]>,
}

impl Part {
    /// Its part of the row.
    fn of<'a>(&self, logits: &'a [f32], maxima: &'a [f32]) -> Stretches<'a> {
        Stretches {
            logits: &logits[self.first()..logits.len().min(self.stretches.end * STRETCH)],
            maxima: maxima.get(self.stretches.clone()).unwrap_or_default(),
        }
    }

    /// The id of its first token.
    fn first(&self) -> usize {
        self.stretches.start * STRETCH
    }
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scan {
    /// For rows of `vocab` logits and at most so many threads that share one.
    pub(super) fn new(vocab: usize, threads: usize, passes: Arc<dyn RowPasses>) -> Self {
        let stretches = vocab.div_ceil(STRETCH);
        let part = |_| {
            Mutex::new(Part {
                stretches: 0..0,
                sound: true,
                maxima: Vec::with_capacity(stretches),
                masses: Vec::with_capacity(stretches),
                histogram: rows::table(),
            })
        };
        Self {
            passes,
            parts: (0..threads.max(1)).map(part).collect(),
            active: 1,
            maxima: Vec::with_capacity(stretches),
            masses: Vec::with_capacity(stretches),
            weighed: None,
        }
    }

    /// The bytes of its buffers with one part, and of one more part.
    pub(super) fn bytes(vocab: usize) -> usize {
        let stretch = size_of::<f32>() + size_of::<u64>();
        let (stretches, parts) = (vocab.div_ceil(STRETCH), 2);
        stretches * stretch * (1 + parts) + size_of::<[u64; BUCKETS]>() * parts
    }

    /// Begins with a row: the largest logit; an error if one is not a number or plus infinity, or
    /// if none is finite.
    pub(super) fn look(&mut self, logits: &[f32], crew: &mut dyn Crew) -> Result<f32, SampleError> {
        let stretches = logits.len().div_ceil(STRETCH);
        let count = crew.count().min(self.parts.len());
        self.active = worthwhile(logits.len(), count);
        for (index, part) in self.parts[..self.active].iter_mut().enumerate() {
            let part = part.get_mut().unwrap_or_else(PoisonError::into_inner);
            part.stretches = stretches * index / self.active..stretches * (index + 1) / self.active;
        }
        self.weighed = None;
        let passes = &*self.passes;
        self.each(stretches, crew, &|part| {
            part.maxima.clear();
            part.maxima.resize(part.stretches.len(), 0.0);
            part.sound = passes.maxima(part.of(logits, &[]).logits, &mut part.maxima);
        })?;
        self.maxima.clear();
        let mut sound = true;
        for part in &self.parts[..self.active] {
            let part = lock(part);
            self.maxima.extend_from_slice(&part.maxima);
            sound &= part.sound;
        }
        let unsound = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        if let Some(token) = (!sound).then(|| logits.iter().position(unsound)).flatten() {
            let value = logits[token].to_string();
            return Err(SampleError::NotFinite { token, value });
        }
        let max = self
            .maxima
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY {
            return Err(SampleError::NothingAllowed);
        }
        Ok(max)
    }

    /// The lowest id that has this logit, which is the largest.
    pub(super) fn first_equal(&self, logits: &[f32], max: f32) -> u32 {
        let stretch = self.maxima.iter().position(|&other| other >= max);
        let start = stretch.unwrap_or_default() * STRETCH;
        let mut ids = (0_u32..).zip(logits).skip(start);
        ids.find(|&(_, &logit)| logit >= max)
            .map_or(0, |(id, _)| id)
    }

    /// The weight of the whole row.
    pub(super) fn weigh(
        &mut self,
        logits: &[f32],
        weighing: Weighing,
        crew: &mut dyn Crew,
    ) -> Result<u64, StepError> {
        if self.weighed != Some(weighing) {
            self.weighed = None;
            let (passes, maxima) = (&*self.passes, &self.maxima);
            self.each(self.heavy(&weighing), crew, &|part| {
                part.masses.clear();
                part.masses.resize(part.stretches.len(), 0);
                passes.masses(part.of(logits, maxima), &weighing, &mut part.masses);
            })?;
            self.masses.clear();
            for part in &self.parts[..self.active] {
                self.masses.extend_from_slice(&lock(part).masses);
            }
            self.weighed = Some(weighing);
        }
        Ok(self.masses.iter().sum())
    }

    /// The token at which the most likely ones together reach the weight `need`, which the tokens
    /// that count reach. What counts is taken from `weighing`, and no token is counted twice.
    ///
    /// `candidates` is used to select among those near the border.
    pub(super) fn border(
        &mut self,
        logits: &[f32],
        (weighing, need): (Weighing, u64),
        candidates: &mut Vec<Candidate>,
        crew: &mut dyn Crew,
    ) -> Result<Border, StepError> {
        let (passes, maxima) = (&*self.passes, &self.maxima);
        let heavy = self.heavy(&weighing);
        self.each(heavy, crew, &|part| {
            part.histogram.fill(0);
            passes.histogram(part.of(logits, maxima), &weighing, &mut part.histogram);
        })?;
        let (bucket, above) = self.crossed(need);
        candidates.clear();
        let gathered = Mutex::new(&mut *candidates);
        self.each(heavy, crew, &|part| {
            let mut handful = [Candidate::default(); HANDFUL];
            let mut count = 0;
            let hand_over = |some: &[Candidate]| {
                let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
                gathered.extend_from_slice(some);
            };
            let first = part.first();
            let row = part.of(logits, maxima);
            passes.in_bucket(row, &weighing, bucket, &mut |at| {
                let logit = row.logits[at];
                let id = u32::try_from(first + at).expect("ids have 32 bits");
                let share = weighing.share(logit);
                handful[count] = Candidate { logit, id, share };
                count += 1;
                if count == HANDFUL {
                    hand_over(&handful);
                    count = 0;
                }
            });
            hand_over(&handful[..count]);
        })?;
        let last = crossing_by_likelihood(candidates, need - above);
        let Candidate { logit, id, .. } = candidates[last];
        let border = Border { logit, id };
        candidates.retain(|candidate| candidate.logit == logit);
        Ok(border)
    }

    /// The token at a point, `bits` of 2⁶⁴ along, when those that weigh something lie side by side
    /// in order of id. With a border, only what it includes; `equals` are then all tokens of its
    /// logit.
    pub(super) fn draw(
        &mut self,
        logits: &[f32],
        (weighing, bits): (Weighing, u64),
        border: Option<(Border, &[Candidate])>,
        crew: &mut dyn Crew,
    ) -> Result<u32, StepError> {
        let mut total = self.weigh(logits, weighing, crew)?;
        if let Some((border, equals)) = border {
            self.weighed = None;
            for token in equals {
                let id = token.id as usize;
                if border.excludes(token.logit, id) {
                    let weight = weighing.weight(token.logit);
                    self.masses[id / STRETCH] -= weight;
                    total -= weight;
                }
            }
        }
        let mut rest = scale(total, bits);
        let mut start = 0;
        for &mass in &self.masses {
            if rest < mass {
                break;
            }
            rest -= mass;
            start += STRETCH;
        }
        for (id, &logit) in logits.iter().enumerate().skip(start) {
            let excluded = border.is_some_and(|(border, _)| border.excludes(logit, id));
            let weight = if excluded { 0 } else { weighing.weight(logit) };
            if rest < weight {
                return Ok(u32::try_from(id).expect("ids have 32 bits"));
            }
            rest -= weight;
        }
        unreachable!("the point lies below the total")
    }

    /// How many stretches weigh something.
    fn heavy(&self, weighing: &Weighing) -> usize {
        let heavy = |max: &&f32| !weighing.is_weightless(**max);
        self.maxima.iter().filter(heavy).count()
    }

    /// The bucket in which the weight from the top reaches `need`, and the weight above it.
    fn crossed(&self, need: u64) -> (u32, u64) {
        let mut table = lock(&self.parts[0]);
        for other in &self.parts[1..self.active] {
            let other = lock(other);
            for (sum, weight) in table.histogram.iter_mut().zip(other.histogram.iter()) {
                *sum += weight;
            }
        }
        let mut above = 0;
        for (bucket, weight) in (0..).zip(table.histogram.iter()) {
            if above + weight >= need {
                return (bucket, above);
            }
            above += weight;
        }
        unreachable!("what counts reaches what is needed")
    }

    /// Does the work for each part, on all threads if it is of so many stretches that it pays.
    fn each(
        &self,
        stretches: usize,
        crew: &mut dyn Crew,
        work: &(dyn Fn(&mut Part) + Sync),
    ) -> Result<(), StepError> {
        let parts = &self.parts[..self.active];
        if parts.len() == 1 || stretches < 2 * LEAST_STRETCHES {
            for part in parts {
                work(&mut lock(part));
            }
            return Ok(());
        }
        crew.run(&|index| {
            if let Some(part) = parts.get(index) {
                work(&mut lock(part));
            }
        })
    }
}

/// A logit below which no token has more than this share, with some to spare.
pub(super) fn logit_of_share(weighing: &Weighing, share: f64) -> f32 {
    if share < f64::from(f32::MIN_POSITIVE) {
        return f32::NEG_INFINITY;
    }
    let below = (ln(share) - MARGIN) / f64::from(weighing.factor);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounds to the nearest, past no other logit"
    )]
    let logit = (f64::from(weighing.max) + below) as f32;
    logit
}

/// Of a row that weighs `total`, what a nucleus of the weight `need` is surely made of: all tokens
/// that are left out together weigh at most the rest.
pub(super) fn not_negligible(
    weighing: Weighing,
    (total, need): (u64, u64),
    count: usize,
) -> Weighing {
    let negligible = (total - need) / count as u64;
    #[expect(clippy::cast_precision_loss, reason = "the margin covers it")]
    let share = negligible as f64 / ONE as f64;
    Weighing {
        least_logit: logit_of_share(&weighing, share),
        ..weighing
    }
}
