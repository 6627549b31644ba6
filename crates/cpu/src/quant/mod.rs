//! Matrices as the CPU stores them, and products of them with rows of activations.

pub(crate) mod activations;
mod codes;
mod dense;
pub(crate) mod kernels;
mod layout;
pub(crate) mod matrix;
mod packed;

pub(crate) use activations::{Activations, ActivationsView};
pub(crate) use dense::FEW_TILES;
pub(crate) use matrix::{LANES, Matrix, panel_bytes};
