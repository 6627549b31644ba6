//! The rotary embedding of `config.json`: `rope_parameters`, or `rope_theta` and `rope_scaling`.

use super::Translation;
use crate::error::LoadFault;
use forthwith_core::metadata::{Value, require};

/// Keys of a rotary embedding and what they are called in GGUF files, or in files of ours.
const KEYS: &[(&str, &str)] = &[
    ("factor", "rope.scaling.factor"),
    (
        "original_max_position_embeddings",
        "rope.scaling.original_context_length",
    ),
    ("beta_fast", "rope.scaling.yarn_beta_fast"),
    ("beta_slow", "rope.scaling.yarn_beta_slow"),
    ("low_freq_factor", "rope.scaling.low_freq_factor"),
    ("high_freq_factor", "rope.scaling.high_freq_factor"),
    ("short_factor", "rope.scaling.short_factor"),
    ("long_factor", "rope.scaling.long_factor"),
    ("attention_factor", "rope.scaling.attention_factor"),
];

impl Translation<'_> {
    /// Writes the keys of the rotary embedding of all layers. Families with several read theirs
    /// with [`Translation::rope_of`].
    pub(super) fn rope(&mut self) -> Result<(), LoadFault> {
        self.rename("rope_theta", "rope.freq_base");
        for of in ["rope_scaling", "rope_parameters"] {
            self.rope_of(of)?;
        }
        let share = match self.float("partial_rotary_factor")? {
            Some(share) => Some(share),
            None => self.float("rope_parameters.partial_rotary_factor")?,
        };
        if let Some(share) = share {
            self.rotated(share)?;
        }
        if let Some(original) = self.size("original_max_position_embeddings")? {
            let original = Value::Unsigned(original as u64);
            self.set("rope.scaling.original_context_length", original);
        }
        Ok(())
    }

    /// Writes what one object of `config.json` says of a rotary embedding.
    pub(crate) fn rope_of(&mut self, of: &str) -> Result<(), LoadFault> {
        self.rename(&format!("{of}.rope_theta"), "rope.freq_base");
        let kind = match self.text(&format!("{of}.rope_type"))? {
            Some(kind) => Some(kind),
            None => self.text(&format!("{of}.type"))?,
        };
        let Some(kind) = kind else {
            return Ok(());
        };
        let kind = if kind == "default" { "none" } else { kind };
        // Models of before the method had a name.
        let kind = if kind == "su" { "longrope" } else { kind };
        self.set("rope.scaling.type", Value::Text(kind.into()));
        if kind != "none" {
            for (key, part) in KEYS {
                self.rename(&format!("{of}.{key}"), part);
            }
        }
        Ok(())
    }

    /// Writes how many elements of a head rotate.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "heads are small, and the share was checked"
    )]
    pub(crate) fn rotated(&mut self, share: f64) -> Result<(), LoadFault> {
        if !(share > 0.0 && share <= 1.0) {
            let problem = format!("{share}, must be above 0 and at most 1");
            return Err(LoadFault::value("partial_rotary_factor", problem));
        }
        let stated = self.written("attention.key_length")?;
        let head_dim = if stated.is_some() {
            stated
        } else {
            let hidden = self.written("embedding_length")?;
            let heads = self.written("attention.head_count")?;
            hidden
                .zip(heads)
                .and_then(|(hidden, heads)| hidden.checked_div(heads))
        };
        let head_dim = require("hidden_size", head_dim)?;
        let rotated = (share * head_dim as f64) as u64;
        self.set("rope.dimension_count", Value::Unsigned(rotated));
        Ok(())
    }
}
