//! `modules.json`: the steps from text to vector that sentence-transformers lists.

use super::{Module, malformed};
use crate::error::OpenError;
use crate::json::{self, Keys};
use serde_json::Value;
use std::path::Path;

const LIST: &str = "modules.json";
const MAX_MODULES: usize = 16;

/// Reads the list and the configuration of each module; nothing if there is no list.
pub(super) fn read(folder: &Path) -> Result<Vec<Module>, OpenError> {
    let path = folder.join(LIST);
    let Some(json) = json::parse(&path)? else {
        return Ok(Vec::new());
    };
    let Value::Array(entries) = json else {
        return Err(malformed(&path, "JSON", "not a list"));
    };
    if entries.len() > MAX_MODULES {
        let problem = format!("{} modules, allowed are {MAX_MODULES}", entries.len());
        return Err(malformed(&path, "JSON", problem));
    }
    entries.iter().map(|entry| module(folder, entry)).collect()
}

fn module(folder: &Path, entry: &Value) -> Result<Module, OpenError> {
    let list = folder.join(LIST);
    let text = |key: &str| match entry.get(key) {
        Some(Value::String(text)) => Ok(text.as_str()),
        _ => Err(malformed(&list, key, "must be a text in each module")),
    };
    let (kind, name) = (text("type")?, text("path")?);
    let plain = !name.contains(['/', '\\', '\0']) && !name.starts_with('.');
    if !plain {
        return Err(malformed(
            &list,
            "path",
            "not the name of a folder in this one",
        ));
    }
    let (path, config) = if name.is_empty() {
        (String::new(), Keys::default())
    } else {
        let config = json::read(&folder.join(name).join("config.json"))?;
        (format!("{name}/"), config.unwrap_or_default())
    };
    Ok(Module {
        kind: kind.rsplit('.').next().unwrap_or_default().to_owned(),
        path,
        config,
    })
}
