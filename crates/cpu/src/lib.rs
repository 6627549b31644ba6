//! The CPU backend: reference and SIMD executors.
