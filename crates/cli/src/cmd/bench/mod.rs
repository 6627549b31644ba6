//! `forthwith bench`: what this machine gives.

mod crowd;
mod work;

use crate::args::{BenchArgs, BenchCommand, BenchEngineArgs, SharedArgs};
use crate::error::Failure;
use crate::progress::Reporter;
use crate::select::{Compute, available_memory};
use crowd::Crowd;
use forthwith_core::program::{Output, Program};
use forthwith_core::units::{Blocks, Bytes, Tokens};
use forthwith_cpu::{
    BLOCK_SIZE, Cpu, CpuConfig, PHASE_NAMES, Roof, RoofMeter, kv_block_bytes, weight_bytes,
    workspace_bytes,
};
use forthwith_hub::{Located, Progress as _};
use forthwith_models::Overrides;
use serde::Serialize;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use work::Work;

/// Tokens of a step, as many as the server's.
const STEP_TOKENS: usize = 512;

#[derive(Debug, Serialize)]
struct Report {
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
    roof: RoofRates,
    phases: Vec<PhaseRate>,
}

#[derive(Debug, Serialize)]
struct Prefill {
    tokens: usize,
    tok_s: f64,
    gop_s: f64,
    share_of_roof: f64,
}

#[derive(Debug, Serialize)]
struct Decode {
    batch: usize,
    depth: usize,
    tok_s: f64,
    gb_s: f64,
    share_of_roof: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[expect(
    clippy::struct_field_names,
    reason = "as they stand in the JSON: what, per second"
)]
struct RoofRates {
    read_gb_s: f64,
    int8_gop_s: f64,
    f32_gop_s: f64,
}

/// One kind of phase in one step, or in one prompt.
#[derive(Debug, Serialize)]
struct PhaseRate {
    name: String,
    ms: f64,
    bytes: u64,
    ops: u64,
}

/// Runs the benchmark and prints what it found.
pub(crate) fn run(args: &BenchArgs, shared: &SharedArgs) -> Result<(), Failure> {
    let BenchCommand::Engine(args) = &args.what;
    let reporter = Reporter::new();
    let path = match shared.hub().locate(&args.model, &reporter)? {
        Located::File { path, .. } => path,
        Located::Toy => {
            return Err(Failure::bad_input(
                "`--model toy` has no kernels to measure: name a model that is a file",
            ));
        }
    };
    let compute = Compute::new(&args.compute);
    for warning in compute.warnings() {
        reporter.note(&format!("warning: {warning}"));
    }
    let file = crate::load::open(&path, Overrides::default(), &compute, &reporter)?;
    let program = Arc::new(forthwith_models::build(&file)?);
    if program.output() != Output::Logits {
        return Err(Failure::bad_input(
            "`bench engine` measures models that generate; this one answers with vectors",
        ));
    }
    let config = config(args, &compute, &program)?;
    reporter.note(&format!("{}: {compute}", path.display()));
    let cpu = Cpu::load(Arc::clone(&program), &file, &config, &|_, _| ());
    drop(file);
    let mut crowd = Crowd::new(cpu.map_err(Failure::failed)?, config.context);
    let mut matrices = program.weights.iter().filter(|weight| weight.rows > 1);
    let mut bench = Bench {
        args,
        floats: matrices.all(|weight| weight.format.info().affine.is_none()),
        work: Work::new(&program, compute.kv_format),
        meter: RoofMeter::new(compute.isa, compute.threads).map_err(Failure::failed)?,
        roofs: Vec::new(),
    };
    let report = bench.report(&mut crowd)?;
    print(&report, args.json).map_err(|error| Failure::output(&error))
}

/// Sizes the executor for the longest measurement, or says why it cannot be.
fn config(
    args: &BenchEngineArgs,
    compute: &Compute,
    program: &Program,
) -> Result<CpuConfig, Failure> {
    let largest = |values: &[usize]| values.iter().copied().max().unwrap_or(1);
    let (prompt, depth) = (largest(&args.prefill), largest(&args.depth));
    let answer = depth.max(1) + args.decode;
    let (longest, what) = if prompt > answer {
        (prompt, format!("--prefill {prompt}"))
    } else {
        let decode = args.decode;
        (answer, format!("--depth {depth} with --decode {decode}"))
    };
    if longest > program.context.get() {
        return Err(Failure::bad_input(format_args!(
            "{what} needs a context of {longest} tokens, the model was trained for {}: give less",
            program.context
        )));
    }
    let rows = largest(&args.batch);
    let blocks = longest.div_ceil(BLOCK_SIZE.get()) * rows;
    let step_tokens = Tokens::new(STEP_TOKENS.max(rows));
    let context = Tokens::new(longest);
    let kv = kv_block_bytes(program, compute.kv_format).get() * blocks as u64;
    let workspace = workspace_bytes(program, step_tokens, context, compute.threads);
    let needed = weight_bytes(program) + workspace + Bytes::new(kv + RoofMeter::BYTES as u64);
    let free = available_memory()?;
    if needed > free {
        return Err(Failure::bad_input(format_args!(
            "--batch {rows} of {longest} tokens each needs {needed} of memory, {free} are free: give \
             a smaller --batch, --depth or --prefill"
        )));
    }
    Ok(CpuConfig {
        threads: compute.threads,
        isa: compute.isa,
        kv_format: compute.kv_format,
        kv_blocks: Blocks::new(blocks),
        max_step_tokens: step_tokens,
        context,
    })
}

struct Bench<'a> {
    args: &'a BenchEngineArgs,
    work: Work,
    /// Whether all weights are floats.
    floats: bool,
    meter: RoofMeter,
    /// Every sample of the roof.
    roofs: Vec<Roof>,
}

/// A rate, and its share of the roof of the moment it was measured in.
struct Rate {
    per_second: f64,
    share_of_roof: f64,
}

impl Bench<'_> {
    fn report(&mut self, crowd: &mut Crowd) -> Result<Report, Failure> {
        let args = self.args;
        crowd.prefill(args.prefill[0].min(STEP_TOKENS))?;
        let mut phases = Vec::new();
        let mut prefill = Vec::new();
        for &tokens in &args.prefill {
            prefill.push(self.prefill(crowd, tokens)?);
        }
        let mut decode = Vec::new();
        for &depth in &args.depth {
            for &batch in &args.batch {
                decode.push(self.decode(crowd, batch, depth)?);
            }
        }
        crowd.cpu.begin_profile();
        crowd.prefill(args.prefill[0])?;
        let times = crowd.cpu.end_profile();
        self.add_phases(&mut phases, "prefill", &times, 1, (1, 0, args.prefill[0]));
        let (batch, depth) = (args.batch[0], args.depth[0].max(1));
        crowd.fill(batch, depth)?;
        crowd.cpu.begin_profile();
        crowd.decode(batch, depth, args.decode)?;
        let times = crowd.cpu.end_profile();
        let middle = depth + args.decode / 2;
        self.add_phases(
            &mut phases,
            "decode",
            &times,
            args.decode,
            (batch, middle, 1),
        );
        let roof = Roof::median(&self.roofs);
        Ok(Report {
            prefill,
            decode,
            roof: RoofRates {
                read_gb_s: roof.read_gb_s,
                int8_gop_s: roof.int8_gop_s,
                f32_gop_s: roof.f32_gop_s,
            },
            phases,
        })
    }

    /// The medians of `amount` (in 10⁹) each time, and of its shares of the roof just before.
    fn rate(
        &mut self,
        amount: f64,
        roof: impl Fn(&Roof) -> f64,
        mut once: impl FnMut() -> Result<Duration, Failure>,
    ) -> Result<Rate, Failure> {
        let (mut rates, mut shares) = (Vec::new(), Vec::new());
        for _ in 0..self.args.repeat {
            let sample = self.meter.sample().map_err(Failure::failed)?;
            let rate = amount / once()?.as_secs_f64().max(f64::MIN_POSITIVE);
            rates.push(rate);
            shares.push(rate / roof(&sample));
            self.roofs.push(sample);
        }
        let middle = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Ok(Rate {
            per_second: middle(&mut rates),
            share_of_roof: middle(&mut shares),
        })
    }

    fn prefill(&mut self, crowd: &mut Crowd, tokens: usize) -> Result<Prefill, Failure> {
        let operations: u64 = self.work.of((1, 0, tokens)).iter().map(|work| work.1).sum();
        let (amount, floats) = (work::number(operations) / 1e9, self.floats);
        let products = |roof: &Roof| {
            if floats {
                roof.f32_gop_s
            } else {
                roof.int8_gop_s
            }
        };
        let rate = self.rate(amount, products, || crowd.prefill(tokens))?;
        Ok(Prefill {
            tokens,
            tok_s: work::number(tokens as u64) * rate.per_second / amount,
            gop_s: rate.per_second,
            share_of_roof: rate.share_of_roof,
        })
    }

    fn decode(&mut self, crowd: &mut Crowd, batch: usize, depth: usize) -> Result<Decode, Failure> {
        let (steps, start) = (self.args.decode, depth.max(1));
        crowd.fill(batch, start)?;
        let middle = (batch, start + steps / 2, 1);
        let bytes: u64 = self.work.of(middle).iter().map(|work| work.0).sum();
        let amount = work::number(bytes * steps as u64) / 1e9;
        let read = |roof: &Roof| roof.read_gb_s;
        let rate = self.rate(amount, read, || crowd.decode(batch, start, steps))?;
        Ok(Decode {
            batch,
            depth,
            tok_s: work::number((batch * steps) as u64) * rate.per_second / amount,
            gb_s: rate.per_second,
            share_of_roof: rate.share_of_roof,
        })
    }

    fn add_phases(
        &self,
        phases: &mut Vec<PhaseRate>,
        what: &str,
        times: &[Duration; PHASE_NAMES.len()],
        steps: usize,
        rows: (usize, usize, usize),
    ) {
        let work = self.work.of(rows);
        for ((name, time), (bytes, ops)) in PHASE_NAMES.iter().zip(times).zip(work) {
            if time.is_zero() {
                continue;
            }
            phases.push(PhaseRate {
                name: format!("{what}.{name}"),
                ms: time.as_secs_f64() * 1e3 / work::number(steps as u64),
                bytes,
                ops,
            });
        }
    }
}

fn print(report: &Report, json: bool) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    if json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
        return out.flush();
    }
    let RoofRates {
        read_gb_s,
        int8_gop_s,
        f32_gop_s,
    } = report.roof;
    writeln!(
        out,
        "roof      {read_gb_s:.1} GB/s read, {int8_gop_s:.0} GOP/s of bytes, {f32_gop_s:.0} GOP/s of floats"
    )?;
    for row in &report.prefill {
        let share = 100.0 * row.share_of_roof;
        let Prefill {
            tokens,
            tok_s,
            gop_s,
            ..
        } = row;
        writeln!(
            out,
            "prefill   {tokens:>6} tokens                  {tok_s:>8.1} tok/s  {gop_s:>7.1} GOP/s  {share:>5.1} % of the roof"
        )?;
    }
    for row in &report.decode {
        let share = 100.0 * row.share_of_roof;
        let Decode {
            batch,
            depth,
            tok_s,
            gb_s,
            ..
        } = row;
        writeln!(
            out,
            "decode    {batch:>6} together, depth {depth:>7}  {tok_s:>8.1} tok/s  {gb_s:>7.1} GB/s   {share:>5.1} % of the roof"
        )?;
    }
    for PhaseRate {
        name,
        ms,
        bytes,
        ops,
    } in &report.phases
    {
        let (megabytes, operations) = (work::number(*bytes) / 1e6, work::number(*ops) / 1e6);
        writeln!(
            out,
            "phase     {name:<18} {ms:>9.3} ms  {megabytes:>9.2} MB  {operations:>10.1} Mop"
        )?;
    }
    out.flush()
}
