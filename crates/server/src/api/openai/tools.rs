//! Tools on the wire: what a request declares, whether it wants calls, and how calls are told.

use forthwith_text::{ToolFormat, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::options::Options;
use crate::error::ApiError;
use crate::limits::RequestLimits;
use crate::loader::ServedModel;

/// The longest name.
const MAX_NAME: usize = 64;

/// What a client wrote.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct WrittenTools {
    tools: Option<Vec<WrittenTool>>,
    tool_choice: Option<WrittenChoice>,
    parallel_tool_calls: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenTool {
    r#type: String,
    function: WrittenFunction,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFunction {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    /// Arguments follow their schema either way.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "`none`, `auto`, `required`, or an object that names a function"
)]
enum WrittenChoice {
    Word(String),
    Named(NamedChoice),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedChoice {
    r#type: String,
    function: FunctionName,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionName {
    name: String,
}

/// The tools that an answer may call.
#[derive(Clone, Debug)]
pub(crate) struct ToolUse {
    pub(crate) format: ToolFormat,
    tools: Vec<ToolSpec>,
    must: bool,
    several: bool,
}

/// A call as an answer tells it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CallTold {
    id: String,
    r#type: &'static str,
    function: FunctionTold,
}

#[derive(Clone, Debug, Serialize)]
struct FunctionTold {
    name: String,
    arguments: String,
}

/// A piece of a call in a stream.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Clone, Debug, Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// The tools that a list declares.
pub(crate) fn declared(tools: &[WrittenTool], most: usize) -> Result<Vec<ToolSpec>, ApiError> {
    if tools.len() > most {
        let message = format!("{} tools, allowed are {most}", tools.len());
        return Err(ApiError::field("tools", message));
    }
    let mut specs: Vec<ToolSpec> = Vec::with_capacity(tools.len());
    for (index, tool) in tools.iter().enumerate() {
        let spec = tool.declared().map_err(|(field, problem)| {
            ApiError::field(format!("tools[{index}].{field}"), problem)
        })?;
        if specs.iter().any(|before| before.name == spec.name) {
            let message = format!("two tools are named `{}`; rename one", spec.name);
            return Err(ApiError::field(
                format!("tools[{index}].function.name"),
                message,
            ));
        }
        specs.push(spec);
    }
    Ok(specs)
}

impl WrittenTool {
    fn declared(&self) -> Result<ToolSpec, (&'static str, String)> {
        if self.r#type != "function" {
            let kind: String = self.r#type.chars().take(40).collect();
            let problem = format!("a tool of type `{kind}` is not known; allowed is function");
            return Err(("type", problem));
        }
        let function = &self.function;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let name = &function.name;
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_plain) {
            let problem = format!(
                "a tool's name has 1 to {MAX_NAME} letters, digits, `_`, `-` and `.`, and nothing else"
            );
            return Err(("function.name", problem));
        }
        let parameters = match &function.parameters {
            None | Some(Value::Null) => ToolSpec::no_parameters(),
            Some(Value::Object(schema)) if schema.is_empty() => ToolSpec::no_parameters(),
            Some(schema) if schema.get("type") == Some(&json!("object")) => schema.clone(),
            Some(_) => {
                let problem = "the schema of arguments is one of an object; send `type: object`";
                return Err(("function.parameters", problem.to_owned()));
            }
        };
        let mut shown = serde_json::Map::new();
        shown.insert("name".to_owned(), json!(name));
        if let Some(description) = &function.description {
            shown.insert("description".to_owned(), json!(description));
        }
        shown.insert("parameters".to_owned(), parameters.clone());
        Ok(ToolSpec {
            name: name.clone(),
            parameters,
            declaration: json!({ "type": "function", "function": shown }),
        })
    }
}

impl WrittenTools {
    /// The calls that are wanted or allowed, if any are.
    pub(crate) fn understood(
        self,
        model: &ServedModel,
        limits: &RequestLimits,
    ) -> Result<Option<ToolUse>, ApiError> {
        const CHOICE: &str = "tool_choice";
        let mut tools = declared(self.tools.as_deref().unwrap_or_default(), limits.tools)?;
        let refusal = |message: String| Err(ApiError::field(CHOICE, message));
        let mut several = self.parallel_tool_calls.unwrap_or(true);
        let must = match self.tool_choice {
            None => false,
            Some(WrittenChoice::Word(word)) => match word.as_str() {
                "none" => return Ok(None),
                "auto" => false,
                "required" if tools.is_empty() => {
                    let message = "a call is required, but there are no tools; send `tools`";
                    return refusal(message.to_owned());
                }
                "required" => true,
                other => {
                    let other: String = other.chars().take(40).collect();
                    let message = format!(
                        "tool_choice is `{other}`, allowed are none, auto, required, or an object that names a \
                         function"
                    );
                    return refusal(message);
                }
            },
            Some(WrittenChoice::Named(named)) => {
                let name = named.function.name;
                tools.retain(|tool| tool.name == name);
                if named.r#type != "function" || tools.is_empty() {
                    let name: String = name.chars().take(MAX_NAME).collect();
                    return refusal(format!("no tool named `{name}` is among the tools"));
                }
                several = false;
                true
            }
        };
        if tools.is_empty() {
            return Ok(None);
        }
        Ok(Some(ToolUse {
            several: several && model.tool_format.has_several(),
            format: model.tool_format.clone(),
            tools,
            must,
        }))
    }
}

impl ToolUse {
    /// Holds answers to calls.
    pub(crate) fn hold(&self, options: &mut Options, model: &ServedModel) -> Result<(), ApiError> {
        if options.constraint.is_some() {
            let message =
                "an answer has a form or calls tools; send `tool_choice: none`, or no form";
            return Err(ApiError::field("tools", message));
        }
        if options.stop.ignore_end && self.must {
            let message = "ignore_eos goes on where a call ends; send one of them";
            return Err(ApiError::field("ignore_eos", message));
        }
        let (must, several) = (self.must, self.several);
        let calls = model
            .forms
            .calls(&self.format, &self.tools, (must, several));
        let calls = calls.map_err(|error| super::structure::refusal("tools", &error))?;
        options.constraint = Some(calls);
        Ok(())
    }
}

impl CallTold {
    pub(crate) fn new(id: String, name: String) -> Self {
        let arguments = String::new();
        Self {
            id,
            r#type: "function",
            function: FunctionTold { name, arguments },
        }
    }

    pub(crate) fn push(&mut self, arguments: &str) {
        self.function.arguments.push_str(arguments);
    }
}

impl CallDelta {
    pub(crate) fn begin(index: usize, id: String, name: String) -> Self {
        Self {
            index,
            id: Some(id),
            r#type: Some("function"),
            function: FunctionDelta {
                name: Some(name),
                arguments: String::new(),
            },
        }
    }

    pub(crate) fn more(index: usize, arguments: String) -> Self {
        Self {
            index,
            id: None,
            r#type: None,
            function: FunctionDelta {
                name: None,
                arguments,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(tools: Value) -> (String, String) {
        let tools: Vec<WrittenTool> = serde_json::from_value(tools).unwrap();
        let error = declared(&tools, 128).unwrap_err().json();
        let text = |field: &str| error["error"][field].as_str().unwrap().to_owned();
        (text("param"), text("message"))
    }

    fn tool(name: &str, parameters: &Value) -> Value {
        json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
    }

    #[test]
    fn a_tool_is_shown_as_it_was_declared() {
        let tools = json!([
            { "type": "function", "function": { "name": "a.b-c_1", "description": "x", "strict": true,
                "parameters": { "type": "object", "properties": { "z": {}, "a": {} } } } },
            { "type": "function", "function": { "name": "bare" } }
        ]);
        let tools: Vec<WrittenTool> = serde_json::from_value(tools).unwrap();
        let specs = declared(&tools, 128).unwrap();
        assert_eq!(
            specs[0].declaration.to_string(),
            r#"{"type":"function","function":{"name":"a.b-c_1","description":"x","parameters":{"type":"object","properties":{"z":{},"a":{}}}}}"#
        );
        assert_eq!(specs[1].parameters, ToolSpec::no_parameters());
    }

    #[test]
    fn what_is_no_tool_is_refused_by_name() {
        let object = json!({ "type": "object" });
        for (tools, field) in [
            (
                json!([{ "type": "web", "function": { "name": "a" } }]),
                "tools[0].type",
            ),
            (json!([tool("", &object)]), "tools[0].function.name"),
            (json!([tool("a b", &object)]), "tools[0].function.name"),
            (
                json!([tool(&"a".repeat(65), &object)]),
                "tools[0].function.name",
            ),
            (
                json!([tool("a", &object), tool("a", &object)]),
                "tools[1].function.name",
            ),
            (
                json!([tool("a", &json!({ "type": "array" }))]),
                "tools[0].function.parameters",
            ),
            (
                json!([tool("a", &json!("x"))]),
                "tools[0].function.parameters",
            ),
        ] {
            assert_eq!(problem(tools).0, field);
        }
        let many: Vec<Value> = (0..129).map(|i| tool(&format!("t{i}"), &object)).collect();
        assert_eq!(problem(json!(many)).0, "tools");
    }
}
