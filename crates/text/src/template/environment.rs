//! The engine that templates run in: what they may call, what they may spend, how they fail.

use std::fmt;
use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};

use super::{MAX_OUTPUT, MAX_RAISED, TemplateError};

/// The name of the only template; `.txt` turns escaping off.
const NAME: &str = "chat.txt";
/// Steps that a rendering may take; each 64 bytes of data count as one.
const FUEL: u64 = 1_000_000;
/// Nested loops and macro calls.
const RECURSION: usize = 120;

/// The sentence that a template raised.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Compiles a template in an engine of its own.
pub(super) fn compile(source: &str) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    // As the templates' authors run them.
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the delimiters are the usual ones");
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", to_json);
    environment
        .add_template_owned(NAME, source.to_owned())
        .map_err(|error| {
            let detail = error.detail().unwrap_or("unknown syntax");
            let line = error.line().unwrap_or(1);
            TemplateError::Broken(format!("{detail} in line {line}"))
        })?;
    Ok(environment)
}

/// Runs the template.
pub(super) fn render(
    environment: &Environment<'static>,
    context: Value,
) -> Result<String, TemplateError> {
    let template = environment
        .get_template(NAME)
        .map_err(|error| explain(&error))?;
    let mut output = Limited::default();
    template
        .render_captured_to(context, &mut output)
        .map(|_| ())
        .map_err(|error| explain(&error))?;
    String::from_utf8(output.bytes)
        .map_err(|_| TemplateError::Broken("it wrote bytes that are not UTF-8".to_owned()))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

/// An error without any of the template's source or the user's text, but for what it raised itself.
fn explain(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Raised(message.chars().take(MAX_RAISED).collect());
        }
        cause = current.source();
    }
    let problem = match error.kind() {
        ErrorKind::OutOfFuel => format!("it takes more than {FUEL} steps for this conversation"),
        ErrorKind::WriteFailure => format!("it writes more than {MAX_OUTPUT} bytes"),
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

/// JSON as Python's `json.dumps` writes it, which is what models were trained on.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine hands over the arguments"
)]
fn to_json(
    state: &State<'_, '_>,
    value: &Value,
    indent: Option<usize>,
    options: Kwargs,
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
    let mut output = Limited::default();
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
#[derive(Default)]
struct Limited {
    bytes: Vec<u8>,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_OUTPUT - self.bytes.len() {
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
