//! What an answer of a conversation is made of: content, reasoning, calls.

use forthwith_core::units::TokenId;
use forthwith_engine::TokenEvent;
use forthwith_text::{AnswerPart, AnswerReader, ReasoningMarks, Tokenizer, ToolFormat};

use crate::answers::{Ending, Matched, Piece};

/// How the answers of a call are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// The format of calls, if there may be some.
    pub(crate) tools: Option<ToolFormat>,
    /// How reasoning is marked, and whether answers begin within it.
    pub(crate) reasoning: Option<(ReasoningMarks, bool)>,
    /// Whether reasoning is left in the content, marks and all.
    pub(crate) raw: bool,
    /// Whether reasoning is left out.
    pub(crate) hides: bool,
}

/// One choice while it is read.
#[derive(Debug)]
pub(crate) struct ChoiceReader {
    reader: AnswerReader,
    hides: bool,
    /// Tokens of the reasoning so far, its marks included.
    pub(crate) reasoning_tokens: usize,
    /// Tokens whose part is not told yet.
    pending: Vec<TokenEvent>,
}

impl Reading {
    pub(crate) fn choice(&self) -> ChoiceReader {
        let reader = AnswerReader::new(self.tools.clone());
        let reader = match self.reasoning.filter(|_| !self.raw) {
            Some((marks, begun)) => reader.with_reasoning(marks, begun),
            None => reader,
        };
        ChoiceReader {
            reader,
            hides: self.hides,
            reasoning_tokens: 0,
            pending: Vec::new(),
        }
    }

    /// Hidden tokens that mark parts, so that they have to be read.
    pub(crate) fn spelled(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        let marks = self.reasoning.filter(|_| !self.raw).into_iter();
        let marks = marks.flat_map(|(marks, _)| [marks.open, marks.close]);
        let marks = marks.filter_map(|mark| tokenizer.special(mark));
        let tools = self.tools.iter();
        let tools = tools.flat_map(|format| format.special_tokens(tokenizer));
        let all = marks.chain(tools).filter(|&id| tokenizer.is_hidden(id));
        all.collect()
    }
}

impl ChoiceReader {
    /// The parts that are clear after a piece, and the tokens behind them.
    pub(crate) fn read(&mut self, piece: &mut Piece) -> (Vec<AnswerPart>, Vec<TokenEvent>) {
        let reasoned = self.reader.is_reasoning();
        let mut parts = self.reader.push(&piece.text);
        let count = piece.tokens.len();
        if reasoned || self.reader.is_reasoning() {
            self.reasoning_tokens += count;
        }
        self.pending.append(&mut piece.tokens);
        if piece.end.is_some() {
            parts.extend(self.reader.finish());
        }
        let told = !parts.is_empty() || piece.end.is_some();
        if self.hides {
            parts.retain(|part| !matches!(part, AnswerPart::Reasoning(_)));
        }
        let tokens = if told {
            std::mem::take(&mut self.pending)
        } else {
            Vec::new()
        };
        (parts, tokens)
    }

    /// The protocol's word for an ending: calls end an answer that no stop string cut.
    pub(crate) fn reason(&self, ending: &Ending) -> &'static str {
        let cut = matches!(ending.matched, Some(Matched::Text(_)));
        if ending.reason == "stop" && !cut && self.reader.calls() > 0 {
            "tool_calls"
        } else {
            ending.reason
        }
    }
}
