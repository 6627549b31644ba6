//! `forthwith pull`: fetch now, run later.

use crate::args::{PullArgs, SharedArgs};
use crate::error::Failure;
use crate::progress::Reporter;
use forthwith_hub::{HubError, Located, Progress as _};
use std::io::{self, Write as _};

/// Fetches each model and prints its path.
pub(crate) fn run(args: &PullArgs, shared: &SharedArgs) -> Result<(), Failure> {
    let hub = shared.hub();
    let progress = Reporter::new();
    for name in &args.models {
        if args.verify {
            match hub.verify(name) {
                Ok(Some(_)) => progress.note(&format!("{name}: SHA-256 is right")),
                Err(error @ HubError::Damaged { .. }) => progress.note(&error.to_string()),
                Ok(None) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match hub.locate(name, &progress)? {
            Located::Toy => progress.note("toy is built in"),
            Located::File { path, source, .. } => {
                progress.note(&format!("{name} is ready, from {source}"));
                writeln!(io::stdout().lock(), "{}", path.display())
                    .map_err(|error| Failure::output(&error))?;
            }
        }
    }
    Ok(())
}
