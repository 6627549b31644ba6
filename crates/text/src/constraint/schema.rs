//! From a form to the grammar that the library compiles. What the library would pass over in a schema
//! is refused here by name, so that no answer is looser than what was asked for.

use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::form::{Form, FormError};
use super::limits::{FormLimits, MAX_CHOICES, MAX_DEPTH, MAX_TEXT, depth};

/// White space between the parts of JSON: without a bound a model may go on with it for ever.
const WHITESPACE: &str = r"[ ]|\r?\n[ \t]{0,64}";

/// Keywords that hold schemas by name.
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that hold a list of schemas.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords that hold a schema.
const SCHEMAS: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
/// Other keywords that are followed.
const FOLLOWED: [&str; 18] = [
    "$ref",
    "const",
    "enum",
    "type",
    "minItems",
    "maxItems",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
/// Keywords that describe and do not restrict.
const ANNOTATIONS: [&str; 16] = [
    "$anchor",
    "$comment",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "example",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// The grammar of a form.
pub(super) fn grammar_of(form: &Form, limits: FormLimits) -> Result<TopLevelGrammar, FormError> {
    match form {
        Form::JsonObject => of_schema(&json!({ "type": "object" }), limits),
        Form::JsonSchema(schema) => of_schema(schema, limits),
        Form::Regex(regex) => of_regex(regex),
        Form::Choice(texts) => of_choice(texts),
        Form::Lark(text) => of_lark(text),
        Form::Gbnf(text) => {
            check_text(text)?;
            let lark = super::gbnf::to_lark(text).map_err(FormError::Wrong)?;
            Ok(TopLevelGrammar::from_lark(lark))
        }
    }
}

fn of_schema(schema: &Value, limits: FormLimits) -> Result<TopLevelGrammar, FormError> {
    checked_schema(schema, limits).map(TopLevelGrammar::from_json_schema)
}

/// A schema as the library is to read it, if it is followed to the letter.
pub(crate) fn checked_schema(schema: &Value, limits: FormLimits) -> Result<Value, FormError> {
    let length = serde_json::to_string(schema).map_or(usize::MAX, |text| text.len());
    let (bytes, levels) = (limits.schema_bytes, limits.schema_depth);
    if length > bytes {
        return Err(FormError::TooLarge(format!(
            "the schema has {length} bytes, allowed are {bytes}"
        )));
    }
    if nests_deeper(schema, levels) {
        return Err(FormError::TooLarge(format!(
            "the schema nests deeper than {levels} objects and lists; define its parts in $defs and refer to them"
        )));
    }
    check(schema, &mut Vec::new(), check_draft(schema)?)?;
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return Err(FormError::wrong("the schema `false` allows nothing")),
        schema => schema.clone(),
    };
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITESPACE.to_owned()),
        ..JsonCompileOptions::default()
    };
    options.apply_to(&mut schema);
    Ok(schema)
}

fn nests_deeper(value: &Value, levels: usize) -> bool {
    let inner = |mut values: Box<dyn Iterator<Item = &Value> + '_>| {
        levels == 0 || values.any(|value| nests_deeper(value, levels - 1))
    };
    match value {
        Value::Array(list) => inner(Box::new(list.iter())),
        Value::Object(map) => inner(Box::new(map.values())),
        _ => false,
    }
}

/// Whether the schema's draft knows `prefixItems`.
fn check_draft(schema: &Value) -> Result<bool, FormError> {
    let Some(draft) = schema.get("$schema") else {
        return Ok(true);
    };
    let draft = draft.as_str().unwrap_or_default().trim_end_matches('#');
    let known = [
        ("http://json-schema.org/draft-06/schema", false),
        ("http://json-schema.org/draft-07/schema", false),
        ("https://json-schema.org/draft/2019-09/schema", false),
        ("https://json-schema.org/draft/2020-12/schema", true),
    ];
    let found = known.iter().find(|(name, _)| *name == draft);
    found.map(|&(_, prefix)| prefix).ok_or_else(|| {
        FormError::wrong(
            "the schema's $schema is not a draft that is known here: 2020-12, 2019-09, draft-07 and draft-06",
        )
    })
}

/// Refuses what would not be followed, by name and place.
fn check(schema: &Value, path: &mut Vec<String>, prefix_items: bool) -> Result<(), FormError> {
    let at = |path: &[String]| format!("#/{}", path.join("/"));
    let fields = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(fields) => fields,
        _ => {
            let what = format!(
                "the schema at {} is neither an object nor true or false",
                at(path)
            );
            return Err(FormError::Wrong(what));
        }
    };
    for (key, value) in fields {
        let name = key.as_str();
        let below = |path: &mut Vec<String>, inner: Option<&str>, schema: &Value| {
            let length = path.len();
            path.push(name.to_owned());
            path.extend(inner.map(str::to_owned));
            check(schema, path, prefix_items)?;
            path.truncate(length);
            Ok(())
        };
        let is_root = path.is_empty();
        match (name, value) {
            ("$schema", _) if !is_root => {
                let what = format!("$schema at {} is for the root alone; remove it", at(path));
                return Err(FormError::Wrong(what));
            }
            ("prefixItems", _) if !prefix_items => {
                let what =
                    "prefixItems is not known in the draft that $schema names; remove $schema";
                return Err(FormError::wrong(what));
            }
            (name, Value::Object(inner)) if MAPS.contains(&name) => {
                for (field, schema) in inner {
                    below(path, Some(field), schema)?;
                }
            }
            (name, Value::Array(inner)) if LISTS.contains(&name) || name == "items" => {
                for (index, schema) in inner.iter().enumerate() {
                    below(path, Some(&index.to_string()), schema)?;
                }
            }
            (name, value) if SCHEMAS.contains(&name) => below(path, None, value)?,
            (name, _) if MAPS.contains(&name) || LISTS.contains(&name) => {
                let what = format!("{name} at {} is of the wrong type", at(path));
                return Err(FormError::Wrong(what));
            }
            (name, _) if FOLLOWED.contains(&name) || ANNOTATIONS.contains(&name) => {}
            (name, _) if name.starts_with("x-") && name != "x-guidance" => {}
            (name, _) => {
                let name: String = name.chars().take(60).collect();
                return Err(FormError::Wrong(format!(
                    "the schema's keyword `{name}` at {} is not supported; remove it",
                    at(path)
                )));
            }
        }
    }
    Ok(())
}

fn of_regex(regex: &str) -> Result<TopLevelGrammar, FormError> {
    check_text(regex)?;
    // An answer is matched as a whole, so that these say nothing.
    let bare = regex.strip_prefix('^').unwrap_or(regex);
    let backslashes = |text: &str| text.bytes().rev().take_while(|&byte| byte == b'\\').count();
    let bare = match bare.strip_suffix('$') {
        Some(rest) if backslashes(rest) % 2 == 0 => rest,
        _ => bare,
    };
    Ok(TopLevelGrammar::from_regex(bare))
}

fn of_choice(texts: &[String]) -> Result<TopLevelGrammar, FormError> {
    if texts.is_empty() || texts.len() > MAX_CHOICES {
        return Err(FormError::wrong(format!(
            "{} texts to choose from, allowed are 1 to {MAX_CHOICES}",
            texts.len()
        )));
    }
    if texts.iter().any(String::is_empty) {
        return Err(FormError::wrong(
            "a text to choose from is empty; remove it",
        ));
    }
    let length: usize = texts.iter().map(String::len).sum();
    if length > MAX_TEXT {
        return Err(FormError::TooLarge(format!(
            "the texts to choose from have {length} bytes, allowed are {MAX_TEXT}"
        )));
    }
    let escaped: Vec<String> = texts.iter().map(|text| regex::escape(text)).collect();
    Ok(TopLevelGrammar::from_regex(&format!(
        "({})",
        escaped.join("|")
    )))
}

fn of_lark(text: &str) -> Result<TopLevelGrammar, FormError> {
    check_text(text)?;
    for (attribute, remedy) in [
        ("temperature", "send the request's temperature"),
        ("stop", "use `suffix`, or the request's stop"),
        ("stop_capture", "use `suffix`, or the request's stop"),
    ] {
        let written = text.match_indices(attribute).any(|(at, _)| {
            let before = text[..at].trim_end();
            let after = text[at + attribute.len()..].trim_start();
            before.ends_with(['[', ',']) && after.starts_with('=')
        });
        if written {
            return Err(FormError::wrong(format!(
                "the grammar's attribute `{attribute}` is not supported; {remedy}"
            )));
        }
    }
    Ok(TopLevelGrammar::from_lark(text.to_owned()))
}

fn check_text(text: &str) -> Result<(), FormError> {
    if text.trim().is_empty() {
        return Err(FormError::wrong("it is empty"));
    }
    if text.len() > MAX_TEXT {
        return Err(FormError::TooLarge(format!(
            "it has {} bytes, allowed are {MAX_TEXT}",
            text.len()
        )));
    }
    if depth(text) > MAX_DEPTH {
        return Err(FormError::TooLarge(format!(
            "its brackets nest deeper than {MAX_DEPTH}"
        )));
    }
    Ok(())
}
