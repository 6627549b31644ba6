//! Untrusted model files to typed views.
