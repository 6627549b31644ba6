//! The forthwith binary: arguments in, one command run, an exit code out.
#![forbid(unsafe_code)]
// `eprintln!` panics when nobody reads; `printable::say` does not.
#![warn(clippy::print_stderr)]

mod args;
mod cmd;
mod duration;
mod error;
mod load;
mod pages;
mod printable;
mod progress;
mod round_trip;
mod schedule;
mod select;
mod self_check;
mod size;
mod stopwatch;

use args::{Args, Command};
use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Args { shared, command } = Args::parse();
    let done = match &command {
        Command::Run(args) => cmd::run::run(args, &shared),
        Command::Serve(args) => cmd::serve::run(args, &shared),
        Command::Embed(args) => cmd::texts::embed(args, &shared),
        Command::Rerank(args) => cmd::texts::rerank(args, &shared),
        Command::Classify(args) => cmd::texts::classify(args, &shared),
        Command::Pull(args) => cmd::pull::run(args, &shared),
        Command::List(_) => cmd::list::run(&shared),
        Command::Inspect(args) => cmd::inspect::run(args, &shared),
        Command::Doctor(args) => cmd::doctor::run(args, &shared),
        Command::Bench(args) => cmd::bench::run(args, &shared),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
