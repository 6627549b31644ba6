//! What choosing a token costs: steps of a model whose logits are ready.
//!
//! `cargo run --release -p forthwith-engine --example sampling [SETTING [THREADS [ISA]]]`: all settings
//! that have SETTING in their name, all if it is empty; on the threads (two if not said) and with the
//! instruction set (the best) of the CPU executor. Prints microseconds a row: the median over steps of
//! the time for a step's rows, divided by their number.
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;
use std::time::Duration;

use forthwith_core::clock::{Clock, SystemClock};
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::request::{GenerationRequest, RequestParts, SamplingParams};
use forthwith_core::rows::RowPasses;
use forthwith_core::units::{BlockId, Blocks, TokenId, Tokens};
use forthwith_cpu::{Cpu, CpuConfig, IsaChoice, KvFormat};
use forthwith_engine::{Engine, EngineConfig};
use forthwith_models::testing::tiny_llama;
use forthwith_weights::WeightFile;

type Failure = Box<dyn std::error::Error>;

/// Entries of the vocabulary and rows of a step.
const SIZES: [(usize, usize); 4] = [(49_152, 1), (49_152, 32), (262_144, 1), (262_144, 8)];

/// How long a setting is measured.
const MEASURED: Duration = Duration::from_millis(120);

/// A CPU executor that has its logits already.
struct Ready {
    cpu: Cpu,
    row: Vec<f32>,
}

impl Executor for Ready {
    fn vocab(&self) -> usize {
        self.row.len()
    }

    fn kv_geometry(&self) -> KvGeometry {
        KvGeometry {
            blocks: Blocks::new(1 << 14),
            ..self.cpu.kv_geometry()
        }
    }

    fn max_step_tokens(&self) -> Tokens {
        Tokens::new(512)
    }

    fn step(&mut self, input: &StepInput<'_>, logits: &mut Vec<f32>) -> Result<(), StepError> {
        logits.clear();
        for _ in input.output_rows {
            logits.extend_from_slice(&self.row);
        }
        // As after a step of a model, the threads are awake.
        self.cpu.lend_threads(&|_| ())
    }

    fn copy_block(&mut self, _: BlockId, _: BlockId) {}

    fn threads(&self) -> usize {
        self.cpu.threads()
    }

    fn lend_threads(&mut self, work: &(dyn Fn(usize) + Sync)) -> Result<(), StepError> {
        self.cpu.lend_threads(work)
    }

    fn row_passes(&self) -> Arc<dyn RowPasses> {
        self.cpu.row_passes()
    }
}

fn drawn(change: fn(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams::default();
    change(&mut params);
    params
}

fn settings() -> Vec<(&'static str, SamplingParams, Option<u32>)> {
    let greedy = SamplingParams::greedy();
    vec![
        ("greedy", greedy.clone(), None),
        ("greedy, log-probability", greedy.clone(), Some(0)),
        ("greedy, 20 log-probabilities", greedy, Some(20)),
        ("temperature 1", drawn(|_| ()), None),
        ("temperature 0.7", drawn(|p| p.temperature = 0.7), None),
        ("temperature 1, 5 log-probabilities", drawn(|_| ()), Some(5)),
        (
            "temperature 0.7, 5 log-probabilities",
            drawn(|p| p.temperature = 0.7),
            Some(5),
        ),
        ("top_k 40", drawn(|p| p.top_k = 40), None),
        ("top_k 1000", drawn(|p| p.top_k = 1000), None),
        ("top_p 0.95", drawn(|p| p.top_p = 0.95), None),
        ("top_p 0.5", drawn(|p| p.top_p = 0.5), None),
        (
            "top_p 0.95, 5 log-probabilities",
            drawn(|p| p.top_p = 0.95),
            Some(5),
        ),
        (
            "top_k 40, top_p 0.95",
            drawn(|p| (p.top_k, p.top_p) = (40, 0.95)),
            None,
        ),
        ("min_p 0.05", drawn(|p| p.min_p = 0.05), None),
        (
            "repetition_penalty 1.2",
            drawn(|p| p.repetition_penalty = 1.2),
            None,
        ),
    ]
}

/// Those of which most go by way of a list.
fn further_settings() -> Vec<(&'static str, SamplingParams, Option<u32>)> {
    vec![
        (
            "list: typical_p 0.9",
            drawn(|p| p.filters.typical_p = 0.9),
            None,
        ),
        (
            "list: top_n_sigma 1",
            drawn(|p| p.filters.top_n_sigma = 1.0),
            None,
        ),
        (
            "list: xtc 0.5",
            drawn(|p| p.filters.xtc.probability = 0.5),
            None,
        ),
        (
            "list: xtc 0.5, top_k 40",
            drawn(|p| (p.filters.xtc.probability, p.top_k) = (0.5, 40)),
            None,
        ),
        (
            "list: dynatemp 0.5",
            drawn(|p| p.filters.dynamic.range = 0.5),
            None,
        ),
        (
            "list: mirostat 2",
            drawn(|p| p.filters.mirostat.version = 2),
            None,
        ),
        ("dry 0.8", drawn(|p| p.filters.dry.multiplier = 0.8), None),
        (
            "repeat_penalty 1.2, 64 tokens",
            drawn(|p| p.filters.repeat.penalty = 1.2),
            None,
        ),
    ]
}

/// Logits from the ranks of a power law, which few tokens dominate, or even ones.
fn logits(vocab: usize, peaked: bool) -> Vec<f32> {
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        f64::from(u32::try_from(state >> 33).unwrap_or(0)) / f64::from(1_u32 << 31)
    };
    let mut row: Vec<f32> = (1..=u32::try_from(vocab).unwrap_or(u32::MAX))
        .map(|rank| {
            let value = if peaked {
                18.0 - 2.0 * f64::from(rank).ln() + random()
            } else {
                2.0 * (random() + random())
            };
            #[expect(clippy::cast_possible_truncation, reason = "a logit")]
            let value = value as f32;
            value
        })
        .collect();
    for at in (1..vocab).rev() {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index"
        )]
        row.swap(at, (random() * (at + 1) as f64) as usize);
    }
    row
}

fn executor(row: Vec<f32>, isa: IsaChoice, threads: usize) -> Result<Ready, Failure> {
    let config = CpuConfig {
        threads,
        isa,
        kv_format: KvFormat::F16,
        kv_blocks: Blocks::new(1),
        max_step_tokens: Tokens::new(1),
        context: Tokens::new(32),
    };
    let file = WeightFile::from_bytes("tiny.gguf".as_ref(), tiny_llama(1).to_bytes())?;
    let program = Arc::new(forthwith_models::build(&file)?);
    let cpu = Cpu::load(program, &file, &config, &|_, _| {})?;
    Ok(Ready { cpu, row })
}

/// The median time for a row.
fn measure(
    executor: Ready,
    rows: usize,
    (params, logprobs): (&SamplingParams, Option<u32>),
) -> Result<Duration, Failure> {
    let config = EngineConfig {
        max_running: rows,
        ..EngineConfig::default()
    };
    let clock = Arc::new(SystemClock::start());
    let mut engine = Engine::new(Box::new(executor), config, Arc::clone(&clock) as _);
    for seed in 0..rows as u64 {
        let prompt = (0..200).map(|at| TokenId::new(at * 7)).collect();
        let parts = RequestParts {
            sampling: SamplingParams {
                seed,
                ..params.clone()
            },
            logprobs,
            ..RequestParts::new(prompt)
        };
        let request = GenerationRequest::new(parts, engine.limits())?;
        engine.submit(request, Box::new(|_| ()))?;
    }
    while engine.snapshot().waiting > 0 {
        engine.step();
    }
    let end = clock.now() + MEASURED;
    let mut times = Vec::new();
    while times.len() < 5 || clock.now() < end && times.len() < 3000 {
        let before = engine.snapshot().step_times.sampling;
        engine.step();
        let after = engine.snapshot().step_times.sampling;
        times.push(after.saturating_sub(before));
    }
    times.sort_unstable();
    Ok(times[times.len() / 2] / u32::try_from(rows)?)
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().unwrap_or_default();
    let threads = arguments.next().map_or(Ok(2), |count| count.parse())?;
    let isa = arguments.next();
    let isa = isa.map_or(Ok(IsaChoice::best()), |name| IsaChoice::named(&name))?;
    println!("{threads} threads, {}", isa.name());
    print!("{:38}", "us a row");
    for (vocab, rows) in SIZES {
        print!(" {:>17}", format!("{vocab} x {rows}"));
    }
    println!("\n{:38}{}", "", "   peaked     flat".repeat(SIZES.len()));
    let chosen = settings().into_iter().chain(further_settings());
    for (name, params, logprobs) in chosen.filter(|setting| setting.0.contains(&wanted)) {
        print!("{name:38}");
        for (vocab, rows) in SIZES {
            for peaked in [true, false] {
                let executor = executor(logits(vocab, peaked), isa, threads)?;
                let time = measure(executor, rows, (&params, logprobs))?;
                print!(" {:8.1}", time.as_secs_f64() * 1e6);
            }
        }
        println!();
    }
    Ok(())
}
