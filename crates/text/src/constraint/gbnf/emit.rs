//! Writes a grammar in the dialect of Lark that llguidance reads.
//!
//! Names: `start`, `rI-NAME` for rule number I of the grammar, `gI` for a part of a rule, `tI` for
//! a terminal. A terminal is a rule that is nothing but a pattern. llguidance makes a symbol of
//! every mention of an upper-case terminal, but one symbol of all mentions of a rule, and it can
//! hold no more than 65,000 symbols.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::charset::CharSet;
use super::expression::Expr;
use super::lexemes::{Leaf, Plan};
use super::parse::Grammar;
use super::relations::Shape;

/// The most symbols that llguidance is made to hold.
const MAX_SYMBOLS: usize = 40_000;
/// The symbols that llguidance needs at most for a repetition with bounds.
const REPEAT_SYMBOLS: usize = 40;
/// The most characters of a name that are kept.
const MAX_NAME: usize = 32;

/// Writes a grammar with the terminals of `plan`.
///
/// # Errors     if llguidance could not hold the grammar
pub(super) fn write(grammar: &Grammar, plan: &Plan) -> Result<String, String> {
    let names = grammar.rules.iter().enumerate().map(|(index, rule)| {
        let name: String = rule.name.chars().take(MAX_NAME).collect();
        format!("r{index}-{}", name.to_ascii_lowercase())
    });
    let mut writer = Writer {
        plan,
        names: names.collect(),
        lines: Vec::new(),
        groups: HashMap::new(),
        repetitions: HashSet::new(),
        terminals: vec![None; plan.terminals.len()],
        terminal_count: 0,
        symbols: 0,
    };
    let mut text = format!("start: {}\n", writer.names[grammar.root]);
    for (index, shape) in plan.shapes.iter().enumerate() {
        let body = writer.body(shape);
        let line = format!("{}: {body}\n", writer.names[index]);
        writer.lines.push(line);
        writer.symbols += 1;
    }
    if writer.symbols > MAX_SYMBOLS {
        return Err(format!(
            "the grammar is too large: it needs {} symbols, at most {MAX_SYMBOLS} can be",
            writer.symbols
        ));
    }
    text.extend(writer.lines);
    Ok(text)
}

struct Writer<'a> {
    plan: &'a Plan,
    names: Vec<String>,
    lines: Vec<String>,
    /// The names of the parts that have a line of their own, by what they stand for.
    groups: HashMap<String, String>,
    /// The repetitions with bounds that were written.
    repetitions: HashSet<String>,
    /// The number with which each terminal is named, once it has a line of its own.
    terminals: Vec<Option<usize>>,
    terminal_count: usize,
    /// The symbols that llguidance makes of the lines, or more.
    symbols: usize,
}

impl Writer<'_> {
    /// What comes after the colon of a line.
    fn body(&mut self, shape: &Shape) -> String {
        let Shape::Alt(parts) = shape else {
            return self.sequence(shape);
        };
        self.symbols += parts.len();
        let choices: Vec<String> = parts.iter().map(|part| self.sequence(part)).collect();
        choices.join(" | ")
    }

    fn sequence(&mut self, shape: &Shape) -> String {
        match shape {
            Shape::Seq(parts) if !parts.is_empty() => {
                let parts: Vec<String> = parts.iter().map(|part| self.repetition(part)).collect();
                parts.join(" ")
            }
            shape => self.repetition(shape),
        }
    }

    fn repetition(&mut self, shape: &Shape) -> String {
        let Shape::Repeat(body, least, most) = shape else {
            return self.atom(shape);
        };
        let body = self.atom(body);
        self.symbols += 2;
        let mark = match (least, most) {
            (0, None) => "*".to_owned(),
            (1, None) => "+".to_owned(),
            (0, Some(1)) => "?".to_owned(),
            (least, most) => {
                let most = most.map(|most| most.to_string()).unwrap_or_default();
                format!("{{{least},{most}}}")
            }
        };
        let repetition = body + &mark;
        // llguidance remembers the repetitions with bounds that it has made.
        if mark.starts_with('{') && self.repetitions.insert(repetition.clone()) {
            self.symbols += REPEAT_SYMBOLS;
        }
        repetition
    }

    /// One name, or the empty text. Makes a line for the shape where it is more.
    fn atom(&mut self, shape: &Shape) -> String {
        match shape {
            Shape::Leaf(leaf) => match &self.plan.leaves[*leaf] {
                Leaf::Token(token) => {
                    self.symbols += 1;
                    token.to_string()
                }
                Leaf::Terminal(number) => self.terminal(*number),
            },
            Shape::Rule(index) => self.names[*index].clone(),
            Shape::Seq(parts) if parts.is_empty() => "\"\"".to_owned(),
            Shape::Seq(_) | Shape::Alt(_) | Shape::Repeat(..) => {
                let body = self.body(shape);
                if let Some(name) = self.groups.get(&body) {
                    return name.clone();
                }
                let name = format!("g{}", self.groups.len());
                self.lines.push(format!("{name}: {body}\n"));
                self.groups.insert(body, name.clone());
                self.symbols += 1;
                name
            }
        }
    }

    fn terminal(&mut self, number: usize) -> String {
        if let Some(name) = self.terminals[number] {
            return format!("t{name}");
        }
        let name = self.terminal_count;
        self.terminals[number] = Some(name);
        self.terminal_count += 1;
        self.symbols += 1;
        let mut pattern = String::new();
        write_pattern(&mut pattern, &self.plan.terminals[number]);
        self.lines.push(format!("t{name}: /{pattern}/\n"));
        format!("t{name}")
    }
}

/// Writes a pure expression as a regular expression.
fn write_pattern(pattern: &mut String, expr: &Expr) {
    match expr {
        Expr::Set(set) => write_set(pattern, set),
        Expr::Seq(parts) => {
            for part in parts {
                write_pattern(pattern, part);
            }
        }
        Expr::Alt(parts) => {
            for (index, part) in parts.iter().enumerate() {
                pattern.push_str(if index == 0 { "(?:" } else { "|" });
                write_pattern(pattern, part);
            }
            pattern.push(')');
        }
        Expr::Repeat(body, least, most) => {
            let is_group = matches!(**body, Expr::Seq(_) | Expr::Repeat(..));
            pattern.push_str(if is_group { "(?:" } else { "" });
            write_pattern(pattern, body);
            pattern.push_str(if is_group { ")" } else { "" });
            match (least, most) {
                (0, None) => pattern.push('*'),
                (1, None) => pattern.push('+'),
                (0, Some(1)) => pattern.push('?'),
                (least, most) => {
                    let most = most.map(|most| most.to_string()).unwrap_or_default();
                    _ = write!(pattern, "{{{least},{most}}}");
                }
            }
        }
        // A terminal is pure.
        Expr::Token(_) | Expr::Rule(_) => {}
    }
}

fn write_set(pattern: &mut String, set: &CharSet) {
    if let [(low, high)] = set.ranges()
        && low == high
    {
        return write_point(pattern, *low);
    }
    pattern.push('[');
    for &(low, high) in set.ranges() {
        write_point(pattern, low);
        if high > low {
            pattern.push('-');
            write_point(pattern, high);
        }
    }
    pattern.push(']');
}

fn write_point(pattern: &mut String, point: u32) {
    match char::from_u32(point) {
        Some(character) if character.is_ascii_alphanumeric() => pattern.push(character),
        _ => _ = write!(pattern, "\\x{{{point:X}}}"),
    }
}
