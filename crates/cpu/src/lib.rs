//! The CPU backend: a reference executor and a SIMD executor of the same programs.

mod affinity;
mod isa;
mod kv;
mod memory;
mod quant;
mod team;
pub use affinity::usable_cpus;
pub use isa::{IsaChoice, UnknownIsa};
pub use kv::{BLOCK_SIZE, kv_block_bytes};
pub use memory::OutOfMemory;
