//! Model files to programs: one file per architecture.
