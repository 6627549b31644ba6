//! The shared vocabulary of forthwith. Every other crate speaks it; it speaks to none.
//!
//! Ten words: a **token** is an entry of the vocabulary ([`units::TokenId`]); a **block** is a run
//! of cache positions ([`units::BlockId`]); a **sequence** is one answer in the making
//! ([`units::SeqId`]); a **segment** is the part of it that rides in one step
//! ([`executor::Segment`]); a **step** is one pass over the weights ([`executor::StepInput`]); a
//! **program** is the pass as data ([`program::Program`]), made of **phases**
//! ([`program::Phase`]); an **executor** runs it ([`executor::Executor`]); a **format** is how
//! weights are stored ([`format::Format`]); a **request** is what a user asks for
//! ([`request::GenerationRequest`]).
//!
//! ```
//! use forthwith_core::units::{Blocks, Bytes, Tokens};
//!
//! let needed = Tokens::new(100).blocks_needed(Tokens::new(32));
//! assert_eq!(needed, Blocks::new(4));
//! assert_eq!((needed * Bytes::new(1 << 20)).to_string(), "4.0 MiB");
//! ```
#![forbid(unsafe_code)]

pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod constraint;
pub mod executor;
pub mod format;
pub mod metadata;
pub mod program;
pub mod request;
pub mod rows;
pub mod shape;
pub mod units;
