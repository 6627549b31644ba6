//! The `serve` subcommand.

use crate::args::{ServeArgs, SharedArgs};
use crate::error::Failure;

/// Runs the subcommand.
pub(crate) fn run(_args: &ServeArgs, _shared: &SharedArgs) -> Result<(), Failure> {
    Err(Failure::failed("`serve` is not built in yet"))
}
