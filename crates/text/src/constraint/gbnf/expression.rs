//! The expressions of a grammar, kept in a simple form.
//!
//! The functions that build an expression leave out what is empty and join choices, so that equal
//! expressions are mostly written alike. No function here goes deeper than the expression itself, whose depth
//! its maker bounds.

use std::rc::Rc;

use super::charset::{ByteSet, CharSet};

/// What a rule, or a part of one, can stand for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Expr {
    /// One character out of a set that is not empty.
    Set(Rc<CharSet>),
    /// A token of the vocabulary, spelled as llguidance spells it.
    Token(Rc<str>),
    /// The rule with this number.
    Rule(usize),
    /// One after the other. The empty sequence is the empty text.
    Seq(Vec<Expr>),
    /// One of several. The empty choice matches nothing at all.
    Alt(Vec<Expr>),
    /// At least `.1` and at most `.2` times the same.
    Repeat(Rc<Expr>, u32, Option<u32>),
}

impl Expr {
    pub(super) const EMPTY: Self = Self::Seq(Vec::new());
    pub(super) const NOTHING: Self = Self::Alt(Vec::new());

    pub(super) fn set(set: CharSet) -> Self {
        if set.is_empty() {
            Self::NOTHING
        } else {
            Self::Set(Rc::new(set))
        }
    }

    pub(super) fn is_empty_text(&self) -> bool {
        matches!(self, Self::Seq(parts) if parts.is_empty())
    }

    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::Alt(parts) if parts.is_empty())
    }

    /// One after the other. A sequence inside stays what it is, for where a rule or a text ends is
    /// a good place to split.
    pub(super) fn seq(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut kept = Vec::new();
        for part in parts {
            if part.is_nothing() {
                return part;
            }
            if !part.is_empty_text() {
                kept.push(part);
            }
        }
        if kept.len() == 1 {
            kept.remove(0)
        } else {
            Self::Seq(kept)
        }
    }

    /// One of `parts`. All sets among them become one set.
    pub(super) fn alt(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut flat = Vec::new();
        let mut ranges = Vec::new();
        let mut place = None;
        let mut stack: Vec<Self> = parts.into_iter().collect();
        stack.reverse();
        let mut has_empty = false;
        while let Some(part) = stack.pop() {
            match part {
                Self::Alt(inner) => stack.extend(inner.into_iter().rev()),
                Self::Set(set) => {
                    ranges.extend_from_slice(set.ranges());
                    place.get_or_insert(flat.len());
                }
                part if part.is_empty_text() => {
                    if !has_empty {
                        flat.push(part);
                    }
                    has_empty = true;
                }
                part => flat.push(part),
            }
        }
        if let Some(place) = place {
            flat.insert(place, Self::set(CharSet::new(ranges)));
        }
        if flat.len() == 1 {
            flat.remove(0)
        } else {
            Self::Alt(flat)
        }
    }

    pub(super) fn repeat(body: Self, least: u32, most: Option<u32>) -> Self {
        if most == Some(0) || body.is_empty_text() {
            return Self::EMPTY;
        }
        if body.is_nothing() {
            return if least == 0 {
                Self::EMPTY
            } else {
                Self::NOTHING
            };
        }
        match (body, least, most) {
            (body, 1, Some(1)) => body,
            // (x*)*, (x?)+ and the like are x*, and (x+)+ is x+.
            (Self::Repeat(inner, 0, None), _, _)
            | (Self::Repeat(inner, 0, Some(1)), 0 | 1, None) => Self::Repeat(inner, 0, None),
            (Self::Repeat(inner, 1, None), 0 | 1, _) => Self::Repeat(inner, least, None),
            (body, least, most) => Self::Repeat(Rc::new(body), least, most),
        }
    }

    /// Whether the expression can be the empty text. `rule` answers for the rules in it.
    pub(super) fn is_nullable(&self, rule: &impl Fn(usize) -> bool) -> bool {
        match self {
            Self::Set(_) | Self::Token(_) => false,
            Self::Rule(index) => rule(*index),
            Self::Seq(parts) => parts.iter().all(|part| part.is_nullable(rule)),
            Self::Alt(parts) => parts.iter().any(|part| part.is_nullable(rule)),
            Self::Repeat(body, least, _) => *least == 0 || body.is_nullable(rule),
        }
    }

    /// Whether characters alone decide it: no rule and no token is in it.
    pub(super) fn is_pure(&self) -> bool {
        match self {
            Self::Set(_) => true,
            Self::Token(_) | Self::Rule(_) => false,
            Self::Seq(parts) | Self::Alt(parts) => parts.iter().all(Self::is_pure),
            Self::Repeat(body, ..) => body.is_pure(),
        }
    }

    /// The number of nodes, and how deep they are nested.
    pub(super) fn size_and_depth(&self) -> (usize, usize) {
        match self {
            Self::Set(_) | Self::Token(_) | Self::Rule(_) => (1, 1),
            Self::Seq(parts) | Self::Alt(parts) => {
                let (size, depth) = parts.iter().map(Self::size_and_depth).fold(
                    (0, 0),
                    |(size, depth), (part_size, part_depth)| {
                        (size + part_size, depth.max(part_depth))
                    },
                );
                (size + 1, depth + 1)
            }
            Self::Repeat(body, ..) => {
                let (size, depth) = body.size_and_depth();
                (size + 1, depth + 1)
            }
        }
    }

    /// Calls `visit` with every rule that is mentioned, as often as it is.
    pub(super) fn each_rule(&self, visit: &mut impl FnMut(usize)) {
        match self {
            Self::Set(_) | Self::Token(_) => {}
            Self::Rule(index) => visit(*index),
            Self::Seq(parts) | Self::Alt(parts) => {
                for part in parts {
                    part.each_rule(visit);
                }
            }
            Self::Repeat(body, ..) => body.each_rule(visit),
        }
    }

    /// Puts what `replace` answers in the place of every rule.
    pub(super) fn map_rules(&self, replace: &mut impl FnMut(usize) -> Self) -> Self {
        match self {
            Self::Set(_) | Self::Token(_) => self.clone(),
            Self::Rule(index) => replace(*index),
            Self::Seq(parts) => Self::seq(parts.iter().map(|part| part.map_rules(replace))),
            Self::Alt(parts) => Self::alt(parts.iter().map(|part| part.map_rules(replace))),
            Self::Repeat(body, least, most) => Self::repeat(body.map_rules(replace), *least, *most),
        }
    }

    /// What a pure expression can be other than the empty text.
    ///
    /// Returns nothing if that would need more than `room` nodes.
    pub(super) fn without_empty_text(&self, room: usize) -> Option<Self> {
        if !self.is_nullable(&|_| false) {
            return Some(self.clone());
        }
        Some(match self {
            Self::Alt(parts) => {
                let mut kept = Vec::with_capacity(parts.len());
                for part in parts {
                    kept.push(part.without_empty_text(room)?);
                }
                Self::alt(kept)
            }
            Self::Seq(parts) => {
                // The first part that is not empty decides the choice.
                let size: usize = parts.iter().map(|part| part.size_and_depth().0).sum();
                let room = room.checked_sub(size * parts.len())?;
                let mut choices = Vec::with_capacity(parts.len());
                for (index, part) in parts.iter().enumerate() {
                    let head = part.without_empty_text(room)?;
                    let tail = parts[index + 1..].iter().cloned();
                    choices.push(Self::seq(std::iter::once(head).chain(tail)));
                }
                Self::alt(choices)
            }
            Self::Repeat(body, _, most) => Self::repeat(body.without_empty_text(room)?, 1, *most),
            Self::Set(_) | Self::Token(_) | Self::Rule(_) => self.clone(),
        })
    }

    /// The bytes with which a text of a pure expression can begin.
    pub(super) fn first_bytes(&self) -> ByteSet {
        let mut bytes = ByteSet::default();
        match self {
            Self::Set(set) => {
                for &(low, high) in set.ranges() {
                    bytes.add_leads(low, high);
                }
            }
            Self::Token(_) | Self::Rule(_) => {}
            Self::Seq(parts) => {
                for part in parts {
                    bytes.add_all(part.first_bytes());
                    if !part.is_nullable(&|_| false) {
                        break;
                    }
                }
            }
            Self::Alt(parts) => {
                for part in parts {
                    bytes.add_all(part.first_bytes());
                }
            }
            Self::Repeat(body, ..) => bytes = body.first_bytes(),
        }
        bytes
    }
}
