//! One file per subcommand.

pub(crate) mod bench;
pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod list;
pub(crate) mod pull;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod texts;
