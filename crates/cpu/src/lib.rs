//! The CPU backend: a reference executor and a SIMD executor of the same programs.
#![allow(
    clippy::cast_ptr_alignment,
    reason = "every load and store of a vector is unaligned"
)]
#![allow(
    clippy::inline_always,
    reason = "kernels compile with the features of whoever runs them"
)]

mod affinity;
pub mod bench;
mod executor;
mod isa;
mod kv;
mod memory;
mod phases;
mod quant;
mod reference;
mod roof;
mod rows;
mod team;
pub use affinity::usable_cpus;
pub use executor::{
    Cpu, CpuConfig, Expansion, LoadError, PHASE_NAMES, expansions, phase_kind, weight_bytes,
    workspace_bytes,
};
pub use isa::{IsaChoice, UnknownIsa};
pub use kv::{BLOCK_SIZE, KvFormat, UnknownKvFormat, kv_block_bytes};
pub use memory::OutOfMemory;
pub use reference::{Arithmetic, Reference};
pub use roof::{Roof, RoofError, RoofMeter};
