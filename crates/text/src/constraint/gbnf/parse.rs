//! Reads the text of a grammar into expressions.
//!
//! What is read is what the parser of llama.cpp reads, with three differences. A name may hold an
//! underscore. A line may begin with `|` to go on with the rule before it. A rule that is defined
//! twice, a class that is empty and a range that runs backwards are errors.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::charset::CharSet;
use super::expression::Expr;
use super::source::{Source, is_word};

/// The most that brackets and repetitions may be nested.
const MAX_DEPTH: u64 = 100;
/// The most that nested repetitions may multiply to.
const MAX_REPEAT: u64 = 10_000;

/// A grammar as it was written, with numbers in the place of names.
#[derive(Debug)]
pub(super) struct Grammar {
    pub(super) rules: Vec<Rule>,
    pub(super) root: usize,
}

/// A rule and what it stands for.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) body: Expr,
}

/// Reads a grammar.
///
/// # Errors     a text for the user that names line and column, what was found, what was expected
pub(super) fn parse(text: &str) -> Result<Grammar, String> {
    let mut parser = Parser {
        source: Source::new(text),
        names: HashMap::new(),
        rules: Vec::new(),
    };
    parser.source.skip_space(true);
    while parser.source.peek().is_some() {
        parser.rule()?;
    }
    parser.finish()
}

/// A part of a sequence, with what is needed to keep its size in bounds.
#[derive(Clone)]
struct Part {
    expr: Expr,
    /// What the repetitions in it multiply to.
    times: u64,
    /// How deep brackets and repetitions in it are nested.
    depth: u64,
}

struct Entered {
    name: String,
    /// The place where the name first stood.
    place: usize,
    body: Option<Expr>,
}

struct Parser {
    source: Source,
    names: HashMap<String, usize>,
    rules: Vec<Entered>,
}

impl Parser {
    /// The number of the rule with this name, a new one if it is new.
    fn number(&mut self, name: String, place: usize) -> usize {
        match self.names.entry(name) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let name = entry.key().clone();
                self.rules.push(Entered {
                    name,
                    place,
                    body: None,
                });
                *entry.insert(self.rules.len() - 1)
            }
        }
    }

    fn rule(&mut self) -> Result<(), String> {
        let place = self.source.place();
        let name = self.source.word();
        if name.is_empty() {
            return Err(self.source.unexpected("the name of a rule"));
        }
        let index = self.number(name, place);
        if self.rules[index].body.is_some() {
            let name = &self.rules[index].name;
            return Err(self
                .source
                .error_at(place, &format!("the rule `{name}` is defined twice")));
        }
        self.source.skip_space(false);
        if !self.source.take_all("::=") {
            return Err(self.source.unexpected("`::=` after the name of a rule"));
        }
        self.source.skip_space(true);
        let body = self.alternatives(0)?;
        if !matches!(self.source.peek(), None | Some('\n' | '\r')) {
            return Err(self
                .source
                .unexpected("the next part of the rule or the end of the line"));
        }
        self.source.skip_space(true);
        self.rules[index].body = Some(body.expr);
        Ok(())
    }

    /// Reads sequences with `|` between them. `level` is the number of open brackets.
    fn alternatives(&mut self, level: u64) -> Result<Part, String> {
        let (mut times, mut depth) = (1, level);
        let mut choices = Vec::new();
        loop {
            let sequence = self.sequence(level)?;
            times = times.max(sequence.times);
            depth = depth.max(sequence.depth);
            choices.push(sequence.expr);
            let end = self.source.place();
            self.source.skip_space(true);
            if !self.source.take('|') {
                self.source.go_to(end);
                return Ok(Part {
                    expr: Expr::alt(choices),
                    times,
                    depth,
                });
            }
            self.source.skip_space(true);
        }
    }

    fn sequence(&mut self, level: u64) -> Result<Part, String> {
        let nested = level > 0;
        let mut parts: Vec<Part> = Vec::new();
        while let Some(next) = self.source.peek() {
            if matches!(next, '*' | '+' | '?' | '{') {
                let place = self.source.place();
                let Some(part) = parts.pop() else {
                    return Err(self.source.unexpected("something to repeat before it"));
                };
                let (least, most) = self.repetition()?;
                parts.push(self.repeated(place, part, least, most)?);
            } else {
                let Some(part) = self.item(next, level)? else {
                    break;
                };
                parts.push(part);
            }
            self.source.skip_space(nested);
        }
        let times = parts.iter().map(|part| part.times).max().unwrap_or(1);
        let depth = parts.iter().map(|part| part.depth).max().unwrap_or(level);
        let expr = Expr::seq(parts.into_iter().map(|part| part.expr));
        Ok(Part { expr, times, depth })
    }

    /// Reads one part of a sequence, nothing if none begins here.
    fn item(&mut self, next: char, level: u64) -> Result<Option<Part>, String> {
        let plain = |expr| {
            Ok(Some(Part {
                expr,
                times: 1,
                depth: level,
            }))
        };
        match next {
            '"' => plain(self.literal()?),
            '[' => plain(self.class()?),
            '<' | '!' => plain(self.token()?),
            '.' => {
                self.source.take('.');
                plain(Expr::set(CharSet::all()))
            }
            '(' => {
                let place = self.source.place();
                if level == MAX_DEPTH {
                    return Err(self.too_deep(place));
                }
                self.source.take('(');
                self.source.skip_space(true);
                let inner = self.alternatives(level + 1)?;
                self.source.skip_space(true);
                if !self.source.take(')') {
                    return Err(self.source.unexpected("`)`"));
                }
                Ok(Some(inner))
            }
            next if is_word(next) => {
                let place = self.source.place();
                let name = self.source.word();
                plain(Expr::Rule(self.number(name, place)))
            }
            _ => Ok(None),
        }
    }

    fn too_deep(&self, place: usize) -> String {
        let message = format!("more than {MAX_DEPTH} brackets and repetitions inside each other");
        self.source.error_at(place, &message)
    }

    /// The part repeated, if that is not too often.
    fn repeated(
        &self,
        place: usize,
        part: Part,
        least: u64,
        most: Option<u64>,
    ) -> Result<Part, String> {
        if let Some(most) = most.filter(|most| *most < least) {
            let message = format!("the repetition goes from {least} down to {most}");
            return Err(self.source.error_at(place, &message));
        }
        let times = most.unwrap_or(least).max(1).saturating_mul(part.times);
        let (Ok(low), Ok(high), true) = (
            u32::try_from(least),
            most.map(u32::try_from).transpose(),
            times <= MAX_REPEAT,
        ) else {
            let message = format!("repetitions multiply to {times}, at most {MAX_REPEAT} can be");
            return Err(self.source.error_at(place, &message));
        };
        if part.depth >= MAX_DEPTH {
            return Err(self.too_deep(place));
        }
        Ok(Part {
            expr: Expr::repeat(part.expr, low, high),
            times,
            depth: part.depth + 1,
        })
    }

    /// Reads `*`, `+`, `?`, `{m}`, `{m,}` or `{m,n}`.
    fn repetition(&mut self) -> Result<(u64, Option<u64>), String> {
        for (mark, bounds) in [('*', (0, None)), ('+', (1, None)), ('?', (0, Some(1)))] {
            if self.source.take(mark) {
                return Ok(bounds);
            }
        }
        self.source.take('{');
        self.source.skip_space(true);
        let Some(least) = self.source.number() else {
            return Err(self.source.unexpected("a number after `{`"));
        };
        self.source.skip_space(true);
        let mut most = Some(least);
        let mut expected = "`,` or `}`";
        if self.source.take(',') {
            self.source.skip_space(true);
            most = self.source.number();
            expected = if most.is_some() {
                "`}`"
            } else {
                "a number or `}`"
            };
            self.source.skip_space(true);
        }
        if !self.source.take('}') {
            return Err(self.source.unexpected(expected));
        }
        Ok((least, most))
    }

    fn literal(&mut self) -> Result<Expr, String> {
        let start = self.source.place();
        self.source.take('"');
        let mut parts = Vec::new();
        while !self.source.take('"') {
            let place = self.source.place();
            let Some(point) = self.source.character()? else {
                return Err(self
                    .source
                    .error_at(start, "the text that begins here has no `\"`"));
            };
            let Some(character) = char::from_u32(point) else {
                let message = format!("U+{point:04X} is not a character");
                return Err(self.source.error_at(place, &message));
            };
            parts.push(Expr::set(CharSet::one(character)));
        }
        Ok(Expr::seq(parts))
    }

    fn class(&mut self) -> Result<Expr, String> {
        let start = self.source.place();
        self.source.take('[');
        let negated = self.source.take('^');
        let mut ranges = Vec::new();
        while !self.source.take(']') {
            let place = self.source.place();
            let low = self.source.character()?;
            let mut high = low;
            if self.source.peek() == Some('-') && self.source.peek_second() != Some(']') {
                self.source.take('-');
                high = self.source.character()?;
            }
            let (Some(low), Some(high)) = (low, high) else {
                return Err(self
                    .source
                    .error_at(start, "the class that begins here has no `]`"));
            };
            if low > high {
                let message = format!("the range goes from U+{low:04X} down to U+{high:04X}");
                return Err(self.source.error_at(place, &message));
            }
            ranges.push((low, high));
        }
        if ranges.is_empty() {
            let message = "the class is empty; write `\\]` for a `]` in a class";
            return Err(self.source.error_at(start, message));
        }
        let set = CharSet::new(ranges);
        Ok(Expr::set(if negated { set.complement() } else { set }))
    }

    /// Reads `<name>`, `<[id]>` or `!<[id]>`.
    fn token(&mut self) -> Result<Expr, String> {
        let start = self.source.place();
        let negated = self.source.take('!');
        if !self.source.take('<') {
            return Err(self.source.unexpected("`<` and a token after `!`"));
        }
        if self.source.take('[') {
            let Some(id) = self.source.number() else {
                return Err(self.source.unexpected("the number of a token after `<[`"));
            };
            let Ok(id) = u32::try_from(id) else {
                return Err(self
                    .source
                    .error_at(start, &format!("there is no token {id}")));
            };
            if !self.source.take_all("]>") {
                return Err(self.source.unexpected("`]>` after the number of a token"));
            }
            let mark = if negated { "^" } else { "" };
            return Ok(Expr::Token(format!("<[{mark}{id}]>").into()));
        }
        let mut name = String::new();
        while !self.source.take('>') {
            match self.source.peek() {
                Some(next) if next != '<' && !next.is_whitespace() => name.push(next),
                _ => return Err(self.source.unexpected("`>` after the name of a token")),
            }
            self.source.advance();
        }
        if name.is_empty() {
            return Err(self
                .source
                .error_at(start, "the name of a token is missing"));
        }
        if negated {
            let message = format!("`!<{name}>` is not supported, only `!<[id]>` with a number is");
            return Err(self.source.error_at(start, &message));
        }
        Ok(Expr::Token(format!("<{name}>").into()))
    }

    fn finish(self) -> Result<Grammar, String> {
        let mut rules = Vec::with_capacity(self.rules.len());
        for Entered { name, place, body } in self.rules {
            let Some(body) = body else {
                let message = format!("the rule `{name}` is used here but nowhere defined");
                return Err(self.source.error_at(place, &message));
            };
            rules.push(Rule { name, body });
        }
        match self.names.get("root") {
            Some(&root) => Ok(Grammar { rules, root }),
            None => Err("the grammar has no rule `root`, with which it would begin".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let Err(error) = parse(text) else {
            panic!("{text:?} was accepted")
        };
        assert_eq!(error, expected, "{text:?}");
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "it is a table")]
    fn errors_name_the_place_what_was_found_and_what_is_expected() {
        check(
            "",
            "the grammar has no rule `root`, with which it would begin",
        );
        check(
            "a ::= \"x\"",
            "the grammar has no rule `root`, with which it would begin",
        );
        for (text, expected) in [
            (
                "root",
                "line 1, column 5: found the end, expected `::=` after the name of a rule",
            ),
            (
                "# x\n ::= \"a\"",
                "line 2, column 2: found `:`, expected the name of a rule",
            ),
            (
                "root ::= \"a\" )\n",
                "line 1, column 14: found `)`, expected the next part of the rule or the end of \
                 the line",
            ),
            (
                "root ::= (\"a\"\n",
                "line 2, column 1: found the end, expected `)`",
            ),
            (
                "root ::= *",
                "line 1, column 10: found `*`, expected something to repeat before it",
            ),
            (
                "root ::= \"a\"{,3}",
                "line 1, column 14: found `,`, expected a number after `{`",
            ),
            (
                "root ::= \"a\"{2;3}",
                "line 1, column 15: found `;`, expected `,` or `}`",
            ),
            (
                "root ::= \"a\"{2,x}",
                "line 1, column 16: found `x`, expected a number or `}`",
            ),
            (
                "root ::= \"a\"{3,2}",
                "line 1, column 13: the repetition goes from 3 down to 2",
            ),
            (
                "root ::= (\"a\"{200} \"b\"){51}",
                "line 1, column 24: repetitions multiply to 10200, at most 10000 can be",
            ),
            (
                "root ::= \"a\"{99999999999999999999999,}",
                "line 1, column 13: repetitions multiply to 18446744073709551615, at most 10000 \
                 can be",
            ),
            (
                "root ::= \"ab",
                "line 1, column 10: the text that begins here has no `\"`",
            ),
            (
                "root ::= [ab",
                "line 1, column 10: the class that begins here has no `]`",
            ),
            (
                "root ::= [a-",
                "line 1, column 10: the class that begins here has no `]`",
            ),
            (
                "root ::= []",
                "line 1, column 10: the class is empty; write `\\]` for a `]` in a class",
            ),
            (
                "root ::= [z-a]",
                "line 1, column 11: the range goes from U+007A down to U+0061",
            ),
            (
                "root ::= \"\\d\"",
                "line 1, column 11: found the escape `\\d`, expected one of `\\n`, `\\r`, `\\t`, \
                 `\\\\`, `\\\"`, `\\[`, `\\]`, `\\xHH`, `\\uHHHH`, `\\UHHHHHHHH`",
            ),
            (
                "root ::= \"\\x4\"",
                "line 1, column 11: `\\x` needs 2 hexadecimal digits",
            ),
            (
                "root ::= \"\\uD83D\"",
                "line 1, column 11: U+D83D is not a character",
            ),
            (
                "root ::= a\n",
                "line 1, column 10: the rule `a` is used here but nowhere defined",
            ),
            (
                "root ::= \"a\"\nroot ::= \"b\"",
                "line 2, column 1: the rule `root` is defined twice",
            ),
            (
                "root ::= !<end>",
                "line 1, column 10: `!<end>` is not supported, only `!<[id]>` with a number is",
            ),
            (
                "root ::= <[x]>",
                "line 1, column 12: found `x`, expected the number of a token after `<[`",
            ),
            (
                "root ::= <[4294967296]>",
                "line 1, column 10: there is no token 4294967296",
            ),
            (
                "root ::= <a b>",
                "line 1, column 12: found ` `, expected `>` after the name of a token",
            ),
            (
                "root ::= !x",
                "line 1, column 11: found `x`, expected `<` and a token after `!`",
            ),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn nesting_has_an_end() {
        let brackets = |count: usize| {
            parse(&format!(
                "root ::= {}\"a\"{}",
                "(".repeat(count),
                ")".repeat(count)
            ))
        };
        assert!(brackets(100).is_ok());
        let error = brackets(101).err();
        let expected =
            "line 1, column 110: more than 100 brackets and repetitions inside each other";
        assert_eq!(error.as_deref(), Some(expected));
        assert!(parse(&format!("root ::= \"a\"{}", "{2,3}".repeat(60_000))).is_err());
        assert!(parse(&format!("root ::= \"a\"{}", "*".repeat(60_000))).is_err());
    }

    #[test]
    fn everything_llama_cpp_knows_is_read() {
        for (text, expected) in [
            ("root ::=\r\n  \"a\" # note\r\n", "root ::= \"a\""),
            ("root ::= \"a\" |\n # note\n \"b\"", "root ::= [ab]"),
            (
                "root ::= \"a\"\n  | \"b\"\n\n | # note\n \"c\"",
                "root ::= [abc]",
            ),
            ("root ::= (\n\"a\"\n\"b\"\n)", "root ::= \"ab\""),
            (
                "root ::= [a-c\\]\\x41\\u0042\\U00000043-]",
                "root ::= [-A-C\\]a-c]",
            ),
            ("root ::= [^\\uD800-\\uDFFF]", "root ::= ."),
            (
                "root ::= \"a\"{2} \"b\"{ 1 , } \"c\"{0,3}",
                "root ::= \"a\"{2,2} \"b\"+ \"c\"{0,3}",
            ),
            ("root ::= \"ab\"*", "root ::= (\"a\" \"b\")*"),
            ("root ::= | \"a\"", "root ::= \"\" | \"a\""),
            (
                "root ::= \"\\t\\r\\n\\\\\\\"\\[\\]\"",
                "root ::= [\\t][\\r][\\n][\\\\][\\\"][\\[][\\]]",
            ),
            (
                "  # note\n\nroot ::= 1_a-B\n1_a-B ::= \"x\"",
                "root ::= q\nq ::= \"x\"",
            ),
            (
                "root ::= <[7]> !<[8]> <end>",
                "root ::= (<[7]>) (!<[8]>) (<end>)",
            ),
            ("root ::= ((\"a\"*)*)*", "root ::= \"a\"*"),
        ] {
            let bodies = |text: &str| -> Vec<Expr> {
                parse(text)
                    .unwrap()
                    .rules
                    .into_iter()
                    .map(|rule| rule.body)
                    .collect()
            };
            assert_eq!(bodies(text), bodies(expected), "{text:?}");
        }
    }
}
