//! Reads an answer's text back: free text, reasoning, and calls of tools, piece by piece.
//!
//! The parts, whatever the pieces in which the text came, are the same.

use super::format::ToolFormat;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// What the model thinks before it answers.
    Reasoning(String),
    /// The answer itself.
    Content(String),
    /// A call begins.
    Call {
        /// Which one of the answer, from 0.
        index: usize,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments.
    Arguments {
        /// Whose.
        index: usize,
        /// The next piece of the JSON text.
        text: String,
    },
}

/// How an answer marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningMarks {
    /// What it begins with, if the prompt does not end with it.
    pub open: &'static str,
    /// What it ends with.
    pub close: &'static str,
}

impl ReasoningMarks {
    /// The marks that a chat template's own text shows, if it shows any.
    pub fn of(template: &str) -> Option<Self> {
        let all = [("<think>", "</think>"), ("[THINK]", "[/THINK]")];
        let shown =
            |&(open, close): &(&str, &str)| template.contains(open) && template.contains(close);
        let (open, close) = all.into_iter().find(shown)?;
        Some(Self { open, close })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing has come that is not white space.
    Beginning,
    Reasoning,
    /// White space after the reasoning is no part of the answer.
    AfterReasoning,
    Content,
    /// Before the name of the first call.
    Lead,
    Name,
    Arguments {
        depth: usize,
        quoted: bool,
        escaped: bool,
    },
    /// After a call.
    Rest,
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    tools: Option<ToolFormat>,
    marks: Option<ReasoningMarks>,
    state: State,
    /// What has come and is not told yet: it may be the beginning of a marker.
    held: String,
    calls: usize,
    /// Whether anything of the answer itself has come.
    answered: bool,
}

impl AnswerReader {
    /// Reads answers that may hold calls in this format, if one is given.
    pub fn new(tools: Option<ToolFormat>) -> Self {
        Self {
            tools,
            marks: None,
            state: State::Content,
            held: String::new(),
            calls: 0,
            answered: false,
        }
    }

    /// Tells how reasoning is marked, and whether the answer begins within it.
    #[must_use]
    pub fn with_reasoning(mut self, marks: ReasoningMarks, begun: bool) -> Self {
        self.marks = Some(marks);
        self.state = if begun {
            State::Reasoning
        } else {
            State::Beginning
        };
        self
    }

    /// Whether the answer stands in its reasoning.
    pub fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// How many calls have begun.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes more of the text.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while !self.held.is_empty() && self.step(&mut parts) {}
        parts
    }

    /// Ends the text: what was held back is text, if it is no part of a call.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        let held = std::mem::take(&mut self.held);
        let part = match self.state {
            State::Reasoning => AnswerPart::Reasoning(held.trim_end().to_owned()),
            State::Beginning | State::Content => AnswerPart::Content(held),
            _ => return Vec::new(),
        };
        let is_empty = matches!(&part, AnswerPart::Reasoning(text) | AnswerPart::Content(text) if text.is_empty());
        if is_empty { Vec::new() } else { vec![part] }
    }

    /// Goes on as far as it is clear how; whether there may be more.
    fn step(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        match (self.state, self.marks, self.tools.clone()) {
            (State::Beginning, Some(marks), _) => self.begin(marks),
            (State::Reasoning, Some(marks), _) => self.reason(marks, parts),
            (State::AfterReasoning, ..) => {
                self.held = self.held.trim_start().to_owned();
                self.state = State::Content;
                if self.held.is_empty() {
                    self.state = State::AfterReasoning;
                }
                true
            }
            (State::Lead, _, Some(tools)) => self.lead(&tools.lead(), parts),
            (State::Name, _, Some(tools)) => self.name(&tools, parts),
            (State::Arguments { .. }, ..) => self.arguments(parts),
            (State::Rest, _, Some(tools)) => self.rest(&tools),
            (_, _, Some(tools)) => self.content(&tools, parts),
            (_, _, None) => {
                parts.push(AnswerPart::Content(std::mem::take(&mut self.held)));
                false
            }
        }
    }

    fn begin(&mut self, marks: ReasoningMarks) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(marks.open) {
            self.held = rest.to_owned();
            self.state = State::Reasoning;
        } else if marks.open.starts_with(text) {
            return false;
        } else {
            self.state = State::Content;
        }
        true
    }

    fn reason(&mut self, marks: ReasoningMarks, parts: &mut Vec<AnswerPart>) -> bool {
        if !self.answered {
            self.held = self.held.trim_start().to_owned();
        }
        let (text, found) = self.until(marks.close);
        if !text.is_empty() {
            self.answered = true;
            parts.push(AnswerPart::Reasoning(text));
        }
        if found {
            self.held.drain(..marks.close.len());
            self.state = State::AfterReasoning;
            self.answered = false;
        }
        found
    }

    fn content(&mut self, tools: &ToolFormat, parts: &mut Vec<AnswerPart>) -> bool {
        if tools.at_start {
            let text = self.held.trim_start();
            if !self.answered && text.starts_with(tools.trigger) {
                self.held = text.to_owned();
                self.state = State::Lead;
                return true;
            }
            if !self.answered && tools.trigger.starts_with(text) {
                return false;
            }
            self.answered = true;
            parts.push(AnswerPart::Content(std::mem::take(&mut self.held)));
            return false;
        }
        let (text, found) = self.until(tools.trigger);
        if !text.is_empty() {
            parts.push(AnswerPart::Content(text));
        }
        if found {
            self.state = State::Lead;
        }
        found
    }

    /// What surely comes before a marker, and whether the marker follows. White space at the end waits, as
    /// it is left out before a marker.
    fn until(&mut self, marker: &str) -> (String, bool) {
        if let Some(at) = self.held.find(marker) {
            let text = self.held[..at].trim_end().to_owned();
            self.held.drain(..at);
            return (text, true);
        }
        let starts =
            |&at: &usize| self.held.is_char_boundary(at) && marker.starts_with(&self.held[at..]);
        let longest = marker.len().min(self.held.len());
        let end = self.held.len();
        let safe = (end - longest..end).find(starts).unwrap_or(end);
        let safe = self.held[..safe].trim_end().len();
        (self.held.drain(..safe).collect(), false)
    }

    fn lead(&mut self, lead: &str, parts: &mut Vec<AnswerPart>) -> bool {
        if self.held.starts_with(lead) {
            self.held.drain(..lead.len());
            self.state = State::Name;
        } else if lead.starts_with(&self.held) {
            return false;
        } else {
            // Without a constraint a model may write anything.
            self.tools = None;
            self.state = State::Content;
            parts.push(AnswerPart::Content(std::mem::take(&mut self.held)));
        }
        true
    }

    fn name(&mut self, tools: &ToolFormat, parts: &mut Vec<AnswerPart>) -> bool {
        let Some(at) = self.held.find(tools.middle) else {
            return false;
        };
        let (index, name) = (self.calls, self.held[..at].to_owned());
        self.held.drain(..at + tools.middle.len());
        self.calls += 1;
        self.state = State::Arguments {
            depth: 0,
            quoted: false,
            escaped: false,
        };
        parts.push(AnswerPart::Call { index, name });
        true
    }

    fn arguments(&mut self, parts: &mut Vec<AnswerPart>) -> bool {
        let State::Arguments {
            mut depth,
            mut quoted,
            mut escaped,
        } = self.state
        else {
            return false;
        };
        let mut end = None;
        for (at, byte) in self.held.bytes().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                b'{' | b'[' if !quoted => depth += 1,
                b'}' | b']' if !quoted => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        end = Some(at + 1);
                        break;
                    }
                }
                _ => {}
            }
        }
        let text: String = self.held.drain(..end.unwrap_or(self.held.len())).collect();
        let index = self.calls - 1;
        parts.push(AnswerPart::Arguments { index, text });
        self.state = if end.is_some() {
            State::Rest
        } else {
            State::Arguments {
                depth,
                quoted,
                escaped,
            }
        };
        end.is_some()
    }

    fn rest(&mut self, tools: &ToolFormat) -> bool {
        let between = tools.between.unwrap_or("\n");
        let next = format!("{}{between}{}", tools.close, tools.open);
        if !self.held.starts_with(&next) {
            return false;
        }
        self.held.drain(..next.len());
        self.state = State::Name;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a text, pieces of one part joined, whatever the pieces it comes in.
    fn parts(reader: &AnswerReader, text: &str) -> Vec<AnswerPart> {
        let mut results = Vec::new();
        for size in [1, 2, 3, 7, 1000] {
            let mut reader = reader.clone();
            let characters: Vec<char> = text.chars().collect();
            let mut all: Vec<AnswerPart> = Vec::new();
            let pieces = characters.chunks(size).map(String::from_iter);
            let mut news: Vec<AnswerPart> = pieces
                .flat_map(|piece: String| reader.push(&piece))
                .collect();
            news.extend(reader.finish());
            for part in news {
                match (all.last_mut(), &part) {
                    (Some(AnswerPart::Content(before)), AnswerPart::Content(text))
                    | (Some(AnswerPart::Reasoning(before)), AnswerPart::Reasoning(text))
                    | (
                        Some(AnswerPart::Arguments { text: before, .. }),
                        AnswerPart::Arguments { text, .. },
                    ) => before.push_str(text),
                    _ => all.push(part),
                }
            }
            results.push(all);
        }
        let first = results.swap_remove(0);
        for other in &results {
            assert_eq!(other, &first);
        }
        first
    }

    fn content(text: &str) -> AnswerPart {
        AnswerPart::Content(text.to_owned())
    }

    fn call(index: usize, name: &str, arguments: &str) -> [AnswerPart; 2] {
        [
            AnswerPart::Call {
                index,
                name: name.to_owned(),
            },
            AnswerPart::Arguments {
                index,
                text: arguments.to_owned(),
            },
        ]
    }

    const TEMPLATES: [&str; 7] = [
        "",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [ARGS]",
        "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>",
        "<｜tool▁calls▁begin｜>",
        "<|channel|> to=functions.",
    ];

    #[test]
    fn what_a_format_writes_is_read_back() {
        for template in TEMPLATES {
            let format = ToolFormat::of(template);
            let reader = AnswerReader::new(Some(format.clone()));
            let calls = [("lamp", r#"{"a": "}\"{", "b": [{}]}"#), ("fan", "{}")];
            let count = if format.has_several() { 2 } else { 1 };
            let text = format.worded(calls.into_iter().take(count));
            let expected: Vec<AnswerPart> = calls[..count]
                .iter()
                .enumerate()
                .flat_map(|(index, (name, arguments))| call(index, name, arguments))
                .collect();
            assert_eq!(parts(&reader, &text), expected, "{}", format.name());
            if !format.at_start {
                let before = [vec![content("Well <.")], expected].concat();
                assert_eq!(parts(&reader, &format!("Well <. \n{text}")), before);
            }
        }
    }

    #[test]
    fn text_without_calls_is_text() {
        for template in TEMPLATES {
            let reader = AnswerReader::new(Some(ToolFormat::of(template)));
            for text in ["", "a < b ", "<tool", "{\"name", "\n <tool_cal>\n", "ä<"] {
                let expected: Vec<AnswerPart> = [content(text)]
                    .into_iter()
                    .filter(|_| !text.is_empty())
                    .collect();
                assert_eq!(parts(&reader, text), expected);
            }
        }
        let plain = AnswerReader::new(None);
        assert_eq!(parts(&plain, "<tool_call>"), [content("<tool_call>")]);
    }

    #[test]
    fn a_call_that_is_cut_is_told_as_far_as_it_came() {
        let reader = AnswerReader::new(Some(ToolFormat::of("")));
        let text = "<tool_call>\n{\"name\": \"lamp\", \"arguments\": {\"a\": \"x";
        assert_eq!(parts(&reader, text), call(0, "lamp", "{\"a\": \"x"));
        assert_eq!(parts(&reader, "<tool_call>\n{\"name\": \"la"), []);
    }

    #[test]
    fn reasoning_is_told_apart_wherever_it_begins() {
        const MARKS: ReasoningMarks = ReasoningMarks {
            open: "<think>",
            close: "</think>",
        };
        let reasoning = |text: &str| AnswerPart::Reasoning(text.to_owned());
        let reader = AnswerReader::new(Some(ToolFormat::of(""))).with_reasoning(MARKS, false);
        let text = "\n<think>\nso < it </thin is\n</think>\n\nYes.";
        assert_eq!(
            parts(&reader, text),
            [reasoning("so < it </thin is"), content("Yes.")]
        );
        assert_eq!(parts(&reader, "<thin air"), [content("<thin air")]);
        assert_eq!(parts(&reader, " Yes. <think>"), [content(" Yes. <think>")]);
        let begun = reader.clone().with_reasoning(MARKS, true);
        assert_eq!(
            parts(&begun, "so</think>Yes."),
            [reasoning("so"), content("Yes.")]
        );
        assert_eq!(parts(&begun, "so it"), [reasoning("so it")]);
        assert_eq!(parts(&begun, "</think>"), []);
        let text = format!(
            "so</think>\n{}",
            ToolFormat::of("").worded([("f", "{}")].into_iter())
        );
        let expected = [vec![reasoning("so")], call(0, "f", "{}").to_vec()].concat();
        assert_eq!(parts(&begun, &text), expected);
    }
}
