//! Where a model folder keeps its chat template.

use std::path::Path;

use serde_json::Value;

use super::{MAX_SOURCE, TemplateError};
use crate::tokenizer::from_folder::{read, read_json};

const FILE: &str = "chat_template.jinja";
const CONFIG: &str = "tokenizer_config.json";

/// The template's source, if the folder has one.
pub(super) fn source(folder: &Path) -> Result<Option<String>, TemplateError> {
    let broken = |problem: String| TemplateError::Broken(problem);
    let file = read(&folder.join(FILE), FILE, MAX_SOURCE as u64);
    if let Some(bytes) = file.map_err(|error| broken(error.to_string()))? {
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| broken(format!("{FILE}: not UTF-8")))?;
        return Ok(Some(text));
    }
    let config = read_json(folder, CONFIG).map_err(|error| broken(error.to_string()))?;
    match config
        .as_ref()
        .and_then(|config| config.get("chat_template"))
    {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(source.clone())),
        Some(Value::Array(named)) => {
            let is_default = |entry: &&Value| entry.get("name") == Some(&"default".into());
            let entry = named.iter().find(is_default);
            let source = entry.and_then(|entry| entry.get("template"));
            let source = source.and_then(Value::as_str).ok_or_else(|| {
                broken(format!("{CONFIG}: chat_template: none is named `default`"))
            })?;
            Ok(Some(source.to_owned()))
        }
        Some(_) => Err(broken(format!(
            "{CONFIG}: chat_template: must be a text or a list of named texts"
        ))),
    }
}
