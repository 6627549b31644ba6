//! What an answer depends on besides its request.

/// Where these, the request and its seed are equal, the answer is equal byte for byte: whatever else
/// runs, with any number of threads, on any instruction set, from a cold cache or a warm one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The build's version.
    pub version: String,
    /// Which weights, tokenizer and template the model's file holds: a digest of it, or a name.
    pub weights: String,
    /// How keys and values are stored.
    pub kv_format: String,
    /// A digest of the chat template, if it is another than the file's own.
    pub template: Option<String>,
    /// Whose sampling holds where a request says nothing, if it is not the file's own.
    pub sampling: Option<String>,
}

impl Identity {
    /// All of it in one word. The context counts as well: an answer without `max_tokens` may fill it.
    pub(crate) fn fingerprint(&self, context: usize) -> String {
        let Self {
            version,
            weights,
            kv_format,
            template,
            sampling,
        } = self;
        let mut all = format!("forthwith-{version}-{weights}-{kv_format}-{context}");
        for part in [template, sampling].into_iter().flatten() {
            all.push('-');
            all.push_str(part);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_changes_the_fingerprint() {
        let base = Identity {
            version: "1.2.3".to_owned(),
            weights: "sha256:0123456789abcdef".to_owned(),
            kv_format: "f16".to_owned(),
            template: None,
            sampling: None,
        };
        assert_eq!(
            base.fingerprint(8192),
            "forthwith-1.2.3-sha256:0123456789abcdef-f16-8192"
        );
        let other = || "other".to_owned();
        let changed = [
            Identity {
                version: other(),
                ..base.clone()
            },
            Identity {
                weights: other(),
                ..base.clone()
            },
            Identity {
                kv_format: other(),
                ..base.clone()
            },
            Identity {
                template: Some(other()),
                ..base.clone()
            },
            Identity {
                sampling: Some("openai".to_owned()),
                ..base.clone()
            },
        ];
        let mut all: Vec<String> = changed.iter().map(|one| one.fingerprint(8192)).collect();
        all.extend([base.fingerprint(8192), base.fingerprint(4096)]);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 7);
    }
}
