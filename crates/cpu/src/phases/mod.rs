//! The parts that phases are made of: each file holds the plain reference and the kernel.

pub(crate) mod attention;
pub(crate) mod gate;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod route;
pub(crate) mod softcap;
