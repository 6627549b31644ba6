//! Grammars in llama.cpp's GBNF as Lark.

pub(super) fn to_lark(_: &str) -> Result<String, super::form::FormError> {
    Err(super::form::FormError::wrong("not yet"))
}
