//! Long work on standard error: bars on a terminal, plain lines elsewhere.

use crate::printable::say;
use forthwith_core::units::Bytes;
use forthwith_hub::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};

/// Shows what a fetch or a load does.
#[derive(Debug)]
pub(crate) struct Reporter {
    terminal: bool,
    bar: Mutex<Option<ProgressBar>>,
}

impl Reporter {
    /// Bars if standard error is a terminal.
    pub(crate) fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            bar: Mutex::new(None),
        }
    }

    fn with_bar(&self, act: impl FnOnce(&mut Option<ProgressBar>)) {
        act(&mut self.bar.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Progress for Reporter {
    fn begin(&self, what: &str, total: Option<u64>) {
        let what = crate::printable::line(what);
        if !self.terminal {
            let size = total.map_or_else(String::new, |bytes| format!(" ({})", Bytes::new(bytes)));
            return say(format_args!("{what}{size}"));
        }
        let bar = match total {
            Some(total) => ProgressBar::new(total).with_style(style(
                "{msg}  {wide_bar}  {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}",
            )),
            None => ProgressBar::new_spinner().with_style(style("{msg}  {spinner}  {binary_bytes}")),
        };
        self.with_bar(|slot| *slot = Some(bar.with_message(what)));
    }

    fn advance(&self, bytes: u64) {
        self.with_bar(|slot| {
            if let Some(bar) = slot {
                bar.inc(bytes);
            }
        });
    }

    fn end(&self) {
        self.with_bar(|slot| {
            if let Some(bar) = slot.take() {
                bar.finish_and_clear();
            }
        });
    }

    fn note(&self, line: &str) {
        let line = crate::printable::line(line);
        self.with_bar(|slot| match slot {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        });
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant")
}
