//! The choices of an answer as the bytes that the server wrote: no comparison rounds a number.

use crate::server::Server;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::fmt::Write as _;

const COMPLETIONS: &str = "/v1/completions";

/// What an answer says.
#[derive(Debug)]
pub(crate) struct Told {
    /// The list of choices as it stands in a plain answer.
    pub(crate) choices: String,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
}

#[derive(Deserialize)]
struct Plain<'a> {
    #[serde(borrow)]
    choices: &'a RawValue,
    usage: Usage,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
    prompt_tokens_details: Details,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: usize,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    choices: Vec<Part<'a>>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Part<'a> {
    index: usize,
    text: String,
    #[serde(borrow)]
    logprobs: Option<Lists<'a>>,
    finish_reason: Option<String>,
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Lists<'a> {
    #[serde(borrow)]
    tokens: &'a RawValue,
    #[serde(borrow)]
    token_logprobs: &'a RawValue,
    #[serde(borrow)]
    top_logprobs: &'a RawValue,
    #[serde(borrow)]
    text_offset: &'a RawValue,
}

/// A choice of which the parts come one by one.
#[derive(Default)]
struct Growing {
    text: String,
    logprobs: Option<[String; 4]>,
    finish_reason: String,
    stop_reason: Option<String>,
}

impl Told {
    fn new(choices: String, usage: &Usage) -> Self {
        Self {
            choices,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.prompt_tokens_details.cached_tokens,
        }
    }
}

impl Growing {
    fn add(&mut self, part: &Part<'_>) {
        self.text.push_str(&part.text);
        if let Some(lists) = &part.logprobs {
            let known = self.logprobs.get_or_insert_default();
            let new = [
                lists.tokens,
                lists.token_logprobs,
                lists.top_logprobs,
                lists.text_offset,
            ];
            for (known, new) in known.iter_mut().zip(new) {
                extend(known, new.get());
            }
        }
        if let Some(reason) = &part.finish_reason {
            assert!(self.finish_reason.is_empty(), "a choice ends once");
            self.finish_reason.clone_from(reason);
        }
        if let Some(reason) = part.stop_reason {
            self.stop_reason = Some(reason.get().to_owned());
        }
    }

    /// As the plain answer has it.
    fn written(&self, index: usize) -> String {
        let mut written = format!(r#"{{"index":{index},"text":{}"#, json!(self.text));
        match &self.logprobs {
            None => written.push_str(r#","logprobs":null"#),
            Some([tokens, chosen, top, offsets]) => write!(
                written,
                r#","logprobs":{{"tokens":[{tokens}],"token_logprobs":[{chosen}],"top_logprobs":[{top}],"text_offset":[{offsets}]}}"#
            )
            .unwrap(),
        }
        write!(written, r#","finish_reason":{}"#, json!(self.finish_reason)).unwrap();
        if let Some(reason) = &self.stop_reason {
            write!(written, r#","stop_reason":{reason}"#).unwrap();
        }
        written + "}"
    }
}

/// Adds the members of a list that stands in brackets.
fn extend(known: &mut String, list: &str) {
    let new = list
        .strip_prefix('[')
        .and_then(|list| list.strip_suffix(']'));
    let new = new.expect("a list");
    if !known.is_empty() && !new.is_empty() {
        known.push(',');
    }
    known.push_str(new);
}

/// A plain completion, which must succeed.
pub(crate) fn plain(server: &Server, body: &Value) -> Told {
    let (status, answer) = server.request("POST", COMPLETIONS, Some(body));
    assert_eq!(status, 200, "{answer}\n{body}");
    let answer: Plain<'_> = serde_json::from_str(&answer).expect("an answer");
    Told::new(answer.choices.get().to_owned(), &answer.usage)
}

/// A streamed completion, put together as the plain one would have been written.
pub(crate) fn streamed(server: &Server, body: &Value) -> Told {
    let mut body = body.clone();
    body["stream_options"] = json!({"include_usage": true});
    let mut choices: Vec<Growing> = Vec::new();
    let mut usage = None;
    for event in server.event_texts(COMPLETIONS, &body) {
        let event: Event<'_> = serde_json::from_str(&event).expect("an event");
        for part in &event.choices {
            if choices.len() <= part.index {
                choices.resize_with(part.index + 1, Growing::default);
            }
            choices[part.index].add(part);
        }
        usage = event.usage;
    }
    let choices: Vec<String> = choices
        .iter()
        .enumerate()
        .map(|(index, choice)| choice.written(index))
        .collect();
    let choices = format!("[{}]", choices.join(","));
    Told::new(choices, &usage.expect("the last event has the usage"))
}
