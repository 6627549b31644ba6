//! A conversation on the wire, and as the chat template wants it.
//!
//! `developer` is what newer clients call `system`, and becomes it. A list of text parts becomes
//! the parts' texts, one after the other. An assistant's earlier tool calls go to the template; where it
//! does not word calls, they become text as the model would have written it, so that the model sees them.

use std::collections::BTreeMap;
use std::fmt;

use forthwith_text::{ChatMessage, ToolFormat};
use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::error::ApiError;

/// The most tool calls of one message.
const MAX_TOOL_CALLS: usize = 128;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    role: Role,
    content: Option<Content>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
    name: Option<String>,
    reasoning_content: Option<String>,
    // Clients send an answer back as they got it, with its empty fields.
    #[serde(rename = "refusal")]
    _refusal: Option<NotYet>,
    #[serde(rename = "audio")]
    _audio: Option<NotYet>,
    #[serde(rename = "annotations")]
    _annotations: Option<NotYet>,
    #[serde(rename = "function_call")]
    _function_call: Option<NotYet>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(Debug, PartialEq, Eq)]
struct Content(String);

#[derive(Debug, Deserialize)]
#[serde(try_from = "AnyPart")]
struct TextPart(String);

#[derive(Debug, Deserialize)]
struct AnyPart {
    r#type: String,
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolCall {
    id: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(rename = "index")]
    _index: Option<u32>,
    function: FunctionCall,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionCall {
    name: String,
    arguments: String,
}

/// A field that may only be null.
#[derive(Debug)]
struct NotYet;

impl<'de> Deserialize<'de> for NotYet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer)?;
        Err(D::Error::custom(
            "this field is not supported yet; leave it out",
        ))
    }
}

impl TryFrom<AnyPart> for TextPart {
    type Error = String;

    fn try_from(part: AnyPart) -> Result<Self, String> {
        match (part.r#type.as_str(), part.text) {
            ("text", Some(text)) => Ok(Self(text)),
            ("text", None) => Err("a part of type `text` needs the field `text`".to_owned()),
            (other, _) => Err(format!(
                "a part of type `{other}` is not supported; this model reads parts of type `text`"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentReader)
    }
}

struct ContentReader;

impl<'de> Visitor<'de> for ContentReader {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of text parts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
        Ok(Content(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        let mut whole: Option<String> = None;
        while let Some(TextPart(text)) = list.next_element()? {
            whole.get_or_insert_default().push_str(&text);
        }
        whole
            .map(Content)
            .ok_or_else(|| A::Error::invalid_length(0, &"at least one part"))
    }
}

/// What the template makes of messages itself.
#[derive(Clone, Debug)]
pub(crate) struct Reads {
    /// Earlier calls, which otherwise become text in this format.
    pub(crate) calls: bool,
    pub(crate) format: ToolFormat,
    /// The arguments of earlier calls as an object, not as text.
    pub(crate) objects: bool,
    /// The reasoning of earlier answers.
    pub(crate) reasoning: bool,
}

/// Checks a conversation and words it for the template.
pub(crate) fn conversation(
    messages: Vec<Message>,
    reads: &Reads,
    most: usize,
) -> Result<Vec<ChatMessage>, ApiError> {
    if messages.is_empty() || messages.len() > most {
        let count = messages.len();
        let message = format!("messages has {count} entries, allowed are 1 to {most}");
        return Err(ApiError::field("messages", message));
    }
    let worded = messages.into_iter().enumerate().map(|(index, message)| {
        message.worded(reads).map_err(|(field, problem)| {
            ApiError::field(format!("messages[{index}].{field}"), problem)
        })
    });
    worded.collect()
}

/// A field and what is wrong with it.
type Problem = (&'static str, String);

impl Message {
    fn worded(self, reads: &Reads) -> Result<ChatMessage, Problem> {
        self.check()?;
        let calls = self.tool_calls.unwrap_or_default();
        let role = self.role.word();
        let mut content = match self.content {
            Some(Content(content)) => content,
            None if calls.is_empty() => {
                let problem = format!("a message of role `{role}` needs content");
                return Err(("content", problem));
            }
            None => String::new(),
        };
        let mut fields = BTreeMap::new();
        if !calls.is_empty() {
            let calls: Vec<WordedCall> = calls
                .into_iter()
                .map(ToolCall::worded)
                .collect::<Result<_, Problem>>()?;
            if reads.calls {
                let calls = calls.into_iter().map(|call| call.shown(reads.objects));
                fields.insert("tool_calls", calls.collect());
            } else {
                if !content.is_empty() {
                    content.push('\n');
                }
                let calls = calls.iter();
                let calls = calls.map(|call| (call.name.as_str(), call.arguments.as_str()));
                content.push_str(&reads.format.worded(calls));
            }
        }
        for (field, text) in [("tool_call_id", self.tool_call_id), ("name", self.name)] {
            fields.extend(text.map(|text| (field, Value::from(text))));
        }
        if let Some(reasoning) = self.reasoning_content.filter(|text| !text.is_empty()) {
            if !reads.reasoning {
                let problem = "this model's chat template does not read the reasoning of earlier answers; \
                               leave it out";
                return Err(("reasoning_content", problem.to_owned()));
            }
            fields.insert("reasoning_content", Value::from(reasoning));
        }
        Ok(ChatMessage {
            role: role.to_owned(),
            content,
            fields,
        })
    }

    /// Checks what the role may have.
    fn check(&self) -> Result<(), Problem> {
        let role = self.role.word();
        let calls = self.tool_calls.as_ref().map_or(0, Vec::len);
        if self.role != Role::Assistant && calls > 0 {
            let problem = format!("a message of role `{role}` calls no tools");
            return Err(("tool_calls", problem));
        }
        if calls > MAX_TOOL_CALLS {
            let problem = format!("{calls} tool calls, allowed are {MAX_TOOL_CALLS}");
            return Err(("tool_calls", problem));
        }
        if self.role == Role::Tool && self.tool_call_id.is_none() {
            let problem = "a message of role `tool` names the call that it answers";
            return Err(("tool_call_id", problem.to_owned()));
        }
        if self.role != Role::Tool && self.tool_call_id.is_some() {
            let problem = format!("a message of role `{role}` answers no tool call");
            return Err(("tool_call_id", problem));
        }
        if self.role != Role::Tool && self.name.is_some() {
            let problem = "names of speakers are not supported; leave it out";
            return Err(("name", problem.to_owned()));
        }
        if self.role != Role::Assistant && self.reasoning_content.is_some() {
            let problem = format!("a message of role `{role}` has no reasoning");
            return Err(("reasoning_content", problem));
        }
        Ok(())
    }
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::System | Self::Developer => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// An earlier call; its arguments are JSON.
struct WordedCall {
    id: String,
    name: String,
    arguments: String,
}

impl ToolCall {
    fn worded(self) -> Result<WordedCall, Problem> {
        if let Some(kind) = self.kind.filter(|kind| kind != "function") {
            let problem = format!("a tool call of type `{kind}` is not known");
            return Err(("tool_calls", problem));
        }
        let FunctionCall { name, arguments } = self.function;
        // A model may have written broken arguments; they are kept as the text that they are.
        let arguments = match serde_json::from_str::<IgnoredAny>(&arguments) {
            Ok(_) => arguments,
            Err(_) => Value::String(arguments).to_string(),
        };
        let id = self.id;
        Ok(WordedCall {
            id,
            name,
            arguments,
        })
    }
}

impl WordedCall {
    /// The call as templates read it.
    fn shown(self, object: bool) -> Value {
        let arguments = match serde_json::from_str(&self.arguments) {
            Ok(arguments) if object => arguments,
            _ => Value::String(self.arguments),
        };
        let function = json!({ "name": self.name, "arguments": arguments });
        json!({ "id": self.id, "type": "function", "function": function })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A template that knows nothing but contents.
    const TEXT: Reads = Reads {
        calls: false,
        format: ToolFormat::HERMES,
        objects: false,
        reasoning: false,
    };

    fn worded(json: &str) -> Result<Vec<(String, String)>, String> {
        let messages: Vec<Message> = serde_json::from_str(json).map_err(|e| e.to_string())?;
        conversation(messages, &TEXT, 100)
            .map(|all| all.into_iter().map(|m| (m.role, m.content)).collect())
            .map_err(|error| error.json().to_string())
    }

    #[test]
    fn parts_are_joined_as_they_are() {
        let whole = worded(r#"[{"role":"user","content":"Hi boat"}]"#);
        let parts = worded(
            r#"[{"role":"user","content":[{"type":"text","text":"Hi "},{"type":"text","text":"boat"}]}]"#,
        );
        assert_eq!(whole, parts);
    }

    #[test]
    fn developer_is_system() {
        let messages = worded(r#"[{"role":"developer","content":"be brief"}]"#).unwrap();
        assert_eq!(messages[0].0, "system");
    }

    #[test]
    fn earlier_tool_calls_are_seen_by_the_model() {
        let messages = worded(
            r#"[{"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"c1","type":"function",
                "function":{"name":"lamp","arguments":"{\"on\":true}"}}]},
               {"role":"tool","tool_call_id":"c1","content":"done"}]"#,
        )
        .unwrap();
        assert_eq!(
            messages[0].1,
            "<tool_call>\n{\"name\": \"lamp\", \"arguments\": {\"on\":true}}\n</tool_call>"
        );
        assert_eq!(messages[1], ("tool".to_owned(), "done".to_owned()));
    }

    #[test]
    fn templates_that_word_calls_get_them_as_they_like_them() {
        let message = r#"[{"role":"assistant","content":null,"reasoning_content":"so","tool_calls":[{"id":"c1",
            "type":"function","function":{"name":"lamp","arguments":"{\"on\": true}"}}]}]"#;
        for (objects, arguments) in [
            (true, json!({ "on": true })),
            (false, json!("{\"on\": true}")),
        ] {
            let reads = Reads {
                calls: true,
                reasoning: true,
                objects,
                ..TEXT
            };
            let messages: Vec<Message> = serde_json::from_str(message).unwrap();
            let worded = conversation(messages, &reads, 100).unwrap();
            assert_eq!(worded[0].content, "");
            assert_eq!(worded[0].fields["reasoning_content"], "so");
            let call = &worded[0].fields["tool_calls"][0];
            assert_eq!(call["function"]["arguments"], arguments);
            assert_eq!(
                (&call["id"], &call["type"]),
                (&json!("c1"), &json!("function"))
            );
        }
    }

    #[test]
    fn broken_shapes_are_refused() {
        for bad in [
            "[]",
            r#"[{"role":"user"}]"#,
            r#"[{"role":"user","content":null}]"#,
            r#"[{"role":"user","content":7}]"#,
            r#"[{"role":"user","content":[]}]"#,
            r#"[{"role":"user","content":{"type":"text","text":"x"}}]"#,
            r#"[{"role":"user","content":[{"type":"text"}]}]"#,
            r#"[{"role":"user","content":[{"type":"smell","text":"x"}]}]"#,
            r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]"#,
            r#"[{"role":"wizard","content":"x"}]"#,
            r#"[{"role":"","content":"x"}]"#,
            r#"[{"role":"tool","content":"x"}]"#,
            r#"[{"role":"assistant","content":null}]"#,
            r#"[{"role":"user","content":"x","name":"Ann"}]"#,
            r#"[{"role":"user","content":"x","mood":"good"}]"#,
            r#"[{"role":"user","content":"x","reasoning_content":"y"}]"#,
            r#"[{"role":"assistant","content":"x","reasoning_content":"y"}]"#,
        ] {
            assert!(worded(bad).is_err(), "{bad}");
        }
    }
}
