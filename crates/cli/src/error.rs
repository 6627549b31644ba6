//! How a command ends when it does not end well: one clear line and an exit code.

use crate::printable;
use forthwith_core::request::RequestError;
use forthwith_engine::budget::BudgetError;
use forthwith_hub::HubError;
use forthwith_models::{FolderError, LoadError};
use forthwith_text::{TemplateError, TokenizeError, TokenizerError};
use forthwith_weights::OpenError;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;

/// Why a command ends early. Exit codes: 1 it failed, 2 the input or a file is bad.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The input was fine; something else was not.
    pub(crate) fn failed(message: impl Display) -> Self {
        Self {
            code: FAILED,
            message: message.to_string(),
        }
    }

    /// An argument, a prompt or a file is wrong.
    pub(crate) fn bad_input(message: impl Display) -> Self {
        Self {
            code: BAD_INPUT,
            message: message.to_string(),
        }
    }

    /// Standard output cannot be written. A reader that has seen enough is no failure.
    pub(crate) fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self {
                code: 0,
                message: String::new(),
            },
            _ => Self::failed(format_args!("cannot write to standard output: {error}")),
        }
    }

    /// Prints the message as one line on standard error and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            let words: Vec<&str> = self.message.split_whitespace().collect();
            let line = printable::line(&words.join(" "));
            printable::say(format_args!("error: {line}"));
        }
        ExitCode::from(self.code)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

macro_rules! bad_input {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::bad_input(error)
            }
        })*
    };
}

bad_input!(
    OpenError,
    LoadError,
    TokenizerError,
    TokenizeError,
    TemplateError,
    RequestError,
    FolderError
);

impl From<BudgetError> for Failure {
    fn from(error: BudgetError) -> Self {
        match error {
            BudgetError::TooSmall { .. } => Self::bad_input(error),
            _ => Self::failed(error),
        }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        if error.is_bad_input() {
            Self::bad_input(error)
        } else {
            Self::failed(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_ends_quietly() {
        let closed = Failure::output(&io::ErrorKind::BrokenPipe.into());
        assert_eq!((closed.code, closed.message.as_str()), (0, ""));
        assert_eq!(Failure::output(&io::ErrorKind::StorageFull.into()).code, 1);
    }

    #[test]
    fn hub_errors_keep_blame_apart() {
        let hub = forthwith_hub::Hub::new("/nowhere".into(), true);
        let code = |name| Failure::from(hub.locate(name, &forthwith_hub::Silent).unwrap_err()).code;
        assert_eq!(code("no-such-model"), BAD_INPUT);
        assert_eq!(code("/no/such/file.gguf"), BAD_INPUT);
        assert_eq!(code("smollm2"), FAILED);
    }
}
