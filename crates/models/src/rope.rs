//! Rotary position embeddings: what a file says about them, and the frequencies that follow.

use crate::config::Config;
use crate::error::LoadFault;
use crate::spec::{Dimensions, to_f32};
use forthwith_core::metadata::require;
use forthwith_core::program::{Pairing, Rope};
use std::f64::consts::TAU;
use std::ops::RangeInclusive;

const FACTORS: RangeInclusive<f64> = 1e-6..=1e6;
const MAX_CONTEXT: usize = 1 << 31;

/// One rotary embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Which elements of a head form a pair.
    pub pairing: Pairing,
    /// Elements of a head that rotate; even.
    pub rotated: usize,
    /// Pair `i` turns `base^(−2i / rotated)` radians per position, before scaling.
    pub base: f64,
    /// How the frequencies are stretched for longer contexts.
    pub scaling: RopeScaling,
    /// A tensor of `rotated / 2` factors by which the frequencies are divided, if the file has it.
    pub factors: Option<&'static str>,
}

/// How a model stretches its rotary frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies are divided by the factor.
    Linear(f64),
    /// Low frequencies are divided, high ones kept, those between blended.
    Yarn(Yarn),
    /// The same by wavelength.
    Llama3(Llama3),
    /// Each frequency is divided by a number of its own, others for long contexts than for short ones.
    Long(LongRope),
}

/// Parameters of `LongRoPE`. Which list counts is decided at load, by the context that is served, so
/// that a token's numbers do not depend on how long its sequence becomes.
///
/// Source: Ding et al. 2024, arXiv:2402.13753.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// The divisors for contexts up to the original one, and for longer ones; `None` if tensors of the
    /// file hold them.
    pub lists: Option<[Vec<f32>; 2]>,
    /// The context that the model was trained for before it was stretched.
    pub original_context: usize,
    /// Multiplies the rotated elements.
    pub magnitude: f64,
}

/// Parameters of the scaling of Llama 3.1.
///
/// Source: Grattafiori et al. 2024, arXiv:2407.21783; the formula is that of the model's release.
#[derive(Clone, Debug, PartialEq)]
pub struct Llama3 {
    /// What slow frequencies are divided by.
    pub factor: f64,
    /// Pairs that turn less often than this over the original context are divided.
    pub low_turns: f64,
    /// Pairs that turn more often than this over the original context are kept.
    pub high_turns: f64,
    /// The context that the model was trained for before it was stretched.
    pub original_context: usize,
}

/// Parameters of `YaRN`.
///
/// Source: Peng et al. 2023, arXiv:2309.00071.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// The stretch of the context.
    pub factor: f64,
    /// The context that the model was trained for before it was stretched.
    pub original_context: usize,
    /// Pairs that turn more often than this over that context are kept.
    pub beta_fast: f64,
    /// Pairs that turn less often than this over that context are divided.
    pub beta_slow: f64,
    /// Multiplies the magnitude that follows from the factor.
    pub attention_factor: f64,
}

impl RopeScaling {
    /// Reads the keys `rope.scaling.*` as far as a plain stretch goes.
    pub(crate) fn read_linear(config: &mut Config<'_>) -> Result<Self, LoadFault> {
        match scaling_type(config)? {
            "none" => {
                read_factor(config)?;
                Ok(Self::None)
            }
            "linear" => Ok(read_factor(config)?.map_or(Self::None, Self::Linear)),
            other => Err(unsupported(config, other, "none and linear")),
        }
    }

    /// Reads the keys `rope.scaling.*`, `YaRN` included. `context` is the default of its original
    /// context.
    pub(crate) fn read(config: &mut Config<'_>, context: usize) -> Result<Self, LoadFault> {
        match scaling_type(config)? {
            "yarn" => Yarn::read(config, context).map(Self::Yarn),
            "llama3" => Llama3::read(config).map(Self::Llama3),
            "longrope" => LongRope::read(config, context).map(Self::Long),
            // Stretches only what lies beyond the trained context, which no request reaches.
            "dynamic" => {
                config.ignore(&["rope.scaling.original_context_length"]);
                read_factor(config).map(|_| Self::None)
            }
            "none" | "linear" => {
                config.ignore(&["rope.scaling.original_context_length"]);
                Self::read_linear(config)
            }
            other => Err(unsupported(
                config,
                other,
                "none, linear, dynamic, yarn, llama3 and longrope",
            )),
        }
    }
}

impl LongRope {
    fn read(config: &mut Config<'_>, context: usize) -> Result<Self, LoadFault> {
        let original = config
            .optional_size("rope.scaling.original_context_length", 1..=MAX_CONTEXT)?
            .unwrap_or(context);
        let pairs = config.optional_size("rope.dimension_count", 2..=MAX_CONTEXT)?;
        let mut list = |part| -> Result<Option<Vec<f32>>, LoadFault> {
            let list = config.floats(part)?.map(<[f32]>::to_vec);
            let usable = |factor: &f32| factor.is_finite() && *factor > 0.0;
            match list {
                Some(list) if pairs.is_some_and(|pairs| 2 * list.len() != pairs) => {
                    let problem = format!("{} numbers for {pairs:?} elements", list.len());
                    Err(LoadFault::value(config.key(part), problem))
                }
                Some(list) if !list.iter().all(usable) => {
                    let problem = "must be finite and positive";
                    Err(LoadFault::value(config.key(part), problem))
                }
                list => Ok(list),
            }
        };
        let short = list("rope.scaling.short_factor")?;
        let long = list("rope.scaling.long_factor")?;
        let lists = match (short, long) {
            (Some(short), Some(long)) => Some([short, long]),
            (None, None) => None,
            _ => {
                let key = config.key("rope.scaling.long_factor");
                return Err(LoadFault::value(key, "one of two lists is missing"));
            }
        };
        let stretch = read_factor(config)?.unwrap_or(float(context) / float(original));
        let usual = if stretch > 1.0 {
            (1.0 + stretch.ln() / float(original).ln()).sqrt()
        } else {
            1.0
        };
        let stated = config.optional_float("rope.scaling.attention_factor")?;
        let in_files = config.optional_float("rope.scaling.attn_factor")?;
        Ok(Self {
            lists,
            original_context: original,
            magnitude: stated.or(in_files).unwrap_or(usual),
        })
    }
}

impl Llama3 {
    fn read(config: &mut Config<'_>) -> Result<Self, LoadFault> {
        let factor = read_factor(config)?;
        let original = config.size("rope.scaling.original_context_length", 1..=MAX_CONTEXT)?;
        let scaling = Self {
            factor: require(&config.key("rope.scaling.factor"), factor)?,
            low_turns: config.float("rope.scaling.low_freq_factor")?,
            high_turns: config.float("rope.scaling.high_freq_factor")?,
            original_context: original,
        };
        if scaling.low_turns < scaling.high_turns {
            return Ok(scaling);
        }
        Err(LoadFault::value(
            config.key("rope.scaling.low_freq_factor"),
            format!("{}, must be below the high one", scaling.low_turns),
        ))
    }

    /// The share of a frequency that is kept: 1 for fast pairs, 0 for slow ones.
    fn kept_share(&self, frequency: f64) -> f64 {
        let turns = float(self.original_context) * frequency / TAU;
        ((turns - self.low_turns) / (self.high_turns - self.low_turns)).clamp(0.0, 1.0)
    }
}

impl Yarn {
    fn read(config: &mut Config<'_>, context: usize) -> Result<Self, LoadFault> {
        let factor = read_factor(config)?;
        // Model folders may state the whole magnitude.
        let stated = config.optional_float("rope.scaling.attention_factor")?;
        let usual = 1.0 + 0.1 * factor.unwrap_or(1.0).max(1.0).ln();
        let whole = stated.map(|stated| stated / usual);
        let beta = |config: &mut Config<'_>, part, default: f64| {
            config
                .optional_float(part)
                .map(|beta| beta.unwrap_or(default))
        };
        Ok(Self {
            factor: require(&config.key("rope.scaling.factor"), factor)?,
            original_context: config
                .optional_size("rope.scaling.original_context_length", 1..=MAX_CONTEXT)?
                .unwrap_or(context),
            beta_fast: beta(config, "rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: beta(config, "rope.scaling.yarn_beta_slow", 1.0)?,
            attention_factor: beta(config, "rope.scaling.attn_factor", whole.unwrap_or(1.0))?,
        })
    }

    /// The share of pair `index` that keeps its frequency: 1 for fast pairs, 0 for slow ones.
    fn kept_share(&self, index: usize, rotated: usize, base: f64) -> f64 {
        let pair_turning = |turns: f64| {
            let ratio = float(self.original_context) / (turns * TAU);
            float(rotated) * ratio.ln() / (2.0 * base.ln())
        };
        let low = pair_turning(self.beta_fast).floor().max(0.0);
        let high = pair_turning(self.beta_slow).ceil().min(float(rotated - 1));
        1.0 - ((float(index) - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
    }

    fn magnitude(&self) -> f64 {
        self.attention_factor * (1.0 + 0.1 * self.factor.max(1.0).ln())
    }
}

impl RopeSpec {
    /// Reads the usual keys of a family whose layers share one rotary embedding.
    pub(crate) fn read(
        config: &mut Config<'_>,
        dimensions: &Dimensions,
        pairing: Pairing,
        usual_base: f64,
    ) -> Result<Self, LoadFault> {
        let head_dim = dimensions.head_dim;
        let rotated = config.optional_size("rope.dimension_count", 2..=head_dim)?;
        let rotated = rotated.unwrap_or(head_dim);
        if !rotated.is_multiple_of(2) {
            let problem = format!("{rotated} is odd, rotary pairs need an even length");
            return Err(LoadFault::value(
                config.key("rope.dimension_count"),
                problem,
            ));
        }
        Ok(Self {
            pairing,
            rotated,
            base: read_base(config, "rope.freq_base", usual_base)?,
            scaling: RopeScaling::read(config, dimensions.context.get())?,
            factors: Some("rope_freqs.weight"),
        })
    }

    /// The rotation of a program. `factors` holds one divisor for each pair, or nothing.
    pub(crate) fn rope(&self, factors: Option<&[f32]>) -> Rope {
        let frequency = |index: usize| {
            let exponent = -2.0 * float(index) / float(self.rotated);
            let divisor = factors.map_or(1.0, |factors| f64::from(factors[index]));
            let plain = self.base.powf(exponent) / divisor;
            match &self.scaling {
                RopeScaling::None | RopeScaling::Long(_) => plain,
                RopeScaling::Linear(factor) => plain / factor,
                RopeScaling::Llama3(llama3) => {
                    let kept = llama3.kept_share(plain);
                    plain / llama3.factor * (1.0 - kept) + plain * kept
                }
                RopeScaling::Yarn(yarn) => {
                    let kept = yarn.kept_share(index, self.rotated, self.base);
                    plain / yarn.factor * (1.0 - kept) + plain * kept
                }
            }
        };
        let magnitude = match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.magnitude(),
            RopeScaling::Long(long) => long.magnitude,
            _ => 1.0,
        };
        Rope {
            pairing: self.pairing,
            inverse_frequencies: (0..self.rotated / 2).map(frequency).collect(),
            magnitude: to_f32(magnitude),
        }
    }
}

/// The base of a rotary embedding.
pub(crate) fn read_base(
    config: &mut Config<'_>,
    part: &str,
    default: f64,
) -> Result<f64, LoadFault> {
    let base = config.optional_float(part)?.unwrap_or(default);
    if base > 1.0 {
        Ok(base)
    } else {
        Err(LoadFault::value(
            config.key(part),
            format!("{base}, must be greater than 1"),
        ))
    }
}

/// The kind of scaling; files without the key mean "linear", with a factor or without.
fn scaling_type<'a>(config: &mut Config<'a>) -> Result<&'a str, LoadFault> {
    config.ignore(&["rope.scaling.finetuned"]);
    // llama.cpp's converter writes for `LongRoPE` the magnitude and the factors, but no type.
    let long = config.optional_float("rope.scaling.attn_factor")?.is_some();
    let untold = if long { "longrope" } else { "linear" };
    Ok(config.text("rope.scaling.type")?.unwrap_or(untold))
}

/// The stretch, under its present or its former key.
fn read_factor(config: &mut Config<'_>) -> Result<Option<f64>, LoadFault> {
    let former = config.optional_float("rope.scale_linear")?;
    let factor = config.optional_float("rope.scaling.factor")?.or(former);
    match factor {
        Some(factor) if !FACTORS.contains(&factor) => {
            let problem = format!(
                "{factor}, allowed are {} to {}",
                FACTORS.start(),
                FACTORS.end()
            );
            Err(LoadFault::value(config.key("rope.scaling.factor"), problem))
        }
        factor => Ok(factor),
    }
}

fn unsupported(config: &mut Config<'_>, found: &str, supported: &str) -> LoadFault {
    let problem = format!("`{found}` is not supported; supported are {supported}");
    LoadFault::value(config.key("rope.scaling.type"), problem)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "head sizes and contexts are far below 2^52"
)]
fn float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use forthwith_core::metadata::{Metadata, Value};

    fn read(keys: &[(&str, Value)]) -> Result<RopeScaling, LoadFault> {
        let mut metadata = Metadata::default();
        for (key, value) in keys {
            metadata.insert(format!("llama.{key}"), value.clone());
        }
        let mut config = Config::new(&metadata, "llama");
        let scaling = RopeScaling::read(&mut config, 4096)?;
        config.finish()?;
        Ok(scaling)
    }

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec {
            pairing: Pairing::Adjacent,
            rotated: 128,
            base: 10_000.0,
            scaling,
            factors: None,
        }
    }

    fn text(value: &str) -> Value {
        Value::Text(value.into())
    }

    #[test]
    fn plain_frequencies_follow_the_base() {
        let rope = spec(RopeScaling::None).rope(None);
        assert_eq!(rope.inverse_frequencies.len(), 64);
        assert_eq!(rope.inverse_frequencies[0].to_bits(), 1.0_f64.to_bits());
        assert!((rope.inverse_frequencies[32] - 0.01).abs() < 1e-15);
        assert_eq!(rope.magnitude.to_bits(), 1.0_f32.to_bits());
    }

    #[test]
    fn linear_scaling_is_read_under_both_keys_and_zero_means_none() {
        let factor = Value::Float(8.0);
        let linear = Ok(RopeScaling::Linear(8.0));
        assert_eq!(read(&[("rope.scaling.factor", factor.clone())]), linear);
        assert_eq!(read(&[("rope.scale_linear", factor.clone())]), linear);
        assert_eq!(
            read(&[("rope.scaling.factor", Value::Float(0.0))]),
            Ok(RopeScaling::None)
        );
        let none = [
            ("rope.scaling.type", text("none")),
            ("rope.scaling.factor", factor),
        ];
        assert_eq!(read(&none), Ok(RopeScaling::None));
        assert_eq!(read(&[]), Ok(RopeScaling::None));
        let rope = spec(RopeScaling::Linear(8.0)).rope(None);
        assert_eq!(rope.inverse_frequencies[0].to_bits(), 0.125_f64.to_bits());
    }

    #[test]
    fn factors_divide_each_frequency() {
        let factors: Vec<f32> = (1_u16..=64).map(f32::from).collect();
        let plain = spec(RopeScaling::None).rope(None);
        let divided = spec(RopeScaling::None).rope(Some(&factors));
        for (index, (a, b)) in plain
            .inverse_frequencies
            .iter()
            .zip(&divided.inverse_frequencies)
            .enumerate()
        {
            assert!((a / float(index + 1) - b).abs() < 1e-15);
        }
    }

    /// The borders follow from the formula of the paper: heads of 128, base 10000, context 4096.
    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let scaling = read(&[
            ("rope.scaling.type", text("yarn")),
            ("rope.scaling.factor", Value::Float(16.0)),
            (
                "rope.scaling.original_context_length",
                Value::Unsigned(4096),
            ),
        ])
        .unwrap();
        let rope = spec(scaling.clone()).rope(None);
        let plain = spec(RopeScaling::None).rope(None);
        let share =
            |index: usize| rope.inverse_frequencies[index] / plain.inverse_frequencies[index];
        // Turns 32 times: pair 64·ln(4096/64π)/ln(10000) = 20.9; once: 45.03.
        assert!((share(20) - 1.0).abs() < 1e-12);
        assert!(share(21) < 1.0);
        assert!(share(45) > 1.0 / 16.0 + 1e-3);
        assert!((share(46) - 1.0 / 16.0).abs() < 1e-12);
        let middle = 1.0 - 13.0 / 26.0;
        assert!((share(33) - (middle + (1.0 - middle) / 16.0)).abs() < 1e-12);
        assert!((rope.magnitude - 1.277_258_9).abs() < 1e-6);
    }

    #[test]
    fn unknown_and_impossible_scaling_is_refused_by_key() {
        for (keys, named) in [
            (
                vec![("rope.scaling.type", text("ntk"))],
                "`llama.rope.scaling.type`",
            ),
            (
                vec![
                    ("rope.scaling.type", text("longrope")),
                    ("rope.scaling.short_factor", Value::Floats(vec![1.0])),
                ],
                "`llama.rope.scaling.long_factor`",
            ),
            (
                vec![("rope.scaling.type", text("yarn"))],
                "`llama.rope.scaling.factor`",
            ),
            (
                vec![("rope.scaling.factor", Value::Float(f64::NAN))],
                "`llama.rope.scaling.factor`",
            ),
            (
                vec![("rope.scaling.factor", Value::Float(-2.0))],
                "`llama.rope.scaling.factor`",
            ),
            (
                vec![("rope.scaling.factor", Value::Float(1e300))],
                "`llama.rope.scaling.factor`",
            ),
            (
                vec![("rope.scaling.alpha", Value::Float(2.0))],
                "`llama.rope.scaling.alpha`",
            ),
        ] {
            let message = read(&keys).unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
    }
}
