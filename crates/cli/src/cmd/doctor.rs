//! `forthwith doctor`: everything about a model that can be checked, with the source of each decision.

mod checks;

use crate::args::{DoctorArgs, SharedArgs};
use crate::error::Failure;
use crate::load;
use crate::printable::line;
use crate::progress::Reporter;
use crate::select::Compute;
use checks::Subject;
use forthwith_core::program::Output;
use forthwith_hub::Located;
use forthwith_models::Overrides;
use std::io::{self, Write as _};

/// One thing that was looked at.
struct Finding {
    what: &'static str,
    outcome: Outcome,
}

enum Outcome {
    /// As it should be; what was found.
    Fine(Vec<String>),
    /// Nothing to judge; what there is.
    Told(Vec<String>),
    /// Not looked at, and why.
    Skipped(String),
    /// Wrong.
    Wrong(String),
}

/// Looks at a model and prints what was found; fails if anything is wrong.
pub(crate) fn run(args: &DoctorArgs, shared: &SharedArgs) -> Result<(), Failure> {
    let reporter = Reporter::new();
    let path = match shared.hub().locate(&args.model, &reporter)? {
        Located::File { path, .. } => path,
        Located::Toy => {
            return Err(Failure::bad_input(
                "the toy has no file to look at: name a model's file or folder",
            ));
        }
    };
    let compute = Compute::new(&args.compute);
    let file = load::open(&path, Overrides::default(), &compute, &reporter)?;
    let program = std::sync::Arc::new(forthwith_models::build(&file)?);
    let tokenizer = load::tokenizer(&file, &program)?;
    let compute = match program.output() {
        Output::Vectors { whole: true, .. } => compute.of_whole_texts(),
        _ => compute,
    };
    let subject = Subject {
        file: &file,
        program,
        tokenizer: &tokenizer,
        compute,
    };
    let findings = subject.findings();
    print(&findings).map_err(|error| Failure::output(&error))?;
    let wrong = findings
        .iter()
        .filter(|finding| matches!(finding.outcome, Outcome::Wrong(_)));
    match wrong.count() {
        0 => Ok(()),
        count => Err(Failure::failed(format_args!(
            "{count} checks found something wrong"
        ))),
    }
}

fn print(findings: &[Finding]) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for Finding { what, outcome } in findings {
        let (mark, lines) = match outcome {
            Outcome::Fine(lines) => ("ok", lines.clone()),
            Outcome::Told(lines) => ("", lines.clone()),
            Outcome::Skipped(why) => ("skipped", vec![why.clone()]),
            Outcome::Wrong(why) => ("WRONG", vec![why.clone()]),
        };
        for (index, text) in lines.iter().enumerate() {
            let (what, mark) = if index == 0 { (*what, mark) } else { ("", "") };
            writeln!(out, "{what:12} {mark:7} {}", line(text))?;
        }
    }
    out.flush()
}
