//! The engine that templates run in: what they may call, what they may spend, how they fail.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};

use super::{MAX_RAISED, TemplateError, TemplateLimits};

/// The name of the only template; `.txt` turns escaping off.
const NAME: &str = "chat.txt";
/// Nested loops and macro calls.
const RECURSION: usize = 120;

/// What no honest template takes.
const TIME: Duration = Duration::from_secs(10);
/// Memory set aside, and touched only where needed, for nesting.
const STACK: usize = 256 * 1024 * 1024;

/// The sentence that a template raised.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// A compiled template in an engine of its own.
#[derive(Debug)]
pub(super) struct Engine {
    limits: TemplateLimits,
    environment: Arc<Environment<'static>>,
    /// Held by a rendering that was given up and still runs; there is no second one to wait for.
    overdue: Mutex<Weak<()>>,
}

impl Engine {
    pub(super) fn compile(source: &str, limits: TemplateLimits) -> Result<Self, TemplateError> {
        let source = source.to_owned();
        let environment = within(TIME, move || build(source, limits))?;
        Ok(Self {
            limits,
            environment: Arc::new(environment),
            overdue: Mutex::default(),
        })
    }

    /// The names that the template looks up and does not set itself.
    pub(super) fn variables(&self) -> Result<BTreeSet<String>, TemplateError> {
        let environment = Arc::clone(&self.environment);
        within(TIME, move || {
            let template = environment.get_template(NAME);
            let template = template.map_err(|error| TemplateError::Broken(error.to_string()))?;
            let mut names: BTreeSet<String> =
                template.undeclared_variables(false).into_iter().collect();
            names.retain(|name| !environment.globals().any(|(global, _)| global == name));
            Ok(names)
        })
    }

    pub(super) fn render(&self, context: Value) -> Result<String, TemplateError> {
        self.render_within(TIME, context)
    }

    pub(super) fn render_within(
        &self,
        time: Duration,
        context: Value,
    ) -> Result<String, TemplateError> {
        let overdue = || self.overdue.lock().unwrap_or_else(PoisonError::into_inner);
        if overdue().strong_count() > 0 {
            return Err(too_slow());
        }
        let running = Arc::new(());
        let runs = Arc::downgrade(&running);
        let environment = Arc::clone(&self.environment);
        let limits = self.limits;
        let result = within(time, move || {
            let result = run(&environment, context, limits);
            drop(running);
            result
        });
        if result == Err(too_slow()) {
            *overdue() = runs;
        }
        result
    }
}

fn too_slow() -> TemplateError {
    TemplateError::Broken("it takes too long".to_owned())
}

/// Works on a thread of its own, with room for what a template can nest within its limits (the
/// engine's parser and values recurse, and an overflow would end the process), and gives up on work
/// that the engine's own counting of steps does not catch.
fn within<T: Send + 'static>(
    time: Duration,
    work: impl FnOnce() -> Result<T, TemplateError> + Send + 'static,
) -> Result<T, TemplateError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("template".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            // Nobody listens any more if the time was up.
            let _ = sender.send(work());
        })
        .map_err(|error| TemplateError::Broken(format!("no thread to run it on: {error}")))?;
    match receiver.recv_timeout(time) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(too_slow()),
        Err(RecvTimeoutError::Disconnected) => Err(TemplateError::Broken(
            "the template engine failed".to_owned(),
        )),
    }
}

fn build(source: String, limits: TemplateLimits) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    // As the templates' authors run them.
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the delimiters are the usual ones");
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(call_method);
    environment.set_fuel(Some(limits.steps));
    environment.set_recursion_limit(RECURSION);
    environment.add_function("raise_exception", raise_exception);
    let most = limits.output;
    environment.add_filter(
        "tojson",
        move |state: &State<'_, '_>, value: &Value, indent: Option<usize>, options: Kwargs| {
            to_json(most, state, value, (indent, options))
        },
    );
    for name in ["string", "pprint"] {
        environment.add_filter(name, move |value: &Value| to_text(most, value));
    }
    environment
        .add_template_owned(NAME, source)
        .map_err(|error| {
            let detail = error.detail().unwrap_or("unknown syntax");
            let line = error.line().unwrap_or(1);
            TemplateError::Broken(format!("{detail} in line {line}"))
        })?;
    Ok(environment)
}

fn run(
    environment: &Environment<'static>,
    context: Value,
    limits: TemplateLimits,
) -> Result<String, TemplateError> {
    let template = environment
        .get_template(NAME)
        .map_err(|error| explain(&error, limits))?;
    let mut output = Limited::to(limits.output);
    template
        .render_captured_to(context, &mut output)
        .map(|_| ())
        .map_err(|error| explain(&error, limits))?;
    String::from_utf8(output.bytes)
        .map_err(|_| TemplateError::Broken("it wrote bytes that are not UTF-8".to_owned()))
}

/// Python's methods, but for formatting with a width that would not fit into memory.
fn call_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let wide = |text: &str| {
        text.split(|character: char| !character.is_ascii_digit())
            .any(|digits| digits.len() > 3)
    };
    if method == "format" && value.as_str().is_some_and(wide) {
        return Err(ErrorKind::InvalidOperation.into());
    }
    unknown_method_callback(state, value, method, arguments)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

/// An error without any of the template's source or the user's text, but for what it raised itself.
fn explain(error: &Error, limits: TemplateLimits) -> TemplateError {
    let TemplateLimits { steps, output } = limits;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Raised(message.chars().take(MAX_RAISED).collect());
        }
        cause = current.source();
    }
    let problem = match error.kind() {
        ErrorKind::OutOfFuel => format!("it takes more than {steps} steps for this conversation"),
        ErrorKind::WriteFailure => format!("it writes more than {output} bytes"),
        ErrorKind::UnknownFunction => {
            "it calls a function that does not exist here (the time of day, for one, is not \
             available to templates)"
                .to_owned()
        }
        kind => kind.to_string(),
    };
    let line = error
        .line()
        .map_or(String::new(), |line| format!(" in line {line}"));
    TemplateError::Broken(format!("{problem}{line}"))
}

/// The value as text. Lists that hold one list many times write more than they weigh.
fn to_text(most: usize, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    let mut output = Limited::to(most);
    write!(output, "{value}").map_err(|_| Error::new(ErrorKind::WriteFailure, "too much text"))?;
    Ok(String::from_utf8_lossy(&output.bytes).into_owned().into())
}

/// JSON as Python's `json.dumps` writes it, which is what models were trained on.
fn to_json(
    most: usize,
    state: &State<'_, '_>,
    value: &Value,
    (indent, options): (Option<usize>, Kwargs),
) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get("indent")?,
    };
    let _: (Option<bool>, Option<Value>, Option<bool>) = (
        options.get("ensure_ascii")?,
        options.get("separators")?,
        options.get("sort_keys")?,
    );
    options.assert_all_used()?;
    let mut output = Limited::to(most);
    let written = match indent {
        None => serialize(value, &mut output, Spaced),
        Some(width) => {
            let indent = vec![b' '; width.min(16)];
            serialize(value, &mut output, PrettyFormatter::with_indent(&indent))
        }
    };
    written.map_err(|error| match error.io_error_kind() {
        Some(_) => Error::new(ErrorKind::WriteFailure, "too much JSON"),
        None => Error::new(ErrorKind::BadSerialization, "not JSON"),
    })?;
    state.consume_fuel(output.bytes.len() as u64 / 4)?;
    let text = String::from_utf8(output.bytes)
        .map_err(|_| Error::new(ErrorKind::BadSerialization, "not UTF-8"))?;
    Ok(Value::from_safe_string(text))
}

fn serialize(
    value: &Value,
    output: &mut Limited,
    formatter: impl Formatter,
) -> Result<(), serde_json::Error> {
    value.serialize(&mut serde_json::Serializer::with_formatter(
        output, formatter,
    ))
}

/// `{"a": 1, "b": [2, 3]}`
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: Write + ?Sized>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        w.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        w.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}

/// A buffer that refuses to grow beyond the longest prompt.
struct Limited {
    bytes: Vec<u8>,
    most: usize,
}

impl Limited {
    fn to(most: usize) -> Self {
        Self {
            bytes: Vec::new(),
            most,
        }
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.bytes.len() {
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
