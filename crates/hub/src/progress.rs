//! How a long fetch tells what it does.

/// Receives progress. Calls come in order: `begin`, any number of `advance`, `end`; `note` any time.
pub trait Progress: Sync {
    /// Something long starts; `total` bytes where known.
    fn begin(&self, what: &str, total: Option<u64>);
    /// So many more bytes are done.
    fn advance(&self, bytes: u64);
    /// It is over, well or not.
    fn end(&self);
    /// A line for the user.
    fn note(&self, line: &str);
}

/// Tells nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _what: &str, _total: Option<u64>) {}
    fn advance(&self, _bytes: u64) {}
    fn end(&self) {}
    fn note(&self, _line: &str) {}
}
