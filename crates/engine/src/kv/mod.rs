//! Which cache block belongs to whom. The blocks' contents live in the backend.

mod pool;
mod table;

pub(crate) use pool::BlockPool;
pub(crate) use table::BlockTable;
