//! The report for people.

use super::report::{Report, Shape, SpecialToken, TokenizerReport};
use crate::printable;
use forthwith_core::units::Bytes;
use std::io::{self, Write};

const TEMPLATE_LINES: usize = 12;

/// Writes the report as text.
pub(super) fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    row(out, "path", &printable::line(&report.path))?;
    let said = |text: &Option<String>| {
        text.as_deref()
            .map_or_else(|| "-".to_owned(), printable::line)
    };
    row(out, "architecture", &said(&report.architecture))?;
    row(out, "name", &said(&report.name))?;
    row(out, "parameters", &millions(report.parameters))?;
    row(out, "weights", &Bytes::new(report.weight_bytes).to_string())?;
    row(out, "file", &Bytes::new(report.file_bytes).to_string())?;
    for (index, count) in report.formats.iter().enumerate() {
        let title = if index == 0 { "formats" } else { "" };
        let line = format!(
            "{:5} {:5} tensors  {:>10}",
            count.format,
            count.tensors,
            Bytes::new(count.bytes).to_string()
        );
        row(out, title, &line)?;
    }
    if let Some(shape) = &report.shape {
        write_shape(shape, out)?;
    }
    if let Some(tokenizer) = &report.tokenizer {
        write_tokenizer(tokenizer, out)?;
    }
    write_template(report.chat_template.as_deref(), out)?;
    if !report.phases.is_empty() {
        writeln!(out, "phases")?;
    }
    for phase in &report.phases {
        writeln!(out, "  {}", printable::line(phase))?;
    }
    Ok(())
}

fn write_shape(shape: &Shape, out: &mut dyn Write) -> io::Result<()> {
    row(out, "layers", &shape.layers.to_string())?;
    row(out, "hidden", &shape.hidden.to_string())?;
    row(out, "feed-forward", &list(&shape.feed_forward))?;
    row(out, "heads", &list(&shape.heads))?;
    row(out, "kv heads", &list(&shape.kv_heads))?;
    row(out, "head size", &list(&shape.head_dim))?;
    if !shape.windows.is_empty() {
        row(out, "window", &format!("{} tokens", list(&shape.windows)))?;
    }
    row(out, "context", &format!("{} tokens", shape.context))?;
    let bytes = Bytes::new(shape.kv_bytes_per_token);
    row(out, "kv cache", &format!("{bytes} per token (f16)"))
}

fn write_tokenizer(tokenizer: &TokenizerReport, out: &mut dyn Write) -> io::Result<()> {
    let size = format!("{}, {} tokens", tokenizer.kind, tokenizer.vocab);
    row(out, "tokenizer", &printable::line(&size))?;
    let show =
        |token: &SpecialToken| format!("{} {}", token.id, printable::token(token.text.as_bytes()));
    if let Some(bos) = &tokenizer.bos {
        let added = if tokenizer.adds_bos {
            "added"
        } else {
            "not added"
        };
        row(out, "begin token", &format!("{} ({added})", show(bos)))?;
    }
    let end: Vec<String> = tokenizer.end.iter().map(show).collect();
    row(out, "end tokens", &end.join(", "))
}

fn write_template(template: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    let Some(template) = template else {
        return row(out, "chat template", "none");
    };
    let lines = template.lines().count();
    row(
        out,
        "chat template",
        &format!("{} characters", template.chars().count()),
    )?;
    for line in template.lines().take(TEMPLATE_LINES) {
        let start: String = line.chars().take(200).collect();
        let more = if start.len() < line.len() { "…" } else { "" };
        writeln!(out, "  {}{more}", printable::line(&start))?;
    }
    if lines > TEMPLATE_LINES {
        writeln!(
            out,
            "  … {} more lines (--json shows all)",
            lines - TEMPLATE_LINES
        )?;
    }
    Ok(())
}

fn row(out: &mut dyn Write, title: &str, value: &str) -> io::Result<()> {
    writeln!(out, "{title:15}{value}")
}

fn list(values: &[usize]) -> String {
    let values: Vec<String> = values.iter().map(usize::to_string).collect();
    values.join(", ")
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn millions(count: u64) -> String {
    match count {
        0..1_000_000 => count.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} million", count as f64 / 1e6),
        _ => format!("{:.2} billion", count as f64 / 1e9),
    }
}
