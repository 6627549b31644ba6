//! The `run` subcommand: one answer, or a chat.

mod chat;
mod generate;

use crate::args::{RunArgs, SharedArgs};
use crate::error::Failure;
use crate::load::{LoadSettings, LoadedModel, ends_unknown, load};
use crate::printable::Page;
use crate::progress::Reporter;
use crate::schedule::Schedule;
use crate::select::Compute;
use forthwith_core::request::SamplingParams;
use forthwith_core::units::TokenId;
use forthwith_hub::Progress as _;
use forthwith_models::Suggestion;
use forthwith_server::Purpose;
use forthwith_text::{ChatMessage, RenderOptions};
use generate::{Generator, Prompt};
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Read as _};

/// The longest prompt that is read from standard input, in bytes.
const MAX_PROMPT: u64 = 8 << 20;

/// Runs the subcommand.
pub(crate) fn run(args: &RunArgs, shared: &SharedArgs) -> Result<(), Failure> {
    let chat = args.prompt.is_none() && io::stdin().is_terminal();
    let prompt = if chat { None } else { Some(read_prompt(args)?) };
    let reporter = Reporter::new();
    let settings = LoadSettings {
        compute: Compute::new(&args.compute),
        context: None,
        kv_memory: None,
        models: 1,
        schedule: Schedule::alone(),
        chat_template: args.chat_template.clone(),
        identify: false,
        self_check: args.check.or(false),
        overrides: forthwith_models::Overrides::default(),
    };
    let model = load(&args.model, &shared.hub(), &settings, &reporter)?;
    if model.purpose != Purpose::Generate {
        return Err(Failure::bad_input(format_args!(
            "the model `{}` generates no text; use `forthwith embed`, `rerank` or `classify`",
            model.id
        )));
    }
    for warning in &model.warnings {
        reporter.note(&format!("warning: {warning}"));
    }
    let sampling = sampling(args, &model.suggestion)?;
    reporter.note(&describe(&sampling, args, &model.suggestion));
    let generator = Generator::new(&model, sampling, args.max_tokens, args.stats);
    match prompt {
        Some(prompt) => answer(&generator, &model, args, &prompt, &reporter),
        None => chat::run(&generator, &model, args.raw, &reporter),
    }
}

/// One line that says how tokens are chosen, so that the answer can be had again.
fn describe(sampling: &SamplingParams, args: &RunArgs, suggestion: &Suggestion) -> String {
    if sampling.is_greedy() {
        return "sampling: always the most likely token".to_owned();
    }
    let mut text = format!(
        "sampling: temperature {}, top-k {}, top-p {}",
        sampling.temperature, sampling.top_k, sampling.top_p
    );
    if sampling.min_p > 0.0 {
        let _ = write!(text, ", min-p {}", sampling.min_p);
    }
    if sampling.repetition_penalty != 1.0 {
        let penalty = sampling.repetition_penalty;
        let _ = write!(text, ", repetition penalty {penalty}");
    }
    let seed = if args.seed.is_some() {
        "given"
    } else {
        "drawn; --seed repeats it"
    };
    let _ = write!(text, ", seed {} ({seed})", sampling.seed);
    if !suggestion.is_empty() {
        let _ = write!(text, "; the model suggests {suggestion}");
    }
    text
}

/// What was given, else what the model suggests, else what suits a terminal.
fn sampling(args: &RunArgs, suggestion: &Suggestion) -> Result<SamplingParams, Failure> {
    let seed = match args.seed {
        Some(seed) => seed,
        // A drawn seed stays short enough to be typed again.
        None => drawn_seed()? >> 32,
    };
    let usual = SamplingParams {
        temperature: 0.2,
        top_p: 0.95,
        seed,
        ..SamplingParams::default()
    };
    let suggested = suggestion.applied_to(usual);
    Ok(SamplingParams {
        temperature: args.temperature.unwrap_or(suggested.temperature),
        top_k: args.top_k.unwrap_or(suggested.top_k),
        top_p: args.top_p.unwrap_or(suggested.top_p),
        ..suggested
    })
}

fn drawn_seed() -> Result<u64, Failure> {
    getrandom::u64().map_err(|error| {
        Failure::failed(format_args!(
            "the system gave no random seed: {error}; use --seed"
        ))
    })
}

fn read_prompt(args: &RunArgs) -> Result<String, Failure> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    let mut bytes = Vec::new();
    let read = io::stdin()
        .lock()
        .take(MAX_PROMPT + 1)
        .read_to_end(&mut bytes);
    read.map_err(|error| Failure::failed(format_args!("cannot read standard input: {error}")))?;
    if bytes.len() as u64 > MAX_PROMPT {
        return Err(Failure::bad_input(format_args!(
            "the prompt on standard input is longer than {MAX_PROMPT} bytes"
        )));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|_| Failure::bad_input("the prompt on standard input is not UTF-8"))?;
    // What `echo` and editors add is not part of the prompt; anything more is.
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

fn answer(
    generator: &Generator<'_>,
    model: &LoadedModel,
    args: &RunArgs,
    prompt: &str,
    reporter: &Reporter,
) -> Result<(), Failure> {
    let raw = args.raw || model.template.is_none();
    if raw && !args.raw {
        reporter.note("the model has no chat template: the prompt is continued as it is");
    }
    let tokens = encode(model, prompt, raw)?;
    if ends_unknown(&tokens, &model.tokenizer) && raw {
        reporter.note("the prompt ends with a word that the model does not know");
    }
    let mut page = Page::open();
    if args.echo {
        page.write(prompt)?;
        page.write(if raw { "" } else { "\n" })?;
    }
    let last = if args.echo && raw {
        tokens.last().copied()
    } else {
        None
    };
    generator.stream(Prompt { tokens, last }, &mut page)?;
    page.write("\n")
}

fn encode(model: &LoadedModel, prompt: &str, raw: bool) -> Result<Vec<TokenId>, Failure> {
    match &model.template {
        Some(template) if !raw => {
            let message = ChatMessage {
                role: "user".to_owned(),
                content: prompt.to_owned(),
                ..ChatMessage::default()
            };
            let options = RenderOptions::for_answer();
            let rendered = template.render(&[message], &options)?;
            Ok(model.tokenizer.encode_rendered(&rendered)?)
        }
        _ => Ok(model.tokenizer.encode_prompt(prompt)?),
    }
}
