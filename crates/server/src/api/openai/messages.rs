//! A conversation on the wire, and as the chat template wants it.
//!
//! `developer` is what newer clients call `system`, and becomes it. A list of text parts becomes
//! the parts' texts, one after the other. An assistant's earlier tool calls become text in the form
//! that most templates use for them, so that the model sees them.

use std::fmt;

use forthwith_text::ChatMessage;
use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::error::ApiError;

/// The longest conversation.
const MAX_MESSAGES: usize = 2048;
/// The most tool calls of one message.
const MAX_TOOL_CALLS: usize = 128;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    role: Role,
    content: Option<Content>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
    // Clients send an answer back as they got it, with its empty fields.
    #[serde(rename = "name")]
    _name: Option<NotYet>,
    #[serde(rename = "refusal")]
    _refusal: Option<NotYet>,
    #[serde(rename = "audio")]
    _audio: Option<NotYet>,
    #[serde(rename = "annotations")]
    _annotations: Option<NotYet>,
    #[serde(rename = "function_call")]
    _function_call: Option<NotYet>,
    #[serde(rename = "reasoning_content")]
    _reasoning_content: Option<NotYet>,
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
    #[serde(rename = "id")]
    _id: String,
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

/// Checks a conversation and words it for the template.
pub(crate) fn conversation(messages: Vec<Message>) -> Result<Vec<ChatMessage>, ApiError> {
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        let count = messages.len();
        let message = format!("messages has {count} entries, allowed are 1 to {MAX_MESSAGES}");
        return Err(ApiError::field("messages", message));
    }
    let worded = messages.into_iter().enumerate().map(|(index, message)| {
        message.worded().map_err(|(field, problem)| {
            ApiError::field(format!("messages[{index}].{field}"), problem)
        })
    });
    worded.collect()
}

impl Message {
    fn worded(self) -> Result<ChatMessage, (&'static str, String)> {
        let calls = self.tool_calls.unwrap_or_default();
        let role = match self.role {
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        if self.role != Role::Assistant && !calls.is_empty() {
            return Err((
                "tool_calls",
                format!("a message of role `{role}` calls no tools"),
            ));
        }
        if self.role == Role::Tool && self.tool_call_id.is_none() {
            let problem = "a message of role `tool` names the call that it answers";
            return Err(("tool_call_id", problem.to_owned()));
        }
        if self.role != Role::Tool && self.tool_call_id.is_some() {
            let problem = format!("a message of role `{role}` answers no tool call");
            return Err(("tool_call_id", problem));
        }
        if calls.len() > MAX_TOOL_CALLS {
            let problem = format!("{} tool calls, allowed are {MAX_TOOL_CALLS}", calls.len());
            return Err(("tool_calls", problem));
        }
        let mut content = match self.content {
            Some(Content(content)) => content,
            None if calls.is_empty() => {
                let problem = format!("a message of role `{role}` needs content");
                return Err(("content", problem));
            }
            None => String::new(),
        };
        for call in calls {
            call.append_to(&mut content)?;
        }
        Ok(ChatMessage {
            role: role.to_owned(),
            content,
        })
    }
}

impl ToolCall {
    fn append_to(self, content: &mut String) -> Result<(), (&'static str, String)> {
        if let Some(kind) = self.kind.filter(|kind| kind != "function") {
            return Err((
                "tool_calls",
                format!("a tool call of type `{kind}` is not known"),
            ));
        }
        let FunctionCall { name, arguments } = self.function;
        // A model may have written broken arguments; they are kept as the text that they are.
        let arguments = match serde_json::from_str::<IgnoredAny>(&arguments) {
            Ok(_) => arguments,
            Err(_) => Value::String(arguments).to_string(),
        };
        if !content.is_empty() {
            content.push('\n');
        }
        let name = Value::String(name);
        let call = format!("{{\"name\": {name}, \"arguments\": {arguments}}}");
        content.push_str("<tool_call>\n");
        content.push_str(&call);
        content.push_str("\n</tool_call>");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worded(json: &str) -> Result<Vec<(String, String)>, String> {
        let messages: Vec<Message> = serde_json::from_str(json).map_err(|e| e.to_string())?;
        conversation(messages)
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
        ] {
            assert!(worded(bad).is_err(), "{bad}");
        }
    }
}
