//! What may be done to the logits besides the usual: filters, penalties with a window, and
//! temperatures that follow the distribution. All of it is off by default.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{RequestError, SamplingParams, out_of_range};
use crate::units::TokenId;

/// The most runs of tokens that end a repetition.
pub const MAX_BREAKERS: usize = 1 << 20;

/// One thing that is done on the way from logits to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Penalties for tokens that occurred before.
    Penalties,
    /// A penalty for going on with a repetition.
    Dry,
    /// The temperature, fixed or dynamic.
    Temperature,
    /// Keeps what is within so many standard deviations of the largest logit.
    TopNSigma,
    /// Keeps so many tokens.
    TopK,
    /// Keeps what is about as surprising as expected.
    TypicalP,
    /// Keeps the smallest set of so much probability.
    TopP,
    /// Drops what is much less likely than the most likely token.
    MinP,
    /// Drops the most likely tokens, sometimes.
    Xtc,
}

impl Stage {
    /// The order where a request does not say another.
    pub const USUAL: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::Temperature,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
    ];

    /// Its name in a request's list.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::Temperature => "temperature",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
        }
    }

    /// Whether it does nothing but drop tokens, so that mirostat takes its place.
    fn truncates(self) -> bool {
        !matches!(self, Self::Penalties | Self::Dry | Self::Temperature)
    }
}

/// Settings that few requests use. The default changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Filters {
    /// A repetition penalty with a window.
    pub repeat: Repeat,
    /// A penalty for going on with a repetition.
    pub dry: Dry,
    /// Keeps logits within so many standard deviations of the largest; up to 0 keeps all; `-1..=100`.
    pub top_n_sigma: f32,
    /// Keeps the tokens nearest to the expected surprise, until they are this likely; 1 keeps all.
    pub typical_p: f32,
    /// Drops the most likely tokens, sometimes.
    pub xtc: Xtc,
    /// A temperature that follows the entropy.
    pub dynamic: DynamicTemperature,
    /// Holds the surprise of the answer near a target.
    pub mirostat: Mirostat,
    /// The stages in the request's order; `None` for [`Stage::USUAL`].
    pub order: Option<Vec<Stage>>,
}

/// Divides positive and multiplies negative logits of tokens that occurred lately.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeat {
    /// What divides or multiplies; 1 is off; `0.001..=1000`.
    pub penalty: f32,
    /// How many of the last tokens of prompt and answer count; `None` for all.
    pub last: Option<u32>,
}

/// Subtracts `multiplier · base^(n − allowed_length)` from the logit of a token that would go on
/// with a repetition of `n` tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// The penalty of the shortest repetition that has one; 0 is off; `0..=100`.
    pub multiplier: f32,
    /// How much each further token raises it; `1..=100`.
    pub base: f32,
    /// Shorter repetitions are free.
    pub allowed_length: u32,
    /// How many of the last tokens of prompt and answer count; `None` for all.
    pub last: Option<u32>,
    /// Where a repetition begins anew.
    pub breakers: Arc<Breakers>,
}

/// Runs of tokens over which no repetition is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakers {
    runs: Vec<(TokenId, Vec<TokenId>)>,
}

impl Breakers {
    /// Of runs, each a first token and those after it.
    pub fn new(mut runs: Vec<(TokenId, Vec<TokenId>)>) -> Self {
        runs.sort_unstable();
        runs.dedup();
        Self { runs }
    }

    /// What follows this token in the runs that begin with it.
    pub fn tails(&self, first: TokenId) -> impl Iterator<Item = &[TokenId]> {
        let from = self.runs.partition_point(|(token, _)| *token < first);
        let runs = self.runs[from..].iter();
        let begun = runs.take_while(move |(token, _)| *token == first);
        begun.map(|(_, tail)| tail.as_slice())
    }
}

/// With this probability, drops all tokens that reach the threshold but the least likely of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// How often; `0..=1`.
    pub probability: f32,
    /// How likely a token must be to be dropped; above a half nothing is; `0..=1`.
    pub threshold: f32,
}

/// A temperature between `temperature − range` and `temperature + range`: the higher, the flatter the
/// distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicTemperature {
    /// How far it goes either way; 0 is off; `0..=2`.
    pub range: f32,
    /// Bends the way from the entropy to the temperature; `0..=10`.
    pub exponent: f32,
}

/// Drops surprising tokens so that the surprise of the answer stays near a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// Which algorithm; 0 is off; `0..=2`.
    pub version: u32,
    /// The target in bits; `0..=100`.
    pub tau: f32,
    /// How fast an error is corrected; `0..=1`.
    pub eta: f32,
}

impl Default for Filters {
    fn default() -> Self {
        Self {
            repeat: Repeat {
                penalty: 1.0,
                last: Some(64),
            },
            dry: Dry {
                multiplier: 0.0,
                base: 1.75,
                allowed_length: 2,
                last: None,
                breakers: Arc::default(),
            },
            top_n_sigma: -1.0,
            typical_p: 1.0,
            xtc: Xtc {
                probability: 0.0,
                threshold: 0.1,
            },
            dynamic: DynamicTemperature {
                range: 0.0,
                exponent: 1.0,
            },
            mirostat: Mirostat {
                version: 0,
                tau: 5.0,
                eta: 0.1,
            },
            order: None,
        }
    }
}

/// Neutral values are exact; anything else, however close, is a setting.
fn differs(value: f32, neutral: f32) -> bool {
    value - neutral != 0.0
}

impl Filters {
    /// Whether the surprise of the answer is steered.
    pub fn has_mirostat(&self) -> bool {
        self.mirostat.version > 0
    }

    /// Whether the temperature follows the entropy.
    pub fn has_dynamic_temperature(&self) -> bool {
        self.dynamic.range > 0.0
    }
}

impl SamplingParams {
    /// All stages in the order of the request, those that change nothing too.
    pub fn order(&self) -> &[Stage] {
        self.filters.order.as_deref().unwrap_or(&Stage::USUAL)
    }

    /// Whether a stage changes anything.
    pub fn has(&self, stage: Stage) -> bool {
        self.setting(stage).is_some()
    }

    /// The field that makes a stage change something, and its value.
    fn setting(&self, stage: Stage) -> Option<(&'static str, f32)> {
        let filters = &self.filters;
        let (dry, xtc) = (&filters.dry, filters.xtc);
        let repeats = filters.repeat.last != Some(0);
        let repeat = if repeats { filters.repeat.penalty } else { 1.0 };
        #[expect(
            clippy::cast_precision_loss,
            reason = "only shown, and compared with 0"
        )]
        let top_k = self.top_k as f32;
        let dry_is_on = dry.last != Some(0);
        let xtc_is_on = xtc.threshold <= 0.5;
        let fields: &[(&'static str, f32, f32)] = match stage {
            Stage::Penalties => &[
                ("repetition_penalty", self.repetition_penalty, 1.0),
                ("repeat_penalty", repeat, 1.0),
                ("frequency_penalty", self.frequency_penalty, 0.0),
                ("presence_penalty", self.presence_penalty, 0.0),
            ],
            Stage::Dry if dry_is_on => &[("dry_multiplier", dry.multiplier, 0.0)],
            Stage::Temperature => &[
                ("temperature", self.temperature, 1.0),
                ("dynatemp_range", filters.dynamic.range, 0.0),
            ],
            Stage::TopNSigma => &[("top_n_sigma", filters.top_n_sigma.max(0.0), 0.0)],
            Stage::TopK => &[("top_k", top_k, 0.0)],
            Stage::TypicalP => &[("typical_p", filters.typical_p, 1.0)],
            Stage::TopP => &[("top_p", self.top_p, 1.0)],
            Stage::MinP => &[("min_p", self.min_p, 0.0)],
            Stage::Xtc if xtc_is_on => &[("xtc_probability", xtc.probability, 0.0)],
            Stage::Dry | Stage::Xtc => &[],
        };
        let mut set = fields
            .iter()
            .filter(|&&(_, value, neutral)| differs(value, neutral));
        set.next().map(|&(field, value, _)| (field, value))
    }

    /// Checks the ranges, and that nothing that is set would do nothing.
    pub(super) fn check_filters(&self) -> Result<(), RequestError> {
        self.filters.check_ranges()?;
        let repeat = self.filters.repeat;
        if differs(self.repetition_penalty, 1.0)
            && differs(repeat.penalty, 1.0)
            && repeat.last != Some(0)
        {
            let problem = format!(
                "repetition_penalty is {} and repeat_penalty is {}; send one of them",
                self.repetition_penalty, repeat.penalty
            );
            let field = "repeat_penalty";
            return Err(RequestError::Conflict { field, problem });
        }
        self.check_mirostat()?;
        self.check_order()
    }

    fn check_mirostat(&self) -> Result<(), RequestError> {
        let filters = &self.filters;
        if !filters.has_mirostat() {
            return Ok(());
        }
        let dropping = Stage::USUAL.into_iter().filter(|stage| stage.truncates());
        let mut idle: Vec<(&'static str, String)> = dropping
            .filter_map(|stage| self.setting(stage))
            .map(|(field, value)| (field, value.to_string()))
            .collect();
        if filters.has_dynamic_temperature() {
            idle.push(("dynatemp_range", filters.dynamic.range.to_string()));
        }
        if filters.order.is_some() {
            idle.push(("samplers", "given".to_owned()));
        }
        let Some(&(field, _)) = idle.first() else {
            return Ok(());
        };
        let mut problem = format!("mirostat is {}, which leaves", filters.mirostat.version);
        for (index, (field, value)) in idle.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(problem, "{comma} {field} ({value})");
        }
        problem.push_str(" without effect; leave out one or the other");
        Err(RequestError::Conflict { field, problem })
    }

    fn check_order(&self) -> Result<(), RequestError> {
        let Some(order) = &self.filters.order else {
            return Ok(());
        };
        for (index, stage) in order.iter().enumerate() {
            if order[..index].contains(stage) {
                let twice = format!("{} twice", stage.name());
                return Err(out_of_range("samplers", &twice, "each name once"));
            }
        }
        let missing = Stage::USUAL
            .into_iter()
            .filter(|stage| !order.contains(stage));
        for stage in missing {
            if let Some((field, value)) = self.setting(stage) {
                let name = stage.name();
                let problem = format!(
                    "{field} is {value}, but samplers lacks {name}; add it there, or leave out {field}"
                );
                return Err(RequestError::Conflict { field, problem });
            }
        }
        Ok(())
    }
}

type Check = (&'static str, f32, RangeInclusive<f32>, &'static str);

impl Filters {
    fn check_ranges(&self) -> Result<(), RequestError> {
        let Self {
            repeat,
            dry,
            xtc,
            dynamic,
            mirostat,
            ..
        } = self;
        let share = 0.0..=1.0;
        let checks: [Check; 11] = [
            (
                "repeat_penalty",
                repeat.penalty,
                1e-3..=1e3,
                "0.001 to 1000",
            ),
            ("dry_multiplier", dry.multiplier, 0.0..=100.0, "0 to 100"),
            ("dry_base", dry.base, 1.0..=100.0, "1 to 100"),
            ("top_n_sigma", self.top_n_sigma, -1.0..=100.0, "-1 to 100"),
            ("typical_p", self.typical_p, share.clone(), "0 to 1"),
            ("xtc_probability", xtc.probability, share.clone(), "0 to 1"),
            ("xtc_threshold", xtc.threshold, share.clone(), "0 to 1"),
            ("dynatemp_range", dynamic.range, 0.0..=2.0, "0 to 2"),
            ("dynatemp_exponent", dynamic.exponent, 0.0..=10.0, "0 to 10"),
            ("mirostat_tau", mirostat.tau, 0.0..=100.0, "0 to 100"),
            ("mirostat_eta", mirostat.eta, share, "0 to 1"),
        ];
        for (field, value, range, allowed) in checks {
            if !range.contains(&value) {
                return Err(out_of_range(field, &value, allowed));
            }
        }
        if mirostat.version > 2 {
            return Err(out_of_range("mirostat", &mirostat.version, "0, 1 or 2"));
        }
        if dry.breakers.runs.len() > MAX_BREAKERS {
            let count = format!("{} runs of tokens", dry.breakers.runs.len());
            let field = "dry_sequence_breakers";
            return Err(out_of_range(field, &count, "up to 1048576"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut SamplingParams)) -> Result<(), RequestError> {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.check_filters()
    }

    #[test]
    fn off_values_set_no_stage_and_exclude_nothing() {
        let off = |params: &mut SamplingParams| {
            params.filters.top_n_sigma = 0.0;
            params.filters.xtc.probability = 0.5;
            params.filters.xtc.threshold = 0.6;
            params.filters.repeat.penalty = 1.5;
            params.filters.repeat.last = Some(0);
            params.filters.dry.multiplier = 1.0;
            params.filters.dry.last = Some(0);
        };
        let mut params = SamplingParams::default();
        off(&mut params);
        assert!(!Stage::USUAL.into_iter().any(|stage| params.has(stage)));
        for mirostat in [0, 2] {
            check(|params| {
                off(params);
                params.repetition_penalty = 1.2;
                params.filters.mirostat.version = mirostat;
            })
            .unwrap();
        }
        check(|params| {
            off(params);
            params.filters.order = Some(Vec::new());
        })
        .unwrap();
    }

    #[test]
    fn each_setting_sets_its_stage() {
        type Change = fn(&mut SamplingParams);
        let cases: [(Stage, Change); 12] = [
            (Stage::Penalties, |p| p.repetition_penalty = 1.000_001),
            (Stage::Penalties, |p| p.filters.repeat.penalty = 0.9),
            (Stage::Penalties, |p| p.presence_penalty = -0.1),
            (Stage::Dry, |p| p.filters.dry.multiplier = 0.8),
            (Stage::Temperature, |p| p.temperature = 0.7),
            (Stage::Temperature, |p| p.filters.dynamic.range = 0.5),
            (Stage::TopNSigma, |p| p.filters.top_n_sigma = 1.0),
            (Stage::TopK, |p| p.top_k = 5),
            (Stage::TypicalP, |p| p.filters.typical_p = 0.9),
            (Stage::TopP, |p| p.top_p = 0.9),
            (Stage::MinP, |p| p.min_p = 0.1),
            (Stage::Xtc, |p| p.filters.xtc.probability = 0.1),
        ];
        for (stage, change) in cases {
            let mut params = SamplingParams::default();
            change(&mut params);
            let set = Stage::USUAL.into_iter().filter(|&stage| params.has(stage));
            assert_eq!(set.collect::<Vec<_>>(), [stage]);
            // Left out of the list, it is refused; there, it is not.
            params.filters.order = Some(vec![stage]);
            params.check_filters().unwrap();
            params.filters.order = Some(Vec::new());
            let error = params.check_filters().unwrap_err();
            assert_eq!(error.kind(), "conflict");
            assert!(error.to_string().contains(stage.name()), "{error}");
            params.filters.order = None;
            // Mirostat takes the place of those that drop tokens.
            params.filters.mirostat.version = 2;
            let clashes = stage.truncates() || params.filters.has_dynamic_temperature();
            assert_eq!(params.check_filters().is_err(), clashes, "{stage:?}");
        }
    }

    #[test]
    fn clashes_name_all_that_would_do_nothing() {
        let error = check(|params| {
            params.top_k = 40;
            params.min_p = 0.5;
            params.filters.mirostat.version = 1;
        });
        assert_eq!(
            error.unwrap_err().to_string(),
            "mirostat is 1, which leaves top_k (40), min_p (0.5) without effect; leave out one or the \
             other"
        );
        let twice = check(|params| params.filters.order = Some(vec![Stage::TopK, Stage::TopK]));
        assert_eq!(twice.unwrap_err().field(), "samplers");
        let both = check(|params| {
            params.repetition_penalty = 1.1;
            params.filters.repeat.penalty = 1.2;
        });
        assert_eq!(both.unwrap_err().field(), "repeat_penalty");
    }

    #[test]
    fn numbers_outside_their_range_name_the_field() {
        type Change = fn(&mut Filters);
        let cases: [(&str, Change); 12] = [
            ("repeat_penalty", |f| f.repeat.penalty = 0.0),
            ("dry_multiplier", |f| f.dry.multiplier = -0.1),
            ("dry_base", |f| f.dry.base = 0.99),
            ("top_n_sigma", |f| f.top_n_sigma = f32::NAN),
            ("typical_p", |f| f.typical_p = 1.01),
            ("xtc_probability", |f| f.xtc.probability = 1.01),
            ("xtc_threshold", |f| f.xtc.threshold = -0.01),
            ("dynatemp_range", |f| f.dynamic.range = 2.01),
            ("dynatemp_exponent", |f| f.dynamic.exponent = -1.0),
            ("mirostat", |f| f.mirostat.version = 3),
            ("mirostat_tau", |f| f.mirostat.tau = -1.0),
            ("mirostat_eta", |f| f.mirostat.eta = 1.01),
        ];
        for (field, change) in cases {
            let error = check(|params| change(&mut params.filters)).unwrap_err();
            assert_eq!((error.field(), error.kind()), (field, "out_of_range"));
        }
    }

    #[test]
    fn breakers_are_found_by_their_first_token() {
        let id = TokenId::new;
        let breakers = Breakers::new(vec![
            (id(5), vec![id(1)]),
            (id(3), vec![]),
            (id(5), vec![]),
            (id(5), vec![id(1)]),
        ]);
        assert_eq!(breakers.tails(id(4)).count(), 0);
        let tails: Vec<&[TokenId]> = breakers.tails(id(5)).collect();
        assert_eq!(tails, [&[][..], &[id(1)]]);
        assert_eq!(breakers.tails(id(6)).count(), 0);
    }
}
