//! Which files of a repository make a model.
//!
//! One GGUF file with its further parts, or what a model folder holds: configuration, tokenizer and
//! safetensors. Nothing else is ever fetched; in particular nothing that is pickled or is code.

use crate::resolve::{check_component, check_file};

const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
/// The files of a model folder that lie beside its weights, of which any may be missing but the first.
const FOLDER_FILES: [&str; 8] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "modules.json",
    "sentence_bert_config.json",
    INDEX,
];
const WEIGHTS: &str = "model.safetensors";
/// As many parts as a model may have.
const MAX_PARTS: usize = 1024;

/// The files of one model, small ones first: that a model is complete is seen by its last file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// A GGUF file and its further parts.
    File(Vec<String>),
    /// A model's folder.
    Folder(Vec<String>),
}

impl Selection {
    /// Takes from the names of a repository's files those of the wanted model.
    ///
    /// # Errors     there is no such model, or there are several and the name does not say which
    pub(crate) fn of(names: &[String], wanted: Option<&str>) -> Result<Self, String> {
        if let Some(file) = wanted {
            return Ok(Self::file(file));
        }
        if let Some(file) = choose(names)? {
            return Ok(Self::file(file));
        }
        if names.iter().any(|name| name == CONFIG) {
            return Self::folder(names);
        }
        Err("the repository has neither a .gguf file nor a config.json".to_owned())
    }

    /// A file of that name; of a model in parts all of them.
    pub(crate) fn file(name: &str) -> Self {
        let Some((stem, count)) = first_of_parts(name) else {
            return Self::File(vec![name.to_owned()]);
        };
        let parts = (1..=count).map(|part| format!("{stem}-{part:05}-of-{count:05}.gguf"));
        Self::File(parts.collect())
    }

    fn folder(names: &[String]) -> Result<Self, String> {
        let sorted = |wanted: &dyn Fn(&str) -> bool| {
            let wanted = names.iter().filter(|name| wanted(name));
            let mut wanted: Vec<String> = wanted.cloned().collect();
            wanted.sort();
            wanted
        };
        let has = |name: &str| names.iter().any(|found| found == name);
        let beside = FOLDER_FILES.iter().filter(|name| has(name));
        let mut files: Vec<String> = beside.map(|&name| name.to_owned()).collect();
        files.extend(sorted(&is_module));
        let shards = if has(INDEX) {
            sorted(&is_shard)
        } else {
            sorted(&|name| name == WEIGHTS)
        };
        if shards.is_empty() {
            return Err(
                "the repository has neither a .gguf file nor model.safetensors; other forms of weights \
                 (pickles, code) are not read"
                    .to_owned(),
            );
        }
        if shards.len() > MAX_PARTS {
            return Err(format!(
                "{} files of weights, allowed are {MAX_PARTS}",
                shards.len()
            ));
        }
        files.extend(shards);
        Ok(Self::Folder(files))
    }

    /// All files.
    pub(crate) fn files(&self) -> &[String] {
        match self {
            Self::File(files) | Self::Folder(files) => files,
        }
    }
}

/// A module's files of a sentence-transformers model, such as `1_Pooling/config.json`.
fn is_module(name: &str) -> bool {
    let Some((folder, file)) = name.split_once('/') else {
        return false;
    };
    let number = folder.split('_').next().unwrap_or_default();
    let numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    numbered && check_component(folder).is_ok() && [CONFIG, WEIGHTS].contains(&file)
}

/// A part of the weights, such as `model-00001-of-00002.safetensors`.
fn is_shard(name: &str) -> bool {
    let middle = name.strip_prefix("model-");
    let middle = middle.and_then(|rest| rest.strip_suffix(".safetensors"));
    let numbers = middle.and_then(|middle| middle.split_once("-of-"));
    let is_number = |text: &str| {
        (1..=6).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    numbers.is_some_and(|(part, count)| is_number(part) && is_number(count))
}

/// Of `stem-00001-of-0000N.gguf` the stem and N.
fn first_of_parts(name: &str) -> Option<(&str, usize)> {
    let (stem, count) = name.strip_suffix(".gguf")?.rsplit_once("-00001-of-")?;
    let is_count = count.len() == 5 && count.bytes().all(|byte| byte.is_ascii_digit());
    let count: usize = count.parse().ok().filter(|_| is_count)?;
    (2..=MAX_PARTS).contains(&count).then_some((stem, count))
}

/// A further part of a model whose first part has another name.
fn is_further_part(name: &str) -> bool {
    let numbers = name
        .strip_suffix(".gguf")
        .and_then(|name| name.rsplit_once("-of-"));
    let part = numbers.and_then(|(stem, _)| stem.rsplit_once('-'));
    part.is_some_and(|(_, part)| {
        part.len() == 5 && part != "00001" && part.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The one GGUF model of a repository, or its `Q4_K_M` one where there are several.
fn choose(names: &[String]) -> Result<Option<&str>, String> {
    let is_model = |name: &&str| {
        check_file(name).is_ok() && !name.contains("mmproj") && !is_further_part(name)
    };
    let mut files: Vec<&str> = names.iter().map(String::as_str).filter(is_model).collect();
    files.sort_unstable();
    let is_usual = |name: &&str| name.to_ascii_lowercase().contains("q4_k_m");
    let usual: Vec<&str> = files.iter().copied().filter(is_usual).collect();
    match (files.as_slice(), usual.as_slice()) {
        ([], _) => Ok(None),
        ([file], _) | (_, [file]) => Ok(Some(file)),
        (files, _) => {
            let list = files[..files.len().min(12)].join(", ");
            Err(format!(
                "say which file, as hf:owner/repo:file; some of its files: {list}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(names: &[&str]) -> Result<Selection, String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        Selection::of(&names, None)
    }

    fn file(names: &[&str]) -> Selection {
        Selection::File(names.iter().map(|&name| name.to_owned()).collect())
    }

    fn folder(names: &[&str]) -> Selection {
        Selection::Folder(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn chooses_the_only_or_the_usual_file() {
        assert_eq!(selected(&["README.md", "a.gguf"]), Ok(file(&["a.gguf"])));
        assert_eq!(
            selected(&["m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-m.gguf"]),
            Ok(file(&["m-Q4_K_M.gguf"]))
        );
        let error = selected(&["m-Q8_0.gguf", "m-Q4_0.gguf"]).unwrap_err();
        assert!(error.contains("m-Q4_0.gguf, m-Q8_0.gguf"), "{error}");
        for nothing in [&["../../x.gguf"][..], &[]] {
            let error = selected(nothing).unwrap_err();
            assert!(error.contains("neither a .gguf file"), "{error}");
        }
    }

    #[test]
    fn a_model_in_parts_is_one_model() {
        let parts = [
            "m-00001-of-00003.gguf",
            "m-00002-of-00003.gguf",
            "m-00003-of-00003.gguf",
        ];
        assert_eq!(selected(&parts), Ok(file(&parts)));
        assert_eq!(Selection::file(parts[0]), file(&parts));
        for single in [
            "m-00001-of-00001.gguf",
            "m-00001-of-99999.gguf",
            "m-1-of-3.gguf",
            "m-00002-of-00003.gguf",
        ] {
            assert_eq!(Selection::file(single), file(&[single]));
        }
    }

    #[test]
    fn a_folder_is_its_configuration_tokenizer_and_weights() {
        assert_eq!(
            selected(&[
                ".gitattributes",
                "1_Pooling/config.json",
                "2_Dense/config.json",
                "2_Dense/model.safetensors",
                "2_Dense/pytorch_model.bin",
                "README.md",
                "config.json",
                "model.safetensors",
                "modeling_own.py",
                "modules.json",
                "onnx/config.json",
                "onnx/model.onnx",
                "pytorch_model.bin",
                "tokenizer.json",
            ]),
            Ok(folder(&[
                "config.json",
                "tokenizer.json",
                "modules.json",
                "1_Pooling/config.json",
                "2_Dense/config.json",
                "2_Dense/model.safetensors",
                "model.safetensors",
            ]))
        );
        assert_eq!(
            selected(&[
                "config.json",
                "consolidated.safetensors",
                "model-00002-of-00002.safetensors",
                "model-00001-of-00002.safetensors",
                "model-00001-of-00002.safetensors.bak",
                "model-../../x-of-1.safetensors",
                "model.safetensors.index.json",
                "1_../config.json",
            ]),
            Ok(folder(&[
                "config.json",
                "model.safetensors.index.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
            ]))
        );
        let error = selected(&["config.json", "pytorch_model.bin"]).unwrap_err();
        assert!(error.contains("pickles"), "{error}");
    }
}
