//! Forms that answers must have: JSON, JSON of a schema, a regular expression, one of some texts, or a
//! grammar.
//!
//! `llguidance` follows them. A form is compiled once, on the thread that asks, within a budget of size,
//! fuel and time ([`limits`]); every answer gets a copy of its own, so that none can use up another's
//! budget.

mod cache;
mod compiler;
mod follow;
mod form;
mod gbnf;
mod limits;
mod marker;
mod parts;
mod schema;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use compiler::FormCompiler;
pub use form::{Form, FormError};
pub use limits::FormLimits;
pub(crate) use schema::checked_schema;
