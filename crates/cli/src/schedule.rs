//! How requests share the engine, and where each choice came from.

use crate::args::ScheduleArgs;
use crate::duration::Span;
use forthwith_core::units::Tokens;
use forthwith_engine::{EngineConfig, PrefixCacheConfig, TargetGap};
use std::fmt::{self, Display};
use std::time::Duration;

/// Requests that run at once where nothing is said. A further one costs a row of logits; what it
/// may use of the KV cache is bounded by the cache.
const MAX_RUNNING: usize = 64;
/// Requests that may wait.
const MAX_WAITING: usize = 1024;
/// Prompt tokens that may wait.
const MAX_WAITING_TOKENS: usize = 1 << 20;
/// Tokens of a step: a piece of a prompt and the answers that ride with it.
const STEP_TOKENS: usize = 512;
/// Nobody reads faster than ten tokens a second; where a machine is slower than that by itself, a prompt
/// may make it four times as slow.
const TARGET_GAP: Gap = Gap(TargetGap::Longer {
    time: Duration::from_millis(100),
    percent: 400,
});
/// A step that takes longer is stuck.
const STUCK_AFTER: Span = Span(Duration::from_mins(1));

/// A client that takes nothing for longer is given up.
const STALL_TIMEOUT: Span = Span(Duration::from_secs(30));

/// Everything is decided.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    max_running: Choice<usize>,
    max_waiting: Choice<usize>,
    max_waiting_tokens: Choice<usize>,
    step_tokens: Choice<usize>,
    prefix_cache: Choice<Switch>,
    target_gap: Choice<Gap>,
    stuck_after: Choice<Span>,
    stall_timeout: Choice<Span>,
}

/// A value, and whether a user chose it.
#[derive(Clone, Copy, Debug)]
struct Choice<T> {
    value: T,
    given: bool,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}

/// A target for the time between tokens, as it is written: `off`, `200%`, `50ms` or `100ms,400%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap(pub(crate) TargetGap);

impl<T> Choice<T> {
    fn of(written: Option<T>, default: T) -> Self {
        Self {
            given: written.is_some(),
            value: written.unwrap_or(default),
        }
    }
}

impl Schedule {
    /// Decides what the arguments leave open.
    pub(crate) fn new(args: &ScheduleArgs) -> Self {
        Self {
            max_running: Choice::of(args.max_running, MAX_RUNNING),
            max_waiting: Choice::of(args.max_waiting, MAX_WAITING),
            max_waiting_tokens: Choice::of(args.max_waiting_tokens, MAX_WAITING_TOKENS),
            step_tokens: Choice::of(args.step_tokens, STEP_TOKENS),
            prefix_cache: Choice::of(args.prefix_cache, Switch::On),
            target_gap: Choice::of(args.target_gap, TARGET_GAP),
            stuck_after: Choice::of(args.stuck_after, STUCK_AFTER),
            stall_timeout: Choice::of(args.stall_timeout, STALL_TIMEOUT),
        }
    }

    /// One request at a time, for one reader.
    pub(crate) fn alone() -> Self {
        Self {
            max_running: Choice::of(None, 1),
            ..Self::new(&ScheduleArgs::default())
        }
    }

    /// The same for an engine with a context of this length.
    pub(crate) fn config(&self, context: Tokens) -> EngineConfig {
        EngineConfig {
            max_running: self.max_running(),
            max_step_tokens: self.step_tokens(),
            context,
            max_waiting: self.max_waiting.value,
            max_waiting_tokens: Tokens::new(self.max_waiting_tokens.value),
            target_gap: self.target_gap.value.0,
            stuck_after: self.stuck_after.value.0,
            prefix_cache: PrefixCacheConfig {
                enabled: self.prefix_cache.value.is_on(),
                ..PrefixCacheConfig::keyed_at_random()
            },
            ..EngineConfig::default()
        }
    }

    /// Requests that run at once; a step carries at least a token of each.
    pub(crate) fn max_running(&self) -> usize {
        self.max_running.value.min(self.step_tokens.value)
    }

    /// Tokens of a step.
    pub(crate) fn step_tokens(&self) -> Tokens {
        Tokens::new(self.step_tokens.value)
    }

    /// How long a client may take nothing of its answer.
    pub(crate) fn stall_timeout(&self) -> Duration {
        self.stall_timeout.value.0
    }

    /// What a user should know about the choices.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let (running, tokens) = (self.max_running.value, self.step_tokens.value);
        let crowded = (running > tokens).then(|| {
            format!(
                "a step of {tokens} tokens carries at most as many requests, so {tokens} run at \
                 once and not {running}; raise --step-tokens or lower --max-running"
            )
        });
        crowded.into_iter().collect()
    }
}

impl<T: Display> Display for Choice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = if self.given { "given" } else { "default" };
        write!(f, "{} ({source})", self.value)
    }
}

impl Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "max-running {}, step-tokens {}, max-waiting {}, max-waiting-tokens {}, \
             prefix-cache {}, target-gap {}, stuck-after {}, stall-timeout {}",
            self.max_running,
            self.step_tokens,
            self.max_waiting,
            self.max_waiting_tokens,
            self.prefix_cache,
            self.target_gap,
            self.stuck_after,
            self.stall_timeout,
        )
    }
}

impl Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl Gap {
    /// Reads `off`, a percentage above 100, a time, or a time and a percentage.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "off" {
            return Ok(Self(TargetGap::Off));
        }
        if let Some((time, percent)) = text.split_once(',') {
            let (time, percent) = (Self::time(time)?, Self::percent(percent)?);
            return Ok(Self(TargetGap::Longer { time, percent }));
        }
        if text.ends_with('%') {
            let percent = Self::percent(text)?;
            return Ok(Self(TargetGap::Relative { percent }));
        }
        Ok(Self(TargetGap::Fixed(Self::time(text)?)))
    }

    fn percent(text: &str) -> Result<u32, String> {
        let number = text.trim().strip_suffix('%').map(str::parse);
        match number {
            Some(Ok(percent @ 101..=10_000)) => Ok(percent),
            _ => Err("expected a percentage from 101% to 10000%".to_owned()),
        }
    }

    fn time(text: &str) -> Result<Duration, String> {
        let time = crate::duration::parse::<1, 60_000>(text);
        let or = "or a percentage like 200%, or both as in 100ms,400% for the longer, or off";
        time.map(|time| time.0)
            .map_err(|error| format!("{error}; {or}"))
    }
}

impl Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            TargetGap::Off => f.write_str("off"),
            TargetGap::Fixed(time) => Span(time).fmt(f),
            TargetGap::Relative { percent } => write!(f, "{percent}%"),
            TargetGap::Longer { time, percent } => write!(f, "{},{percent}%", Span(time)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_say_where_they_came_from() {
        let args = ScheduleArgs {
            max_running: Some(9),
            target_gap: Some(Gap::parse("50ms").unwrap()),
            ..ScheduleArgs::default()
        };
        assert_eq!(
            Schedule::new(&args).to_string(),
            "max-running 9 (given), step-tokens 512 (default), max-waiting 1024 (default), \
             max-waiting-tokens 1048576 (default), prefix-cache on (default), target-gap 50ms \
             (given), stuck-after 1m (default), stall-timeout 30s (default)"
        );
    }

    #[test]
    fn every_choice_reaches_the_engine() {
        let args = ScheduleArgs {
            max_running: Some(9),
            max_waiting: Some(8),
            max_waiting_tokens: Some(7),
            step_tokens: Some(64),
            prefix_cache: Some(Switch::Off),
            target_gap: Some(Gap(TargetGap::Off)),
            stuck_after: Some(Span(Duration::from_secs(5))),
            stall_timeout: Some(Span(Duration::from_secs(6))),
        };
        let schedule = Schedule::new(&args);
        assert_eq!(schedule.stall_timeout(), Duration::from_secs(6));
        let config = schedule.config(Tokens::new(100));
        let expected = EngineConfig {
            max_running: 9,
            max_waiting: 8,
            max_waiting_tokens: Tokens::new(7),
            max_step_tokens: Tokens::new(64),
            context: Tokens::new(100),
            target_gap: TargetGap::Off,
            stuck_after: Duration::from_secs(5),
            prefix_cache: PrefixCacheConfig {
                enabled: false,
                ..config.prefix_cache
            },
            ..EngineConfig::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn more_requests_than_tokens_are_a_warning() {
        let args = ScheduleArgs {
            max_running: Some(65),
            step_tokens: Some(64),
            ..ScheduleArgs::default()
        };
        let schedule = Schedule::new(&args);
        assert_eq!(schedule.max_running(), 64);
        assert!(schedule.warnings()[0].contains("64 run at once and not 65"));
        assert!(Schedule::alone().warnings().is_empty());
    }

    #[test]
    fn gaps_are_read_and_shown() {
        for text in ["off", "200%", "50ms", "2s", "100ms,400%"] {
            assert_eq!(Gap::parse(text).unwrap().to_string(), text);
        }
        let spaced = Gap::parse(" 100ms, 400% ").unwrap();
        assert_eq!(spaced.to_string(), "100ms,400%");
        let wrong = ["", "on", "100%", "%", "10001%", "50", "0ms", "61s", "-5%"];
        let pairs = [
            ",",
            "100ms,",
            ",400%",
            "400%,100ms",
            "100ms,100%",
            "1s,2s",
            "1s,200%,3s",
        ];
        for text in wrong.into_iter().chain(pairs) {
            assert!(Gap::parse(text).is_err(), "{text}");
        }
    }
}
