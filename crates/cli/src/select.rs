//! Which hardware runs a model, with how many threads and how much memory, and where each choice
//! came from.

use crate::args::{ComputeArgs, Quantize};
use crate::error::Failure;
use forthwith_core::format::Format;
use forthwith_core::units::Bytes;
use forthwith_cpu::{IsaChoice, KvFormat, usable_cpus};
use std::fmt;

/// How a model is computed; everything is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compute {
    pub(crate) threads: usize,
    pub(crate) isa: IsaChoice,
    pub(crate) kv_format: KvFormat,
    kv_given: bool,
    /// What float weights are put into.
    pub(crate) quantize: Option<Format>,
    /// How many threads were asked for, if any were.
    threads_asked: Option<usize>,
    isa_given: bool,
}

impl Compute {
    /// Decides what the arguments leave open. There are never more threads than CPUs: all of them meet
    /// some hundred times a token, and those without a CPU would be waited for.
    pub(crate) fn new(args: &ComputeArgs) -> Self {
        let usable = usable_cpus();
        Self {
            threads: args.threads.map_or(usable, |asked| asked.min(usable)),
            isa: args.isa.unwrap_or_else(IsaChoice::best),
            kv_format: args.kv_format.unwrap_or_default(),
            kv_given: args.kv_format.is_some(),
            quantize: args.quantize.map(|format| match format {
                Quantize::Q8_0 => Format::Q8_0,
                Quantize::Q4_0 => Format::Q4_0,
                Quantize::Q4_1 => Format::Q4_1,
                Quantize::Q4K => Format::Q4_K,
            }),
            threads_asked: args.threads,
            isa_given: args.isa.is_some(),
        }
    }
}

impl Compute {
    /// The same for a model that computes whole texts: keys and values live for one step, so they
    /// need not be small.
    pub(crate) fn of_whole_texts(mut self) -> Self {
        if !self.kv_given {
            self.kv_format = KvFormat::F32;
        }
        self
    }

    /// What a user should know about the choices.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let threads = self.threads;
        let asked = self.threads_asked.filter(|&asked| asked > threads);
        let crowded = asked.map(|asked| {
            format!(
                "{threads} threads compute, not the {asked} that were asked for: this process may use \
                 as many CPUs, and more threads would wait for one another"
            )
        });
        let unverified = self.isa.unverified().map(|what| {
            let name = self.isa.name();
            format!(
                "instruction set {name} {what}; answers should equal those of `--isa scalar` bit \
                 for bit: please report it if they do not"
            )
        });
        crowded.into_iter().chain(unverified).collect()
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = |given| if given { "given" } else { "detected" };
        let (isa, isa_source) = (self.isa.name(), source(self.isa_given));
        write!(f, "cpu {isa} ({isa_source}), {} threads (", self.threads)?;
        match self.threads_asked {
            Some(asked) if asked > self.threads => write!(f, "{asked} given")?,
            asked => f.write_str(source(asked.is_some()))?,
        }
        write!(f, "), KV cache in {}", self.kv_format)
    }
}

/// The memory that this process may still take: what the machine has free, or less where a
/// control group allows less.
pub(crate) fn available_memory() -> Result<Bytes, Failure> {
    let mut system = sysinfo::System::new().map_err(|error| {
        Failure::failed(format_args!("cannot tell how much memory is free: {error}"))
    })?;
    system.refresh_memory();
    let machine = system.available_memory();
    let group = system
        .cgroup_limits()
        .map_or(u64::MAX, |limits| limits.free_memory);
    Ok(Bytes::new(machine.min(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_runs_tests_has_memory() {
        let memory = available_memory().unwrap();
        assert!(
            memory > Bytes::new(64 << 20) && memory < Bytes::new(1 << 50),
            "{memory}"
        );
    }

    #[test]
    fn choices_say_where_they_came_from() {
        let compute = |threads| {
            Compute::new(&ComputeArgs {
                threads: Some(threads),
                isa: None,
                kv_format: None,
                quantize: None,
            })
        };
        let text = compute(1).to_string();
        assert!(
            text.contains("(detected)") && text.contains("1 threads (given)"),
            "{text}"
        );
        assert!(compute(1).warnings().is_empty());
        let (usable, many) = (usable_cpus(), compute(5000));
        let text = many.to_string();
        assert!(
            text.contains(&format!("{usable} threads (5000 given)")),
            "{text}"
        );
        assert!(many.warnings()[0].contains("not the 5000 that were asked for"));
    }
}
