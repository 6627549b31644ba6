//! The numbers that the engines keep, read at the moment of the scrape.

use std::fmt;

use forthwith_engine::EngineSnapshot;
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

const GAUGES: [Row<f64>; 5] = [
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
        &["forthwith_kv_blocks_used"],
        "Cache blocks in use",
        |sum| count(sum.kv_used),
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
];

const COUNTERS: [Row<u64>; 8] = [
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
    (&["forthwith_steps"], "Passes over the weights", |sum| {
        sum.steps
    }),
    (&["forthwith_step_faults"], "Passes that failed", |sum| {
        sum.faults
    }),
];

/// The engines' numbers together.
#[derive(Default)]
struct Sum {
    running: usize,
    waiting: usize,
    kv_used: usize,
    kv_total: usize,
    prompt_tokens: u64,
    cached_tokens: u64,
    evictions: u64,
    generated_tokens: u64,
    preemptions: u64,
    steps: u64,
    faults: u64,
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
        self.kv_used += snapshot.kv_used.get();
        self.kv_total += snapshot.kv_total.get();
        self.prompt_tokens += snapshot.counters.prompt_tokens;
        self.cached_tokens += snapshot.counters.cached_tokens;
        self.evictions += snapshot.counters.evictions;
        self.generated_tokens += snapshot.counters.generated_tokens;
        self.preemptions += snapshot.counters.preemptions;
        self.steps += snapshot.counters.steps;
        self.faults += snapshot.counters.faults;
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
