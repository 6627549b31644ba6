//! The `run` subcommand.

use crate::args::{RunArgs, SharedArgs};
use crate::error::Failure;

/// Runs the subcommand.
pub(crate) fn run(_args: &RunArgs, _shared: &SharedArgs) -> Result<(), Failure> {
    Err(Failure::failed("`run` is not built in yet"))
}
