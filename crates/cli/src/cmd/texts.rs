//! `forthwith embed`, `rerank` and `classify`: texts in, vectors, an order or labels out.
//!
//! Each line of the output is one JSON object, and says what the server's endpoint would say.

use crate::args::{ClassifyArgs, EmbedArgs, RerankArgs, SharedArgs, TextArgs};
use crate::cmd::serve::{Sampling, serve};
use crate::error::Failure;
use crate::load::{LoadSettings, load};
use crate::progress::Reporter;
use crate::schedule::Schedule;
use crate::select::Compute;
use forthwith_models::Overrides;
use forthwith_server::{InProcess, Refused};
use serde_json::{Value, json};
use std::io::{self, IsTerminal as _, Read as _, Write as _};

/// Texts that are sent together.
const TOGETHER: usize = 256;
/// The most bytes that are read from standard input.
const MAX_INPUT: u64 = 64 << 20;

/// Runs `embed`.
pub(crate) fn embed(args: &EmbedArgs, shared: &SharedArgs) -> Result<(), Failure> {
    let texts = texts(&args.texts)?;
    let models = open(&args.text, shared, args.vectors.overrides())?;
    let mut index = 0;
    for texts in texts.chunks(TOGETHER) {
        let mut body = json!({ "input": texts });
        if let Some(dimensions) = args.dimensions {
            body["dimensions"] = json!(dimensions);
        }
        let answer = post(&models, "/v1/embeddings", body, &args.text)?;
        for entry in list(&answer, "data") {
            print(&json!({ "index": index, "embedding": entry["embedding"] }))?;
            index += 1;
        }
    }
    Ok(())
}

/// Runs `rerank`.
pub(crate) fn rerank(args: &RerankArgs, shared: &SharedArgs) -> Result<(), Failure> {
    let documents = texts(&args.documents)?;
    let models = open(&args.text, shared, Overrides::default())?;
    let mut body = json!({
        "query": args.query,
        "documents": documents,
        "return_documents": true,
    });
    if let Some(most) = args.top {
        body["top_n"] = json!(most);
    }
    let answer = post(&models, "/v1/rerank", body, &args.text)?;
    for result in list(&answer, "results") {
        print(result)?;
    }
    Ok(())
}

/// Runs `classify`.
pub(crate) fn classify(args: &ClassifyArgs, shared: &SharedArgs) -> Result<(), Failure> {
    let texts = texts(&args.texts)?;
    let models = open(&args.text, shared, Overrides::default())?;
    let mut index = 0;
    // A model that generates computes each text once for each label.
    let together = (TOGETHER / args.labels.len().max(1)).max(1);
    for texts in texts.chunks(together) {
        let mut body = json!({ "input": texts });
        if !args.labels.is_empty() {
            body["labels"] = json!(args.labels);
        }
        if let Some(instruction) = &args.instruction {
            body["instruction"] = json!(instruction);
        }
        let answer = post(&models, "/v1/classify", body, &args.text)?;
        for entry in list(&answer, "data") {
            let mut entry = entry.clone();
            entry["index"] = json!(index);
            print(&entry)?;
            index += 1;
        }
    }
    Ok(())
}

/// The texts of the command line, or one for each line of standard input.
fn texts(given: &[String]) -> Result<Vec<String>, Failure> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    if io::stdin().is_terminal() {
        return Err(Failure::bad_input(
            "no texts: give them as arguments, or one in each line of standard input",
        ));
    }
    let mut bytes = Vec::new();
    let read = io::stdin()
        .lock()
        .take(MAX_INPUT + 1)
        .read_to_end(&mut bytes);
    read.map_err(|error| Failure::failed(format_args!("cannot read standard input: {error}")))?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(Failure::bad_input(format_args!(
            "standard input is longer than {MAX_INPUT} bytes"
        )));
    }
    let text =
        String::from_utf8(bytes).map_err(|_| Failure::bad_input("standard input is not UTF-8"))?;
    let texts: Vec<String> = text.lines().map(str::to_owned).collect();
    if texts.is_empty() {
        return Err(Failure::bad_input("standard input has no texts"));
    }
    Ok(texts)
}

fn open(args: &TextArgs, shared: &SharedArgs, overrides: Overrides) -> Result<InProcess, Failure> {
    let reporter = Reporter::new();
    let settings = LoadSettings {
        compute: Compute::new(&args.compute),
        context: None,
        kv_memory: None,
        models: 1,
        schedule: Schedule::new(&crate::args::ScheduleArgs::default()),
        chat_template: None,
        identify: false,
        self_check: args.check.or(false),
        overrides,
    };
    let model = load(&args.model, &shared.hub(), &settings, &reporter)?;
    let served = serve(model, &settings, Sampling::default(), &reporter)?;
    InProcess::new(vec![served]).map_err(Failure::failed)
}

/// Sends a body; warnings of the answer go to standard error.
fn post(
    models: &InProcess,
    path: &str,
    mut body: Value,
    args: &TextArgs,
) -> Result<Value, Failure> {
    if args.truncate {
        body["truncate_prompt_tokens"] = json!(-1);
    }
    let answer = models.post(path, &body).map_err(|refused| {
        let Refused { bad_input, message } = refused;
        if bad_input {
            Failure::bad_input(message)
        } else {
            Failure::failed(message)
        }
    })?;
    for warning in list(&answer, "warnings") {
        crate::printable::say(format_args!(
            "warning: {}",
            warning.as_str().unwrap_or_default()
        ));
    }
    Ok(answer)
}

fn list<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    answer[key].as_array().map_or(&[], Vec::as_slice)
}

/// Writes one line.
fn print(value: &Value) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}").map_err(|error| Failure::output(&error))
}
