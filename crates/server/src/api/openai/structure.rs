//! The form that an answer must have, under all the names that clients know for it.
//!
//! `response_format` is OpenAI's, `structured_outputs` and `guided_*` are vLLM's, `grammar` and
//! `json_schema` llama.cpp's, `regex`, `ebnf` and `json_schema` as text `SGLang`'s.

use axum::http::StatusCode;
use forthwith_text::{Form, FormError};
use serde::Deserialize;
use serde_json::Value;

use super::options::Options;
use crate::error::ApiError;
use crate::loader::ServedModel;

/// What a client wrote.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct WrittenForm {
    response_format: Option<ResponseFormat>,
    structured_outputs: Option<Structured>,
    guided_json: Option<Value>,
    guided_regex: Option<String>,
    guided_choice: Option<Vec<String>>,
    guided_grammar: Option<String>,
    grammar: Option<String>,
    json_schema: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    ebnf: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResponseFormat {
    r#type: String,
    json_schema: Option<NamedSchema>,
    /// llama.cpp's place for the schema.
    schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedSchema {
    /// Labels, which cannot change an answer.
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Answers follow the schema either way.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
    schema: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Structured {
    json: Option<Value>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    json_object: Option<bool>,
}

/// A form and the field that asked for it.
type Named = (&'static str, Form);

impl WrittenForm {
    /// Holds answers to the form that was asked for, if one was.
    pub(crate) fn hold(self, options: &mut Options, model: &ServedModel) -> Result<(), ApiError> {
        let Some((field, form)) = self.form()? else {
            return Ok(());
        };
        if options.stop.ignore_end {
            let message = format!("ignore_eos goes on where {field} ends; send one of them");
            return Err(ApiError::field("ignore_eos", message));
        }
        let compiled = model.forms.compile(&form);
        options.constraint = Some(compiled.map_err(|error| refusal(field, &error))?);
        Ok(())
    }

    /// The one form that was asked for.
    fn form(self) -> Result<Option<Named>, ApiError> {
        let outputs = self.structured_outputs.unwrap_or_default();
        let formats = self.response_format.map(ResponseFormat::form).transpose()?;
        let json = |field, schema: Option<Value>| schema.map(|schema| of_schema(field, schema));
        let named = |field, form: Option<Form>| form.map(|form| Ok((field, form)));
        let texts = |text: Option<String>| text.filter(|text| !text.is_empty());
        let all = [
            formats.flatten().map(Ok),
            json("structured_outputs.json", outputs.json),
            named("structured_outputs.regex", outputs.regex.map(Form::Regex)),
            named(
                "structured_outputs.choice",
                outputs.choice.map(Form::Choice),
            ),
            named(
                "structured_outputs.grammar",
                outputs.grammar.map(of_grammar),
            ),
            named(
                "structured_outputs.json_object",
                outputs
                    .json_object
                    .and_then(|wanted| wanted.then_some(Form::JsonObject)),
            ),
            json("guided_json", self.guided_json),
            named("guided_regex", self.guided_regex.map(Form::Regex)),
            named("guided_choice", self.guided_choice.map(Form::Choice)),
            named("guided_grammar", self.guided_grammar.map(of_grammar)),
            named("grammar", texts(self.grammar).map(of_grammar)),
            json("json_schema", self.json_schema),
            named("regex", self.regex.map(Form::Regex)),
            named("choice", self.choice.map(Form::Choice)),
            named("ebnf", self.ebnf.map(Form::Gbnf)),
        ];
        let mut asked = all.into_iter().flatten();
        let Some(first) = asked.next().transpose()? else {
            return Ok(None);
        };
        if let Some(second) = asked.next().transpose()? {
            let (one, other) = (first.0, second.0);
            let message = format!("{one} and {other} both ask for a form; send one of them");
            return Err(ApiError::field(other, message));
        }
        Ok(Some(first))
    }
}

impl ResponseFormat {
    fn form(self) -> Result<Option<Named>, ApiError> {
        const FIELD: &str = "response_format";
        match (self.r#type.as_str(), self.json_schema, self.schema) {
            ("text", None, None) => Ok(None),
            ("json_object", None, None) => Ok(Some((FIELD, Form::JsonObject))),
            ("json_object" | "json_schema", None, Some(schema)) => {
                Ok(Some((FIELD, Form::JsonSchema(schema))))
            }
            ("json_schema", Some(named), None) => {
                let schema = named.schema.ok_or_else(|| {
                    let message = "response_format.json_schema has no schema; add it";
                    ApiError::field("response_format.json_schema.schema", message)
                })?;
                Ok(Some((FIELD, Form::JsonSchema(schema))))
            }
            ("json_schema", None, None) => {
                let message = "response_format of type json_schema needs json_schema; add it";
                Err(ApiError::field("response_format.json_schema", message))
            }
            ("text" | "json_object" | "json_schema", ..) => {
                let message = "response_format has a schema too many for its type; remove it";
                Err(ApiError::field(FIELD, message))
            }
            (other, ..) => {
                let other: String = other.chars().take(40).collect();
                let message = format!(
                    "response_format.type is `{other}`, allowed are text, json_object and json_schema"
                );
                Err(ApiError::field("response_format.type", message))
            }
        }
    }
}

/// A schema, or the text of one.
fn of_schema(field: &'static str, schema: Value) -> Result<Named, ApiError> {
    let schema = match schema {
        Value::String(text) => serde_json::from_str(&text).map_err(|error| {
            ApiError::field(
                field,
                format!("{field} is not the text of a schema: {error}"),
            )
        })?,
        schema => schema,
    };
    Ok((field, Form::JsonSchema(schema)))
}

/// GBNF defines rules by `::=`, which no Lark grammar has outside of quotes.
fn of_grammar(text: String) -> Form {
    let defines = |line: &str| {
        let name = line.split("::=").next().unwrap_or_default().trim();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        line.contains("::=") && !name.is_empty() && name.chars().all(is_word)
    };
    if text.lines().any(defines) {
        Form::Gbnf(text)
    } else {
        Form::Lark(text)
    }
}

pub(super) fn refusal(field: &'static str, error: &FormError) -> ApiError {
    let message = format!("{field}: {error}");
    match error {
        FormError::Busy => ApiError::unavailable("forms_busy", &message),
        FormError::TooLarge(_) => ApiError::field(field, message).coded("form_too_large"),
        FormError::Vocabulary(_) => ApiError::new(StatusCode::BAD_REQUEST, message)
            .about(field)
            .coded("unsupported_parameter"),
        _ => ApiError::field(field, message).coded("invalid_form"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form(body: Value) -> Result<Option<Named>, ApiError> {
        serde_json::from_value::<WrittenForm>(body).unwrap().form()
    }

    fn asked(body: Value) -> Form {
        form(body).unwrap().unwrap().1
    }

    #[test]
    fn every_name_leads_to_its_form() {
        let schema = json!({ "type": "object" });
        let text = schema.to_string();
        for body in [
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a", "strict": true, "schema": schema } } }),
            json!({ "response_format": { "type": "json_schema", "schema": schema } }),
            json!({ "response_format": { "type": "json_object", "schema": schema } }),
            json!({ "structured_outputs": { "json": schema } }),
            json!({ "structured_outputs": { "json": text } }),
            json!({ "guided_json": schema }),
            json!({ "json_schema": schema }),
            json!({ "json_schema": text }),
        ] {
            assert_eq!(asked(body), Form::JsonSchema(schema.clone()));
        }
        for body in [
            json!({ "response_format": { "type": "json_object" } }),
            json!({ "structured_outputs": { "json_object": true } }),
        ] {
            assert_eq!(asked(body), Form::JsonObject);
        }
        for name in ["regex", "guided_regex"] {
            assert_eq!(asked(json!({ name: "a+" })), Form::Regex("a+".to_owned()));
        }
        for name in ["choice", "guided_choice"] {
            assert_eq!(
                asked(json!({ name: ["a"] })),
                Form::Choice(vec!["a".to_owned()])
            );
        }
        let gbnf = "# a\nroot ::= \"a\"";
        let lark = "start: \"a::=\"";
        for name in ["grammar", "guided_grammar"] {
            assert_eq!(asked(json!({ name: gbnf })), Form::Gbnf(gbnf.to_owned()));
            assert_eq!(asked(json!({ name: lark })), Form::Lark(lark.to_owned()));
        }
        assert_eq!(asked(json!({ "ebnf": gbnf })), Form::Gbnf(gbnf.to_owned()));
    }

    #[test]
    fn nothing_is_asked_for_by_default_or_by_text() {
        for body in [
            json!({}),
            json!({ "grammar": "", "response_format": null }),
            json!({ "response_format": { "type": "text" }, "structured_outputs": {} }),
            json!({ "structured_outputs": { "json_object": false } }),
        ] {
            assert_eq!(form(body), Ok(None));
        }
    }

    #[test]
    fn two_forms_or_half_of_one_are_refused() {
        for (body, field) in [
            (json!({ "regex": "a", "choice": ["a"] }), "choice"),
            (json!({ "guided_json": "{", }), "guided_json"),
            (
                json!({ "response_format": { "type": "xml" } }),
                "response_format.type",
            ),
            (
                json!({ "response_format": { "type": "json_schema" } }),
                "response_format.json_schema",
            ),
            (
                json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a" } } }),
                "response_format.json_schema.schema",
            ),
            (
                json!({ "response_format": { "type": "text", "schema": {} } }),
                "response_format",
            ),
        ] {
            let error = form(body).unwrap_err();
            assert_eq!(error.json()["error"]["param"], field);
        }
    }
}
