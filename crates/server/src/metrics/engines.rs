//! The numbers that the engines keep, read at the moment of the scrape.

use std::fmt;

use forthwith_engine::{EngineSnapshot, PredictionError};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::count;
use crate::state::Models;

/// The engines of the served models, once these are loaded.
pub(super) struct Engines(Models);

/// Names, meaning, and where the number is found.
type Row<T> = (&'static [&'static str], &'static str, fn(&Sum) -> T);

const GAUGES: [Row<f64>; 11] = [
    (
        &["forthwith_requests_running", "vllm:num_requests_running"],
        "Requests in the batch",
        |sum| count(sum.running),
    ),
    (
        &["forthwith_requests_waiting", "vllm:num_requests_waiting"],
        "Requests in the queue",
        |sum| count(sum.waiting),
    ),
    (
        &["forthwith_waiting_tokens"],
        "Prompt tokens in the queue",
        |sum| count(sum.waiting_tokens),
    ),
    (
        &["forthwith_kv_blocks_used"],
        "Cache blocks in use",
        |sum| count(sum.kv_used),
    ),
    (
        &["forthwith_kv_blocks_cached"],
        "Cache blocks that are free and would be found again",
        |sum| count(sum.kv_cached),
    ),
    (
        &["forthwith_kv_blocks_total"],
        "Cache blocks in all",
        |sum| count(sum.kv_total),
    ),
    (
        &["vllm:kv_cache_usage_perc"],
        "Cache in use, 0 to 1",
        |sum| count(sum.kv_used) / count(sum.kv_total.max(1)),
    ),
    (
        &["forthwith_step_prediction_error_ratio"],
        "Mean error of predicted step times, whatever its sign, in mean step times",
        |sum| sum.step.error_ratio(),
    ),
    (
        &["forthwith_step_prediction_bias_ratio"],
        "Mean error of predicted step times, positive if too long, in mean step times",
        |sum| sum.step.bias_ratio(),
    ),
    (
        &["forthwith_first_token_prediction_error_ratio"],
        "Mean error of predicted times to the first token, whatever its sign, in mean such times",
        |sum| sum.first_token.error_ratio(),
    ),
    (
        &["forthwith_first_token_prediction_bias_ratio"],
        "Mean error of predicted times to the first token, positive if too long, in mean such times",
        |sum| sum.first_token.bias_ratio(),
    ),
];

/// The sums behind the ratios, so that whoever scrapes can take them over any stretch of time.
const SECONDS: [Row<f64>; 9] = [
    (
        &["forthwith_step_prediction_error_seconds"],
        "Errors of predicted step times, whatever their sign",
        |sum| sum.step.error,
    ),
    (
        &["forthwith_step_predicted_seconds"],
        "Predicted times of steps",
        |sum| sum.step.predicted,
    ),
    (
        &["forthwith_step_seconds"],
        "Times of those steps that were predicted",
        |sum| sum.step.actual,
    ),
    (
        &["forthwith_first_token_prediction_error_seconds"],
        "Errors of predicted times to the first token, whatever their sign",
        |sum| sum.first_token.error,
    ),
    (
        &["forthwith_first_token_predicted_seconds"],
        "Predicted times to the first token",
        |sum| sum.first_token.predicted,
    ),
    (
        &["forthwith_first_token_seconds"],
        "Times to those first tokens that were predicted",
        |sum| sum.first_token.actual,
    ),
    (
        &["forthwith_step_model_seconds"],
        "Time of steps that the model took",
        |sum| sum.model_seconds,
    ),
    (
        &["forthwith_step_sampling_seconds"],
        "Time of steps that choosing tokens took",
        |sum| sum.sampling_seconds,
    ),
    (
        &["forthwith_step_scheduling_seconds"],
        "Time of steps that planning and telling took",
        |sum| sum.scheduling_seconds,
    ),
];

const COUNTERS: [Row<u64>; 11] = [
    (
        &["forthwith_prompt_tokens", "vllm:prompt_tokens"],
        "Prompt tokens computed",
        |sum| sum.prompt_tokens,
    ),
    (
        &[
            "forthwith_cached_tokens",
            "vllm:prompt_tokens_cached",
            "vllm:prefix_cache_hits",
        ],
        "Prompt tokens found in the cache",
        |sum| sum.cached_tokens,
    ),
    (
        &["vllm:prefix_cache_queries"],
        "Prompt tokens looked up in the cache",
        |sum| sum.cached_tokens + sum.prompt_tokens,
    ),
    (
        &["forthwith_evictions"],
        "Cached blocks given up for their memory",
        |sum| sum.evictions,
    ),
    (
        &["forthwith_generated_tokens", "vllm:generation_tokens"],
        "Tokens generated",
        |sum| sum.generated_tokens,
    ),
    (
        &["forthwith_preemptions", "vllm:num_preemptions"],
        "Requests sent back to wait because the cache was full",
        |sum| sum.preemptions,
    ),
    (
        &["forthwith_displacements"],
        "Requests sent back to wait for the sake of a better priority",
        |sum| sum.displacements,
    ),
    (&["forthwith_steps"], "Passes over the weights", |sum| {
        sum.steps
    }),
    (
        &["forthwith_step_predictions"],
        "Steps whose time was predicted",
        |sum| sum.step.count,
    ),
    (
        &["forthwith_first_token_predictions"],
        "First tokens whose time was predicted",
        |sum| sum.first_token.count,
    ),
    (&["forthwith_step_faults"], "Passes that failed", |sum| {
        sum.faults
    }),
];

/// The engines' numbers together.
#[derive(Default)]
struct Sum {
    running: usize,
    waiting: usize,
    waiting_tokens: usize,
    kv_cached: usize,
    kv_used: usize,
    kv_total: usize,
    prompt_tokens: u64,
    cached_tokens: u64,
    evictions: u64,
    generated_tokens: u64,
    preemptions: u64,
    displacements: u64,
    steps: u64,
    faults: u64,
    step: Prediction,
    first_token: Prediction,
    model_seconds: f64,
    sampling_seconds: f64,
    scheduling_seconds: f64,
}

/// Predictions and what happened, in seconds.
#[derive(Default)]
struct Prediction {
    count: u64,
    error: f64,
    predicted: f64,
    actual: f64,
}

impl Prediction {
    fn add(&mut self, more: PredictionError) {
        self.count += more.count;
        self.error += more.error.as_secs_f64();
        self.predicted += more.predicted.as_secs_f64();
        self.actual += more.actual.as_secs_f64();
    }

    fn error_ratio(&self) -> f64 {
        self.share(self.error)
    }

    fn bias_ratio(&self) -> f64 {
        self.share(self.predicted - self.actual)
    }

    /// Nothing is off while nothing was predicted.
    fn share(&self, seconds: f64) -> f64 {
        if self.actual > 0.0 {
            seconds / self.actual
        } else {
            0.0
        }
    }
}

impl Engines {
    pub(super) fn new(models: Models) -> Self {
        Self(models)
    }
}

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engines")
    }
}

impl Sum {
    fn add(&mut self, snapshot: &EngineSnapshot) {
        self.running += snapshot.running;
        self.waiting += snapshot.waiting;
        self.waiting_tokens += snapshot.waiting_tokens.get();
        self.kv_cached += snapshot.kv_cached.get();
        self.kv_used += snapshot.kv_used.get();
        self.kv_total += snapshot.kv_total.get();
        self.prompt_tokens += snapshot.counters.prompt_tokens;
        self.cached_tokens += snapshot.counters.cached_tokens;
        self.evictions += snapshot.counters.evictions;
        self.generated_tokens += snapshot.counters.generated_tokens;
        self.preemptions += snapshot.counters.preemptions;
        self.displacements += snapshot.counters.displacements;
        self.steps += snapshot.counters.steps;
        self.faults += snapshot.counters.faults;
        self.step.add(snapshot.step_prediction);
        self.first_token.add(snapshot.first_token_prediction);
        let times = snapshot.step_times;
        self.model_seconds += times.model.as_secs_f64();
        self.sampling_seconds += times.sampling.as_secs_f64();
        self.scheduling_seconds += times.scheduling.as_secs_f64();
    }
}

impl Collector for Engines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let models = self.0.get().map_or(&[][..], Vec::as_slice);
        let snapshots: Vec<EngineSnapshot> =
            models.iter().map(|model| model.engine.snapshot()).collect();
        let mut sum = Sum::default();
        for snapshot in &snapshots {
            sum.add(snapshot);
        }
        for (names, help, read) in GAUGES {
            write(&mut encoder, names, help, &ConstGauge::new(read(&sum)))?;
        }
        for (names, help, read) in COUNTERS {
            write(&mut encoder, names, help, &ConstCounter::new(read(&sum)))?;
        }
        for (names, help, read) in SECONDS {
            write(&mut encoder, names, help, &ConstCounter::new(read(&sum)))?;
        }
        match snapshots.first() {
            Some(first) => write_cache_shape(&mut encoder, first),
            None => Ok(()),
        }
    }
}

fn write(
    encoder: &mut DescriptorEncoder<'_>,
    names: &[&str],
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    names.iter().try_for_each(|name| {
        metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
    })
}

/// Routers look for a gauge of 1 whose labels tell the shape.
fn write_cache_shape(
    encoder: &mut DescriptorEncoder<'_>,
    snapshot: &EngineSnapshot,
) -> fmt::Result {
    let labels = [
        ("block_size", snapshot.block_size.to_string()),
        ("num_gpu_blocks", snapshot.kv_total.to_string()),
    ];
    let help = "The cache's shape, in the labels";
    let mut descriptor =
        encoder.encode_descriptor("vllm:cache_config_info", help, None, MetricType::Gauge)?;
    ConstGauge::new(1_i64).encode(descriptor.encode_family(&labels)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ratios_are_of_what_happened() {
        let mut prediction = Prediction::default();
        assert_eq!(
            (prediction.error_ratio(), prediction.bias_ratio()),
            (0.0, 0.0)
        );
        // 3 s instead of 2 s on one engine, 1 s instead of 2 s on another.
        for predicted in [3, 1] {
            prediction.add(PredictionError {
                count: 1,
                error: Duration::from_secs(1),
                predicted: Duration::from_secs(predicted),
                actual: Duration::from_secs(2),
            });
        }
        assert_eq!(
            (prediction.error_ratio(), prediction.bias_ratio()),
            (0.5, 0.0)
        );
        assert_eq!(prediction.count, 2);
    }
}
