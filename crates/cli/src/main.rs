//! The forthwith binary.
fn main() {}
