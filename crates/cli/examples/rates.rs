//! What the machine gives, without queue, scheduler, sampling or HTTP:
//! `cargo run --release -p forthwith --example rates -- [MODEL.gguf] [--threads 2] [--prompt 200]
//! [--answer 64] [--rows 1,4,16,32] [--step-tokens 512] [--rounds 3]`.
//!
//! For each count of rows, two ways to serve them. In waves: as many prompts are computed in full
//! steps, then as many rows decode together until the answers are complete. Evenly: every step
//! decodes all rows and computes as many tokens of other prompts as the load brings in that time. Prints
//! JSON; every figure is the median of the rounds.
#![expect(clippy::print_stdout, reason = "a benchmark reports to its reader")]

use clap::Parser;
use forthwith_core::clock::{Clock, SystemClock};
use forthwith_core::executor::{Executor, Segment, StepInput};
use forthwith_core::units::{BlockId, Blocks, TokenId, Tokens};
use forthwith_cpu::{BLOCK_SIZE, Cpu, CpuConfig, IsaChoice, KvFormat};
use forthwith_models::testing::tiny_llama;
use forthwith_weights::WeightFile;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Parser)]
struct Arguments {
    /// A GGUF file [default: a tiny model with random weights, to try the command]
    model: Option<PathBuf>,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 200)]
    prompt: usize,
    /// Tokens of each answer
    #[arg(long, default_value_t = 64)]
    answer: usize,
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,32")]
    rows: Vec<usize>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Tokens of a full step; the server's own are 512
    #[arg(long, default_value_t = 512)]
    step_tokens: usize,
    #[arg(long, default_value = "f16")]
    kv_format: String,
}

/// Prompts that are computed side by side, each with cache blocks of its own.
struct Crowd {
    cpu: Cpu,
    tables: Vec<Vec<BlockId>>,
    step_tokens: usize,
    /// The whole vocabulary.
    words: Vec<TokenId>,
    clock: SystemClock,
}

impl Crowd {
    /// Computes `tokens` more of the sequence `row` in each of the pieces `(row, position, tokens)`.
    fn step(&mut self, pieces: &[(usize, usize, usize)], logits: &mut Vec<f32>) {
        let mut tokens = Vec::new();
        let mut segments = Vec::new();
        let mut rows = Vec::new();
        for &(row, position, count) in pieces {
            for index in position..position + count {
                tokens.push(self.words[(row * 7919 + index * 37 + 11) % self.words.len()]);
            }
            rows.push(tokens.len() - 1);
            let blocks = &self.tables[row];
            segments.push(Segment {
                tokens: count,
                position,
                blocks,
                second_from: None,
            });
        }
        let input = StepInput {
            tokens: &tokens,
            segments: &segments,
            output_rows: &rows,
        };
        self.cpu.step(&input, logits).expect("the step is in order");
    }

    /// Seconds for `rows` prompts, and for their answers.
    fn wave(&mut self, rows: usize, prompt: usize, answer: usize) -> (Duration, Duration) {
        let mut logits = Vec::new();
        let began = self.clock.now();
        let (mut row, mut position) = (0, 0);
        while row < rows {
            let mut pieces = Vec::new();
            let mut free = self.step_tokens;
            while row < rows && free > 0 {
                let count = free.min(prompt - position);
                pieces.push((row, position, count));
                free -= count;
                position += count;
                if position == prompt {
                    (row, position) = (row + 1, 0);
                }
            }
            self.step(&pieces, &mut logits);
        }
        let answers = self.clock.now();
        // The prompt's last step gave the first token.
        for position in prompt..prompt + answer - 1 {
            let pieces: Vec<_> = (0..rows).map(|row| (row, position, 1)).collect();
            self.step(&pieces, &mut logits);
        }
        (
            answers.saturating_sub(began),
            self.clock.now().saturating_sub(answers),
        )
    }
}

impl Crowd {
    /// Seconds for `answer` steps in which `rows` answers, each at another place, get their next token
    /// beside the prompts that follow them.
    fn mix(&mut self, rows: usize, prompt: usize, answer: usize) -> Duration {
        let mut logits = Vec::new();
        let mut position = 0;
        let began = self.clock.now();
        for step in 0..answer {
            let place = |row: usize| prompt + (row * answer / rows + step) % answer;
            let mut pieces: Vec<_> = (0..rows).map(|row| (row, place(row), 1)).collect();
            let mut due = (step + 1) * rows * prompt / answer - step * rows * prompt / answer;
            while due > 0 {
                let count = due.min(prompt - position);
                pieces.push((rows, position, count));
                position = (position + count) % prompt;
                due -= count;
            }
            self.step(&pieces, &mut logits);
        }
        self.clock.now().saturating_sub(began)
    }
}

fn median(mut values: Vec<Duration>) -> f64 {
    values.sort();
    values[values.len() / 2].as_secs_f64()
}

fn measure(crowd: &mut Crowd, rows: usize, arguments: &Arguments) -> Value {
    let (prompt, answer) = (arguments.prompt, arguments.answer);
    let waves: Vec<_> = (0..arguments.rounds)
        .map(|_| crowd.wave(rows, prompt, answer))
        .collect();
    let prefill = median(waves.iter().map(|wave| wave.0).collect());
    let decode = median(waves.iter().map(|wave| wave.1).collect());
    let whole = median(waves.iter().map(|wave| wave.0 + wave.1).collect());
    let count = |tokens: usize| f64::from(u32::try_from(tokens).expect("a count is small"));
    let steps = count(answer - 1);
    let mixes = (0..arguments.rounds).map(|_| crowd.mix(rows, prompt, answer));
    let mix = median(mixes.collect());
    json!({
        "rows": rows,
        "prefill_tokens_per_second": count(rows * prompt) / prefill,
        "decode_tokens_per_second": count(rows) * steps / decode,
        "decode_step_milliseconds": decode / steps * 1e3,
        "output_tokens_per_second": count(rows * answer) / whole,
        "mixed_step_milliseconds": mix / count(answer) * 1e3,
        "mixed_output_tokens_per_second": count(rows * answer) / mix,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let file = match &arguments.model {
        Some(path) => forthwith_weights::open(path)?,
        None => WeightFile::from_bytes("tiny.gguf".as_ref(), tiny_llama(1).to_bytes())?,
    };
    let program = Arc::new(forthwith_models::build(&file)?);
    let length = arguments.prompt + arguments.answer;
    let per_row = length.div_ceil(BLOCK_SIZE.get());
    let most = 1 + arguments.rows.iter().copied().max().unwrap_or(1);
    let kv_format = KvFormat::named(&arguments.kv_format)?;
    let config = CpuConfig {
        threads: arguments.threads,
        isa: IsaChoice::best(),
        kv_format,
        kv_blocks: Blocks::new(per_row * most),
        context: Tokens::new(length),
        max_step_tokens: Tokens::new(
            arguments
                .step_tokens
                .max(most * (1 + arguments.prompt.div_ceil(arguments.answer))),
        ),
    };
    let words = (0..u32::try_from(program.vocab)?).map(TokenId::new);
    let words = words.collect();
    let blocks: Vec<BlockId> = (0..u32::try_from(per_row * most)?)
        .map(BlockId::new)
        .collect();
    let mut crowd = Crowd {
        cpu: Cpu::load(program, &file, &config, &|_, _| {})?,
        tables: blocks.chunks(per_row).map(<[_]>::to_vec).collect(),
        step_tokens: arguments.step_tokens,
        words,
        clock: SystemClock::start(),
    };
    crowd.wave(1, arguments.prompt, 2);
    let rates: Vec<Value> = arguments
        .rows
        .iter()
        .map(|&rows| measure(&mut crowd, rows, &arguments))
        .collect();
    let report = json!({
        "prompt": arguments.prompt,
        "answer": arguments.answer,
        "threads": arguments.threads,
        "rates": rates,
    });
    println!("{report:#}");
    Ok(())
}
