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
        let mut watch = Stopwatch::start();
        watch.lap("open");
        watch.lap("weights");
        assert_eq!(watch.total(), watch.laps[0].1 + watch.laps[1].1);
        let text = watch.to_string();
        assert!(text.starts_with("loaded in 0.0"), "{text}");
        assert!(
            text.contains(": open ") && text.contains(" ms, weights "),
            "{text}"
        );
    }
}
