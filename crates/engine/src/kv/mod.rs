//! Which cache block belongs to whom. The blocks' contents live in the backend.

mod idle;
mod pool;
mod prefix;
mod table;
mod texts;

pub(crate) use pool::{BlockPool, Published};
pub(crate) use prefix::{Content, Known};
pub use prefix::{PrefixCacheConfig, PrefixKey, ReuseStop};
pub(crate) use table::BlockTable;
pub(crate) use texts::{BlockHash, Foreseen, Preview};
