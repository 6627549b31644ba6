//! `forthwith inspect`: what a model is made of, without running it.

mod report;
mod text;
mod toy;

use crate::args::{InspectArgs, SharedArgs};
use crate::error::Failure;
use crate::progress::Reporter;
use forthwith_hub::Located;
use report::Report;
use serde::Serialize;
use std::io::{self, Write};

/// Prints the report. What cannot be understood is reported last, as bad input.
pub(crate) fn run(args: &InspectArgs, shared: &SharedArgs) -> Result<(), Failure> {
    match shared.hub().locate(&args.model, &Reporter::new())? {
        Located::Toy => {
            let counts = toy::Counts::embedded();
            print(&counts, args.json, |out| counts.write(out))
        }
        Located::File { path, .. } => {
            let file = forthwith_models::open(&path)?;
            let report = Report::of(&file);
            print(&report, args.json, |out| text::write(&report, out))?;
            report
                .problems
                .first()
                .map_or(Ok(()), |problem| Err(Failure::bad_input(problem)))
        }
    }
}

fn print(
    report: &impl Serialize,
    json: bool,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let written = if json {
        serde_json::to_writer_pretty(&mut out, report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        write(&mut out)
    };
    written
        .and_then(|()| out.flush())
        .map_err(|error| Failure::output(&error))
}
