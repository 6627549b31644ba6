//! How far apart the tokens of an answer may come while prompts are computed beside it.

use std::time::Duration;

use crate::cost::{Rates, Work};

/// How long a step that carries answers should take at most. While too little is known of the costs,
/// and where nobody is answered, nothing is held back.
///
/// Which steps there are then depends on the clock; answers never do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetGap {
    /// As long as a full step takes.
    #[default]
    Off,
    /// This long.
    Fixed(Duration),
    /// This many percent of what the step would take without prompts: 200 lets a prompt double the
    /// time between two tokens.
    Relative {
        /// More than 100; less leaves prompts no more than the least piece.
        percent: u32,
    },
    /// The longer of the two: a gap that nobody notices is not worth making others wait for.
    Longer {
        /// As in `Fixed`.
        time: Duration,
        /// As in `Relative`.
        percent: u32,
    },
}

impl TargetGap {
    /// The most prompt tokens, within a range, that a step may carry beside the answers of `work`. The
    /// first of them stands at `position`.
    pub(crate) fn room(
        self,
        rates: &Rates,
        work: Work,
        position: usize,
        range: (usize, usize),
    ) -> usize {
        let relative = |percent| {
            let alone = rates.time(work);
            alone.map(|time| time.saturating_mul(percent) / 100)
        };
        let target = match self {
            Self::Off => None,
            Self::Fixed(target) => Some(target),
            Self::Relative { percent } => relative(percent),
            Self::Longer { time, percent } => relative(percent).map(|target| target.max(time)),
        };
        match target {
            Some(target) if work.decodes > 0 => rates.prefill_within(target, work, position, range),
            _ => range.1,
        }
    }
}

/// Steps that what waits is spread over, beyond what comes anyway.
const SPREAD: usize = 16;
/// Steps that the average of what comes looks back on.
const MEMORY: f64 = 100.0;

/// How many prompt tokens steps took of late, and so how many the next should take: as many as come on
/// average, and a share of what waits. Where prompts keep coming, all steps then take about as long, and
/// tokens come evenly; a step filled to the brim and the next without a prompt would cost the same in all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    average: f64,
}

impl Pace {
    /// Tokens for a step, of those that wait.
    pub(crate) fn piece(self, backlog: usize) -> usize {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the average is never negative, and smaller than the largest step"
        )]
        let average = self.average.ceil() as usize;
        average.saturating_add(backlog.div_ceil(SPREAD))
    }

    /// Takes in what a step that carried answers took.
    pub(crate) fn note(&mut self, tokens: usize) {
        let tokens = f64::from(u32::try_from(tokens).unwrap_or(u32::MAX));
        self.average += (tokens - self.average) / MEMORY;
    }
}

/// Steps from one that takes a small piece to the next.
const PROBE_EVERY: u64 = 32;

/// What is left of a piece in a given step. In one of many steps it is small: where all pieces are as
/// large as the last ones were expensive, nothing tells what they cost and what the answers beside them.
pub(crate) fn probe(step: u64, piece: usize) -> usize {
    if step % PROBE_EVERY == PROBE_EVERY - 1 {
        return piece.div_ceil(8);
    }
    piece
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostModel;

    /// A machine that takes 1 ms a step, 0.1 ms a prompt token and 0.5 ms a decode.
    fn rates() -> Rates {
        let mut model = CostModel::new();
        for step in 0..60 {
            let work = Work {
                prefill: step * 7 % 40,
                decodes: step % 5,
                context: step * 31 % 900,
            };
            let micros = 1000 + 100 * work.prefill + 500 * work.decodes;
            model.learn(work, Duration::from_micros(micros as u64));
        }
        model.rates()
    }

    fn answers(decodes: usize) -> Work {
        Work {
            decodes,
            ..Work::default()
        }
    }

    #[test]
    fn a_relative_target_grows_with_the_answers_beside() {
        let room = |percent, decodes| {
            let target = TargetGap::Relative { percent };
            target.room(&rates(), answers(decodes), 0, (8, 400))
        };
        // Four answers take 3 ms, ten take 6 ms.
        assert!(room(200, 4).abs_diff(30) <= 1, "{}", room(200, 4));
        assert!(room(300, 4).abs_diff(60) <= 1, "{}", room(300, 4));
        assert!(room(200, 10).abs_diff(60) <= 1, "{}", room(200, 10));
        assert_eq!(room(100, 4), 8, "the least piece");
        assert_eq!(room(u32::MAX, 4), 400, "the whole step");
    }

    #[test]
    fn a_fixed_target_shrinks_with_them() {
        let target = TargetGap::Fixed(Duration::from_millis(6));
        let room = |decodes| target.room(&rates(), answers(decodes), 0, (8, 400));
        assert!(room(4).abs_diff(30) <= 1, "{}", room(4));
        assert_eq!(room(10), 8);
    }

    #[test]
    fn nothing_is_held_back_where_nobody_is_answered_or_nothing_is_known() {
        for target in [
            TargetGap::Off,
            TargetGap::Fixed(Duration::ZERO),
            TargetGap::Relative { percent: 0 },
        ] {
            assert_eq!(target.room(&rates(), answers(0), 0, (8, 400)), 400);
            let nothing = Rates::default();
            assert_eq!(target.room(&nothing, answers(4), 0, (8, 400)), 400);
        }
    }

    #[test]
    fn the_longer_of_two_targets_holds() {
        let room = |time, decodes| {
            let time = Duration::from_millis(time);
            let target = TargetGap::Longer { time, percent: 300 };
            target.room(&rates(), answers(decodes), 0, (8, 400))
        };
        // Four answers take 3 ms, so three times that is 9 ms.
        assert!(room(0, 4).abs_diff(60) <= 1, "{}", room(0, 4));
        assert!(room(13, 4).abs_diff(100) <= 1, "{}", room(13, 4));
        // Ten take 6 ms.
        assert!(room(13, 10).abs_diff(120) <= 1, "{}", room(13, 10));
        let unknown = Rates::default();
        let target = TargetGap::Longer {
            time: Duration::ZERO,
            percent: 100,
        };
        assert_eq!(target.room(&unknown, answers(4), 0, (8, 400)), 400);
    }

    #[test]
    fn steps_take_what_comes_and_a_share_of_what_waits() {
        let mut pace = Pace::default();
        assert_eq!(pace.piece(0), 0);
        assert_eq!(pace.piece(160), 10);
        // Two hundred tokens come in every fourth step, as much as fits waits for long.
        let (mut backlog, mut pieces) = (0, Vec::new());
        for step in 0..2000 {
            backlog += if step % 4 == 0 { 200 } else { 0 };
            let piece = pace.piece(backlog).min(backlog);
            pace.note(piece);
            backlog -= piece;
            pieces.push(piece);
        }
        let late = &pieces[1000..];
        let (least, most) = (late.iter().min().unwrap(), late.iter().max().unwrap());
        assert!((20..=50).contains(least), "{least} to {most}");
        assert!((50..=70).contains(most), "{least} to {most}");
        for _ in 0..1000 {
            pace.note(0);
        }
        assert_eq!(pace.piece(0), 1, "what does not come is forgotten");
        pace.note(usize::MAX);
        assert!(pace.piece(usize::MAX) > usize::MAX / 16);
    }

    /// A machine that takes longer by a jump where prompts ride along, and scatters by a fifth.
    fn uneven(work: Work, step: usize) -> Duration {
        let jump = if work.prefill > 0 { 4000 } else { 0 };
        let micros = 4000 + jump + 500 * work.prefill + 650 * work.decodes + work.context / 10;
        Duration::from_micros((micros * (800 + step * 7919 % 401) / 1000) as u64)
    }

    /// Prompts wait in every step, so pieces are all that varies, and they follow from what was learnt
    /// of them: too small a piece must not become the reason for the next.
    #[test]
    fn pieces_stay_near_the_target_while_prompts_always_wait() {
        let mut model = CostModel::new();
        let target = TargetGap::Relative { percent: 300 };
        let mut pieces = 0;
        for step in 0..30_000_usize {
            // The first prompts come alone, then the crowd is answered.
            let mut work = Work::default();
            let decodes = if step < 13 {
                step * 5 / 2
            } else {
                29 + step % 4
            };
            (0..decodes).for_each(|answer| work.add(1, 200 + (step + 17 * answer) % 64));
            let piece = target.room(&model.rates(), work, 100, (32, 480));
            let piece = probe(step as u64, piece);
            let all = work.with_prefill(piece, 100);
            model.learn(all, uneven(all, step));
            pieces += if step < 13 { 0 } else { piece };
            if step % 1000 == 999 {
                // Three times 29 ms leave room for 100 tokens.
                let mean = pieces / 1000;
                assert!(
                    (60..160).contains(&mean),
                    "step {step}: {mean}, {:?}",
                    model.rates()
                );
                pieces = 0;
            }
        }
    }
}
