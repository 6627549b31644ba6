//! Times every kernel on one thread and holds it against what the core gives at best.
//!
//! `cargo bench -p forthwith-cpu -- product/q4_0` runs the cases whose names hold that text;
//! docs/benchmarks/README.md explains the columns.

use forthwith_core::clock::{Clock, SystemClock};
use forthwith_cpu::bench::{Plan, Unit, Work, cycles_per_second, plans};
use forthwith_cpu::{IsaChoice, Roof};
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

const USAGE: &str = "usage: cargo bench -p forthwith-cpu -- [FILTER...] [--json] [--list] \
                     [--isa NAME] [--time-ms N]
a case runs where its name holds one of the filters; all run without any";

struct Options {
    filters: Vec<String>,
    json: bool,
    list: bool,
    isa: IsaChoice,
    /// How long each case is repeated.
    time: Duration,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            filters: Vec::new(),
            json: false,
            list: false,
            isa: IsaChoice::best(),
            time: Duration::from_millis(200),
        };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(USAGE);
            match argument.as_str() {
                // Cargo says so to every benchmark.
                "--bench" => {}
                "--json" => options.json = true,
                "--list" => options.list = true,
                "--isa" => options.isa = IsaChoice::named(&value()?)?,
                "--time-ms" => options.time = Duration::from_millis(value()?.parse()?),
                other if other.starts_with('-') => return Err(USAGE.into()),
                _ => options.filters.push(argument),
            }
        }
        Ok(options)
    }

    fn wants(&self, plan: &Plan) -> bool {
        let mut filters = self.filters.iter();
        self.filters.is_empty() || filters.any(|filter| plan.name.contains(filter))
    }
}

/// A measured case.
struct Row {
    name: String,
    seconds: f64,
    work: Work,
}

impl Row {
    fn gb_s(&self) -> f64 {
        self.work.bytes / self.seconds / 1e9
    }

    fn gop_s(&self) -> f64 {
        2.0 * self.work.multiply_adds / self.seconds / 1e9
    }

    fn per_cycle(&self, clock: Option<f64>) -> Option<f64> {
        Some(self.work.multiply_adds / self.seconds / clock?)
    }

    /// The larger of its share of the memory's rate and its share of the arithmetic's.
    fn share(&self, roof: &Roof) -> f64 {
        let arithmetic = match self.work.unit {
            Unit::Bytes => roof.int8_gop_s,
            Unit::Floats => roof.f32_gop_s,
        };
        f64::max(self.gb_s() / roof.read_gb_s, self.gop_s() / arithmetic)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            writeln!(io::stderr(), "{error}")?;
            std::process::exit(2);
        }
    };
    let mut out = io::stdout().lock();
    let plans: Vec<Plan> = plans()
        .into_iter()
        .filter(|plan| options.wants(plan))
        .collect();
    if options.list {
        for plan in &plans {
            writeln!(out, "{}", plan.name)?;
        }
        return Ok(());
    }
    let roof = Roof::measure(options.isa, 1)?;
    let clock = cycles_per_second();
    head(&mut out, &options, &roof, clock)?;
    for (index, plan) in plans.iter().enumerate() {
        let row = measure(plan, &options)?;
        if options.json {
            let comma = if index == 0 { "" } else { "," };
            write!(out, "{comma}\n{}", json(&row, &roof, clock))?;
        } else {
            writeln!(out, "{}", line(&row, &roof, clock))?;
        }
        out.flush()?;
    }
    if options.json {
        writeln!(out, "\n]}}")?;
    }
    Ok(())
}

/// The median of the runs that fit into the time, at least three.
fn measure(plan: &Plan, options: &Options) -> Result<Row, Box<dyn Error>> {
    let mut case = plan.build(options.isa)?;
    case.run();
    // Short kernels are run many times between two looks at the clock.
    let clock = SystemClock::start();
    case.run();
    let once = clock.now().as_nanos().max(1);
    let batch = u32::try_from((20_000 / once).max(1))?;
    let (start, mut times) = (clock.now(), Vec::new());
    while times.len() < 3 || clock.now().saturating_sub(start) < options.time {
        let began = clock.now();
        for _ in 0..batch {
            case.run();
        }
        times.push(clock.now().saturating_sub(began));
    }
    times.sort();
    Ok(Row {
        name: plan.name.clone(),
        seconds: times[times.len() / 2].as_secs_f64() / f64::from(batch),
        work: case.work,
    })
}

fn head(
    out: &mut impl io::Write,
    options: &Options,
    roof: &Roof,
    clock: Option<f64>,
) -> io::Result<()> {
    let Roof {
        read_gb_s,
        int8_gop_s,
        f32_gop_s,
    } = roof;
    let isa = options.isa.name();
    if options.json {
        let clock = clock.map_or("null".to_owned(), |clock| format!("{:.3}", clock / 1e9));
        return write!(
            out,
            "{{\"isa\":\"{isa}\",\"clock_ghz\":{clock},\"roof\":{{\"read_gb_s\":{read_gb_s:.2},\
             \"int8_gop_s\":{int8_gop_s:.1},\"f32_gop_s\":{f32_gop_s:.1}}},\"kernels\":["
        );
    }
    let clock = clock.map_or("clock unknown".to_owned(), |clock| {
        format!("{:.2} GHz", clock / 1e9)
    });
    writeln!(
        out,
        "one thread, {isa}, {clock}; roof {read_gb_s:.1} GB/s read, {int8_gop_s:.0} GOP/s of bytes, \
         {f32_gop_s:.0} GOP/s of floats\n{:<28} {:>12} {:>8} {:>8} {:>10} {:>8}",
        "kernel", "median us", "GB/s", "GOP/s", "MA/cycle", "roof %"
    )
}

fn line(row: &Row, roof: &Roof, clock: Option<f64>) -> String {
    let mut line = format!(
        "{:<28} {:>12.2} {:>8.1} {:>8.1}",
        row.name,
        1e6 * row.seconds,
        row.gb_s(),
        row.gop_s()
    );
    let share = 100.0 * row.share(roof);
    let written = match row.per_cycle(clock) {
        Some(rate) => write!(line, " {rate:>10.2} {share:>8.1}"),
        None => write!(line, " {:>10} {share:>8.1}", "-"),
    };
    written.expect("a string takes everything");
    line
}

fn json(row: &Row, roof: &Roof, clock: Option<f64>) -> String {
    let per_cycle = row.per_cycle(clock);
    let per_cycle = per_cycle.map_or("null".to_owned(), |rate| format!("{rate:.3}"));
    format!(
        "{{\"name\":\"{}\",\"median_us\":{:.3},\"gb_s\":{:.3},\"gop_s\":{:.3},\
         \"multiply_adds_per_cycle\":{per_cycle},\"share_of_roof\":{:.4}}}",
        row.name,
        1e6 * row.seconds,
        row.gb_s(),
        row.gop_s(),
        row.share(roof)
    )
}
