//! Who may ask a server, and by which name.

use forthwith_server::Origin;
use std::path::PathBuf;

/// Keys and names.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// File of API keys, a label and a key on each line; without it everybody may ask
    #[arg(long, value_name = "FILE", env = "FORTHWITH_API_KEY_FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Name under which clients address the server, besides this machine's own; repeat for several
    #[arg(
        long,
        value_name = "NAME",
        env = "FORTHWITH_ALLOWED_HOST",
        value_delimiter = ','
    )]
    pub(crate) allowed_host: Vec<String>,
    /// Origin of pages that may ask from a browser: scheme, name and port; repeat for several
    #[arg(
        long,
        value_name = "ORIGIN",
        env = "FORTHWITH_ALLOWED_ORIGIN",
        value_delimiter = ','
    )]
    pub(crate) allowed_origin: Vec<Origin>,
}
