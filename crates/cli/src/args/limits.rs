//! How much one request may bring, and how long it may take to come.

use super::{BoolishValueParser, count};
use crate::duration::{self, Span};
use crate::size;
use clap::ArgAction;
use forthwith_core::units::Bytes;
use forthwith_server::{RequestLimits, ServerConfig};
use forthwith_text::{FormLimits, TemplateLimits};

/// What is refused before it costs anything.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Limits of a request")]
pub(crate) struct LimitArgs {
    /// Refuse requests with fields that have no effect, which otherwise get a warning
    #[arg(long, env = "FORTHWITH_STRICT_PARAMS", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    strict_params: bool,
    /// Largest body
    #[arg(long, value_name = "SIZE", env = "FORTHWITH_MAX_BODY", default_value = "8MiB", allow_negative_numbers = true, value_parser = body_size)]
    max_body: Bytes,
    /// Largest body of a call for vectors, labels or scores
    #[arg(long, value_name = "SIZE", env = "FORTHWITH_MAX_BATCH_BODY", default_value = "32MiB", allow_negative_numbers = true, value_parser = body_size)]
    max_batch_body: Bytes,
    /// Longest request line and headers together
    #[arg(long, value_name = "SIZE", env = "FORTHWITH_MAX_HEADER_BYTES", default_value = "64KiB", allow_negative_numbers = true, value_parser = header_size)]
    max_header_bytes: Bytes,
    /// Most headers
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_HEADERS", default_value = "100", allow_negative_numbers = true, value_parser = count::<8, 10_000>)]
    max_headers: usize,
    /// How long the headers may take to come
    #[arg(long, value_name = "TIME", env = "FORTHWITH_HEADER_TIMEOUT", default_value = "10s", allow_negative_numbers = true, value_parser = duration::parse::<100, 86_400_000>)]
    header_timeout: Span,
    /// How long the body may take to come
    #[arg(long, value_name = "TIME", env = "FORTHWITH_BODY_TIMEOUT", default_value = "30s", allow_negative_numbers = true, value_parser = duration::parse::<100, 86_400_000>)]
    body_timeout: Span,
    /// How long running answers may take after the signal to stop
    #[arg(long, value_name = "TIME", env = "FORTHWITH_DRAIN_TIMEOUT", default_value = "30s", allow_negative_numbers = true, value_parser = duration::parse::<0, 86_400_000>)]
    drain_timeout: Span,
    /// How deep the objects and lists of a body may nest
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_DEPTH", default_value = "64", allow_negative_numbers = true, value_parser = count::<4, 120>)]
    max_depth: usize,
    /// Most messages of a conversation
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_MESSAGES", default_value = "2048", allow_negative_numbers = true, value_parser = count::<1, 1_000_000>)]
    max_messages: usize,
    /// Most tools
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_TOOLS", default_value = "128", allow_negative_numbers = true, value_parser = count::<0, 4096>)]
    max_tools: usize,
    /// Most stop strings
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_STOPS", default_value = "16", allow_negative_numbers = true, value_parser = count::<0, 1024>)]
    max_stops: usize,
    /// Longest stop string or forbidden word, in bytes
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_STOP_BYTES", default_value = "512", allow_negative_numbers = true, value_parser = count::<1, 65_536>)]
    max_stop_bytes: usize,
    /// Most entries of a logit bias
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_LOGIT_BIAS", default_value = "1024", allow_negative_numbers = true, value_parser = count::<0, 1024>)]
    max_logit_bias: usize,
    /// Most choices of a prompt (n)
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_CHOICES", default_value = "16", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=512))]
    max_choices: u32,
    /// Most alternatives that are told of a token
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_LOGPROBS", default_value = "20", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=20))]
    max_logprobs: u32,
    /// Most prompts of a call for completions
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_PROMPTS", default_value = "64", allow_negative_numbers = true, value_parser = count::<1, 4096>)]
    max_prompts: usize,
    /// Most texts of a call for vectors, labels or scores
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_TEXTS", default_value = "2048", allow_negative_numbers = true, value_parser = count::<1, 1_000_000>)]
    max_texts: usize,
    /// Longest schema of an answer or a tool
    #[arg(long, value_name = "SIZE", env = "FORTHWITH_MAX_SCHEMA_BYTES", default_value = "256KiB", allow_negative_numbers = true, value_parser = schema_size)]
    max_schema_bytes: Bytes,
    /// How deep the objects and lists of a schema may nest
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_SCHEMA_DEPTH", default_value = "32", allow_negative_numbers = true, value_parser = count::<1, 120>)]
    max_schema_depth: usize,
    /// How long a schema or grammar may take to compile
    #[arg(long, value_name = "TIME", env = "FORTHWITH_MAX_FORM_TIME", default_value = "2s", allow_negative_numbers = true, value_parser = duration::parse::<10, 60_000>)]
    max_form_time: Span,
    /// Most steps of a chat template
    #[arg(long, value_name = "N", env = "FORTHWITH_MAX_TEMPLATE_STEPS", default_value = "1000000", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    max_template_steps: u64,
    /// Longest prompt that a chat template may write
    #[arg(long, value_name = "SIZE", env = "FORTHWITH_MAX_TEMPLATE_OUTPUT", default_value = "4MiB", allow_negative_numbers = true, value_parser = body_size)]
    max_template_output: Bytes,
}

impl LimitArgs {
    /// The server's part; who may ask and where is not decided here.
    pub(crate) fn config(&self) -> ServerConfig {
        ServerConfig {
            max_body: self.max_body,
            max_batch_body: self.max_batch_body,
            max_header_bytes: whole(self.max_header_bytes),
            max_headers: self.max_headers,
            header_timeout: self.header_timeout.0,
            body_timeout: self.body_timeout.0,
            drain_timeout: self.drain_timeout.0,
            strict_params: self.strict_params,
            limits: RequestLimits {
                depth: self.max_depth,
                messages: self.max_messages,
                tools: self.max_tools,
                stops: self.max_stops,
                stop_bytes: self.max_stop_bytes,
                logit_bias: self.max_logit_bias,
                choices: self.max_choices,
                logprobs: self.max_logprobs,
                prompts: self.max_prompts,
                texts: self.max_texts,
            },
            ..ServerConfig::default()
        }
    }

    /// What the form of an answer may cost.
    pub(crate) fn form(&self) -> FormLimits {
        FormLimits {
            schema_bytes: whole(self.max_schema_bytes),
            schema_depth: self.max_schema_depth,
            time: self.max_form_time.0,
        }
    }

    /// What a chat template may cost.
    pub(crate) fn template(&self) -> TemplateLimits {
        TemplateLimits {
            steps: self.max_template_steps,
            output: whole(self.max_template_output),
        }
    }
}

fn whole(bytes: Bytes) -> usize {
    usize::try_from(bytes.get()).unwrap_or(usize::MAX)
}

/// From 1 KiB to 1 GiB.
fn body_size(text: &str) -> Result<Bytes, String> {
    between(text, 1 << 10, 1 << 30)
}

/// What the HTTP library can hold, and no less than a browser sends.
fn header_size(text: &str) -> Result<Bytes, String> {
    between(text, 8 << 10, 1 << 20)
}

fn schema_size(text: &str) -> Result<Bytes, String> {
    between(text, 1 << 10, 8 << 20)
}

fn between(text: &str, least: u64, most: u64) -> Result<Bytes, String> {
    let bytes = size::parse(text)?;
    if (least..=most).contains(&bytes.get()) {
        return Ok(bytes);
    }
    let (least, most) = (Bytes::new(least), Bytes::new(most));
    Err(format!("expected a size from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        limits: LimitArgs,
    }

    fn read(line: &str) -> Result<LimitArgs, clap::Error> {
        let words = std::iter::once("serve").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.limits)
    }

    /// The help's defaults are those of the libraries.
    #[test]
    fn without_flags_the_defaults_hold() {
        let limits = read("").unwrap();
        assert_eq!(limits.config(), ServerConfig::default());
        assert_eq!(limits.form(), FormLimits::default());
        assert_eq!(limits.template(), TemplateLimits::default());
    }

    #[test]
    fn each_flag_changes_its_limit() {
        let plain = read("").unwrap();
        let shown = |limits: &LimitArgs| {
            format!(
                "{:?} {:?} {:?}",
                limits.config(),
                limits.form(),
                limits.template()
            )
        };
        let flags = [
            "--strict-params",
            "--max-body 1MiB",
            "--max-batch-body 1MiB",
            "--max-header-bytes 8KiB",
            "--max-headers 10",
            "--header-timeout 1s",
            "--body-timeout 1s",
            "--drain-timeout 1s",
            "--max-depth 10",
            "--max-messages 10",
            "--max-tools 10",
            "--max-stops 10",
            "--max-stop-bytes 10",
            "--max-logit-bias 10",
            "--max-choices 10",
            "--max-logprobs 10",
            "--max-prompts 10",
            "--max-texts 10",
            "--max-schema-bytes 1KiB",
            "--max-schema-depth 10",
            "--max-form-time 1s",
            "--max-template-steps 2000",
            "--max-template-output 1MiB",
        ];
        let mut seen = vec![shown(&plain)];
        for flag in flags {
            let changed = shown(&read(flag).unwrap());
            assert!(!seen.contains(&changed), "{flag}");
            seen.push(changed);
        }
    }

    #[test]
    fn limits_have_limits() {
        for line in [
            "--max-body 0",
            "--max-body 2GiB",
            "--max-header-bytes 1KiB",
            "--max-depth 121",
            "--max-logprobs 21",
            "--max-choices 0",
            "--max-form-time 2m",
            "--max-template-steps 1",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
