//! A conversation in the terminal; it remembers what was said.

use super::generate::{Generator, Prompt};
use crate::error::Failure;
use crate::load::LoadedModel;
use crate::printable::Page;
use crate::progress::Reporter;
use forthwith_core::units::TokenId;
use forthwith_hub::Progress as _;
use forthwith_text::{ChatMessage, RenderOptions};
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};
use std::sync::atomic::Ordering;

const HELP: &str =
    "/clear forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer";

/// Reads lines and answers them until the user leaves.
pub(super) fn run(
    generator: &Generator<'_>,
    model: &LoadedModel,
    raw: bool,
    reporter: &Reporter,
) -> Result<(), Failure> {
    let raw = raw || model.template.is_none();
    reporter.note(if raw {
        "each line is continued as it is"
    } else {
        "chat with the model"
    });
    reporter.note(HELP);
    let interrupt = generator.interrupt();
    ctrlc::set_handler(move || interrupt.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::failed(format_args!("cannot watch for Ctrl-C: {error}")))?;
    // The terminal itself, because standard output may be a file that takes the answers alone.
    let config = Config::builder().behavior(Behavior::PreferTerm).build();
    let mut editor = DefaultEditor::with_config(config).map_err(|error| terminal(&error))?;
    let mut messages: Vec<ChatMessage> = Vec::new();
    loop {
        let line = match editor.readline(">>> ") {
            Ok(line) => line,
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(()),
            Err(error) => return Err(terminal(&error)),
        };
        match line.trim() {
            "" => continue,
            "/exit" | "/bye" => return Ok(()),
            "/clear" => {
                messages.clear();
                reporter.note("the conversation is forgotten");
                continue;
            }
            "/help" | "/?" => {
                reporter.note(HELP);
                continue;
            }
            _ => {}
        }
        // The history of the line editor is a convenience; a line it cannot keep is no failure.
        let _ = editor.add_history_entry(&line);
        messages.push(ChatMessage {
            role: "user".to_owned(),
            content: line,
            ..ChatMessage::default()
        });
        let mut page = Page::open();
        let answered = encode(model, &messages, raw)
            .and_then(|tokens| generator.stream(Prompt { tokens, last: None }, &mut page));
        page.write("\n")?;
        match answered {
            Ok(content) => messages.push(ChatMessage {
                role: "assistant".to_owned(),
                content,
                ..ChatMessage::default()
            }),
            Err(failure) => {
                // What was refused does not stay in the conversation.
                messages.pop();
                reporter.note(&format!("error: {failure}"));
            }
        }
    }
}

fn encode(
    model: &LoadedModel,
    messages: &[ChatMessage],
    raw: bool,
) -> Result<Vec<TokenId>, Failure> {
    match (&model.template, messages.last()) {
        (Some(template), _) if !raw => {
            let options = RenderOptions::for_answer();
            Ok(model
                .tokenizer
                .encode_rendered(&template.render(messages, &options)?)?)
        }
        (_, last) => {
            let line = last.map_or("", |message| message.content.as_str());
            Ok(model.tokenizer.encode_prompt(line)?)
        }
    }
}

fn terminal(error: &ReadlineError) -> Failure {
    Failure::failed(format_args!("the terminal cannot be read: {error}"))
}
