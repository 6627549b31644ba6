//! The text of a grammar, read from left to right.

/// Whether a name of a rule can hold this character.
pub(super) fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

/// A text and the place where reading goes on.
pub(super) struct Source {
    characters: Vec<char>,
    place: usize,
}

impl Source {
    pub(super) fn new(text: &str) -> Self {
        Self {
            characters: text.chars().collect(),
            place: 0,
        }
    }

    pub(super) fn place(&self) -> usize {
        self.place
    }

    pub(super) fn go_to(&mut self, place: usize) {
        self.place = place;
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.characters.get(self.place).copied()
    }

    pub(super) fn peek_second(&self) -> Option<char> {
        self.characters.get(self.place + 1).copied()
    }

    pub(super) fn advance(&mut self) {
        self.place += 1;
    }

    /// Goes past `wanted` if it is next.
    pub(super) fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.place += usize::from(found);
        found
    }

    /// Goes past all of `wanted` if it is next.
    pub(super) fn take_all(&mut self, wanted: &str) -> bool {
        let start = self.place;
        let found = wanted.chars().all(|character| self.take(character));
        if !found {
            self.place = start;
        }
        found
    }

    /// Goes past blanks and comments, and past ends of lines if `lines`.
    pub(super) fn skip_space(&mut self, lines: bool) {
        let mut in_comment = false;
        while let Some(next) = self.peek() {
            match next {
                '\r' | '\n' if lines => in_comment = false,
                '\r' | '\n' => return,
                ' ' | '\t' => {}
                '#' => in_comment = true,
                _ if in_comment => {}
                _ => return,
            }
            self.place += 1;
        }
    }

    /// Reads a name, empty if none is next.
    pub(super) fn word(&mut self) -> String {
        let start = self.place;
        while self.peek().is_some_and(is_word) {
            self.place += 1;
        }
        self.characters[start..self.place].iter().collect()
    }

    /// Reads a number, the largest there is if it is larger.
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = None;
        while let Some(digit) = self.peek().and_then(|next| next.to_digit(10)) {
            let before: u64 = number.unwrap_or(0);
            number = Some(before.saturating_mul(10).saturating_add(digit.into()));
            self.place += 1;
        }
        number
    }

    /// Reads a character or an escape, nothing at the end. It may be no valid character.
    pub(super) fn character(&mut self) -> Result<Option<u32>, String> {
        let start = self.place;
        let Some(first) = self.peek() else {
            return Ok(None);
        };
        self.place += 1;
        if first != '\\' {
            return Ok(Some(first.into()));
        }
        let Some(escape) = self.peek() else {
            return Ok(None);
        };
        self.place += 1;
        let digits = match escape {
            'n' => return Ok(Some('\n'.into())),
            'r' => return Ok(Some('\r'.into())),
            't' => return Ok(Some('\t'.into())),
            '\\' | '"' | '[' | ']' => return Ok(Some(escape.into())),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => {
                let message = format!(
                    "found the escape `\\{}`, expected one of `\\n`, `\\r`, `\\t`, `\\\\`, \
                     `\\\"`, `\\[`, `\\]`, `\\xHH`, `\\uHHHH`, `\\UHHHHHHHH`",
                    escape.escape_debug()
                );
                return Err(self.error_at(start, &message));
            }
        };
        let mut point = 0;
        for _ in 0..digits {
            let Some(digit) = self.peek().and_then(|next| next.to_digit(16)) else {
                let message = format!("`\\{escape}` needs {digits} hexadecimal digits");
                return Err(self.error_at(start, &message));
            };
            point = point << 4 | digit;
            self.place += 1;
        }
        Ok(Some(point))
    }

    /// A message about what is next, where something else is expected.
    pub(super) fn unexpected(&self, expected: &str) -> String {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some('\n' | '\r') => "the end of the line".to_owned(),
            Some('`') => "a backtick".to_owned(),
            Some(next) if next.is_control() => format!("U+{:04X}", u32::from(next)),
            Some(next) => format!("`{next}`"),
        };
        self.error_at(self.place, &format!("found {found}, expected {expected}"))
    }

    /// A message about a place, with its line and column.
    pub(super) fn error_at(&self, place: usize, message: &str) -> String {
        let before = &self.characters[..place.min(self.characters.len())];
        let line = 1 + before
            .iter()
            .filter(|character| **character == '\n')
            .count();
        let column = 1 + before
            .iter()
            .rev()
            .take_while(|character| **character != '\n')
            .count();
        format!("line {line}, column {column}: {message}")
    }
}
