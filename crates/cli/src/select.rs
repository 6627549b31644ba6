//! Which hardware runs a model, with how many threads and how much memory, and where each choice
//! came from.

use crate::args::ComputeArgs;
use crate::error::Failure;
use forthwith_core::units::Bytes;
use forthwith_cpu::{IsaChoice, KvFormat, usable_cpus};
use std::fmt;

/// How a model is computed; everything is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compute {
    pub(crate) threads: usize,
    pub(crate) isa: IsaChoice,
    pub(crate) kv_format: KvFormat,
    threads_given: bool,
    isa_given: bool,
}

impl Compute {
    /// Decides what the arguments leave open.
    pub(crate) fn new(args: &ComputeArgs) -> Self {
        Self {
            threads: args.threads.unwrap_or_else(usable_cpus),
            isa: args.isa.unwrap_or_else(IsaChoice::best),
            kv_format: args.kv_format,
            threads_given: args.threads.is_some(),
            isa_given: args.isa.is_some(),
        }
    }
}

impl Compute {
    /// What a user should know about the choices.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let usable = usable_cpus();
        let crowded = (self.threads > usable).then(|| {
            format!(
                "{} threads share the {usable} CPUs that this process may use: threads wait for \
                 one another, {usable} or fewer are faster",
                self.threads
            )
        });
        crowded.into_iter().collect()
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = |given| if given { "given" } else { "detected" };
        write!(
            f,
            "cpu {} ({}), {} threads ({}), KV cache in {}",
            self.isa.name(),
            source(self.isa_given),
            self.threads,
            source(self.threads_given),
            self.kv_format
        )
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
        let args = ComputeArgs {
            threads: Some(3),
            isa: None,
            kv_format: KvFormat::F16,
        };
        let text = Compute::new(&args).to_string();
        assert!(
            text.contains("(detected)") && text.contains("3 threads (given)"),
            "{text}"
        );
    }
}
