//! How long the parts of a start take.

use forthwith_core::clock::{Clock as _, SystemClock};
use std::fmt;
use std::time::Duration;

/// Times parts one after the other.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    clock: SystemClock,
    laps: Vec<(&'static str, Duration)>,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self {
            clock: SystemClock::start(),
            laps: Vec::new(),
        }
    }

    /// Ends a part.
    pub(crate) fn lap(&mut self, part: &'static str) {
        let before: Duration = self.laps.iter().map(|(_, time)| *time).sum();
        let time = self.clock.now().saturating_sub(before);
        self.laps.push((part, time));
    }

    /// The time of all parts.
    pub(crate) fn total(&self) -> Duration {
        self.laps.iter().map(|(_, time)| *time).sum()
    }
}

impl fmt::Display for Stopwatch {
    /// `loaded in 0.71 s: open 3 ms, tokenizer 210 ms, weights 480 ms`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loaded in {:.2} s:", self.total().as_secs_f64())?;
        for (index, (part, time)) in self.laps.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma} {part} {} ms", time.as_millis())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        let watch = Stopwatch {
            clock: SystemClock::start(),
            laps: vec![
                ("open", Duration::from_millis(3)),
                ("weights", Duration::from_micros(702_900)),
            ],
        };
        assert_eq!(watch.total(), Duration::from_micros(705_900));
        assert_eq!(
            watch.to_string(),
            "loaded in 0.71 s: open 3 ms, weights 702 ms"
        );
    }

    #[test]
    fn a_part_begins_where_the_last_one_ended() {
        let mut watch = Stopwatch::start();
        watch.lap("open");
        watch.lap("weights");
        assert!(watch.total() <= watch.clock.now());
        let names: Vec<&str> = watch.laps.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["open", "weights"]);
    }
}
