//! Chooses the terminals of a grammar.
//!
//! The lexer of llguidance takes the longest text that a terminal matches, and follows every
//! terminal that matches this text. A grammar of characters knows no such thing. So a terminal may
//! only stand where it makes no difference: wherever a text of the terminal `a` can end and the
//! byte `b` can come next, no terminal `c` that could begin where `a` began may go on with `b`.
//! Then the lexer stops after that text, with `a` among the terminals that it follows. This holds
//! for `c = a` too, and it always holds if every terminal is one character long.
//!
//! The chooser begins with the longest terminals and splits those that break the rule. Where they
//! are too large or too many to look at, it falls back to terminals of one character.

use std::collections::HashMap;
use std::rc::Rc;

use super::automaton::{Automaton, Budget, Overlap};
use super::charset::ByteSet;
use super::expression::Expr;
use super::parse::Grammar;
use super::reduce::{MAX_TERMINAL, MAX_TERMINAL_DEPTH};
use super::relations::{Relations, Shape};

/// The most leaves that are looked at for terminals longer than a character.
const MAX_LEAVES: usize = 4_096;
/// The work that is done to find terminals longer than a character.
pub(super) const BUDGET: usize = 60_000_000;

/// The work of looking at one node of an expression.
const COST: usize = 50;

/// What a leaf of a [`Shape`] stands for.
#[derive(Clone, Debug)]
pub(super) enum Leaf {
    /// The terminal with this number.
    Terminal(usize),
    /// A token of the vocabulary, spelled as llguidance spells it.
    Token(Rc<str>),
}

/// A grammar whose terminals are chosen.
pub(super) struct Plan {
    /// The bodies of the rules, in the order of the grammar.
    pub(super) shapes: Vec<Shape>,
    pub(super) leaves: Vec<Leaf>,
    /// The terminals. None of them matches the empty text.
    pub(super) terminals: Vec<Expr>,
}

/// Chooses the terminals of a grammar, with no more work than `budget` to find long ones.
pub(super) fn choose(grammar: &Grammar, budget: usize) -> Plan {
    let root = &grammar.rules[grammar.root].body;
    let (size, depth) = root.size_and_depth();
    let mut chooser = Chooser {
        numbers: HashMap::new(),
        terminals: Vec::new(),
        leaves: Vec::new(),
        overlaps: HashMap::new(),
        budget: Budget(budget),
        mode: Mode::Long,
    };
    // Nothing follows a terminal that is the whole grammar, so the longest text is right.
    if root.is_pure() && size <= MAX_TERMINAL && depth <= MAX_TERMINAL_DEPTH {
        chooser.mode = if budget == 0 {
            Mode::Character
        } else {
            Mode::Whole
        };
    }
    loop {
        chooser.leaves.clear();
        let shapes: Vec<Shape> = grammar
            .rules
            .iter()
            .map(|rule| chooser.shape(&rule.body))
            .collect();
        if chooser.mode == Mode::Long {
            match chooser.find_unsafe(&shapes, grammar.root) {
                Some(broken) if broken.is_empty() => {}
                Some(broken) => {
                    for number in broken {
                        chooser.terminals[number].split = true;
                    }
                    continue;
                }
                None => {
                    chooser.mode = Mode::Character;
                    continue;
                }
            }
        }
        let terminals = chooser
            .terminals
            .into_iter()
            .map(|terminal| terminal.expr)
            .collect();
        return Plan {
            shapes,
            leaves: chooser.leaves,
            terminals,
        };
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The whole grammar is one terminal.
    Whole,
    /// Terminals are as long as they can be.
    Long,
    /// Terminals are one character long.
    Character,
}

/// A terminal, or what was thought to be one.
struct Terminal {
    expr: Expr,
    first: ByteSet,
    automaton: Option<Automaton>,
    /// Whether it must be made of smaller terminals.
    split: bool,
}

struct Chooser {
    numbers: HashMap<Expr, usize>,
    terminals: Vec<Terminal>,
    leaves: Vec<Leaf>,
    overlaps: HashMap<(usize, usize), Overlap>,
    budget: Budget,
    mode: Mode,
}

impl Chooser {
    fn leaf(&mut self, leaf: Leaf) -> Shape {
        self.leaves.push(leaf);
        Shape::Leaf(self.leaves.len() - 1)
    }

    fn shape(&mut self, expr: &Expr) -> Shape {
        match expr {
            Expr::Rule(index) => Shape::Rule(*index),
            Expr::Token(token) => self.leaf(Leaf::Token(token.clone())),
            expr if expr.is_empty_text() => Shape::Seq(Vec::new()),
            expr if expr.is_pure() => self.pure_shape(expr),
            Expr::Seq(parts) => {
                let runs = parts.chunk_by(|one, two| one.is_pure() && two.is_pure());
                let runs = runs.map(|run| self.shape(&Expr::seq(run.iter().cloned())));
                Shape::seq(runs)
            }
            Expr::Alt(parts) => {
                let (pure, mixed): (Vec<&Expr>, Vec<&Expr>) =
                    parts.iter().partition(|part| part.is_pure());
                let pure = (!pure.is_empty()).then(|| Expr::alt(pure.into_iter().cloned()));
                let choices = pure.iter().chain(mixed).map(|part| self.shape(part));
                Shape::alt(choices)
            }
            Expr::Repeat(body, least, most) => {
                Shape::Repeat(Box::new(self.shape(body)), *least, *most)
            }
            Expr::Set(_) => self.pure_shape(expr),
        }
    }

    /// The shape of a pure expression: a terminal or several.
    fn pure_shape(&mut self, expr: &Expr) -> Shape {
        if self.mode != Mode::Character
            && let Some(number) = self.terminal(expr)
        {
            let leaf = self.leaf(Leaf::Terminal(number));
            return if expr.is_nullable(&|_| false) {
                Shape::Repeat(Box::new(leaf), 0, Some(1))
            } else {
                leaf
            };
        }
        match expr {
            // One half after the other, so that few splits find a part that is to blame.
            Expr::Seq(parts) if self.mode == Mode::Long => {
                let (left, right) = parts.split_at(parts.len() / 2);
                let halves = [left, right].map(|half| Expr::seq(half.iter().cloned()));
                Shape::seq(halves.iter().map(|half| self.shape(half)))
            }
            Expr::Alt(parts) if self.mode == Mode::Long => {
                let (left, right) = parts.split_at(parts.len() / 2);
                let halves = [left, right].map(|half| Expr::alt(half.iter().cloned()));
                Shape::alt(halves.iter().map(|half| self.shape(half)))
            }
            Expr::Seq(parts) => Shape::seq(parts.iter().map(|part| self.shape(part))),
            Expr::Alt(parts) => Shape::alt(parts.iter().map(|part| self.shape(part))),
            Expr::Repeat(body, least, most) => {
                Shape::Repeat(Box::new(self.shape(body)), *least, *most)
            }
            // A set is always a terminal, and nothing else that is left is pure.
            Expr::Set(_) | Expr::Token(_) | Expr::Rule(_) => {
                let number = self.number(expr.clone());
                self.leaf(Leaf::Terminal(number))
            }
        }
    }

    /// The number of the terminal for a pure expression without the empty text.
    ///
    /// Returns nothing if the expression must be split.
    fn terminal(&mut self, expr: &Expr) -> Option<usize> {
        let fits = |(size, depth)| size <= MAX_TERMINAL && depth <= MAX_TERMINAL_DEPTH;
        let (size, depth) = expr.size_and_depth();
        if !fits((size, depth)) {
            return None;
        }
        if self.mode == Mode::Long {
            self.budget.spend(COST * size)?;
        }
        let expr = expr.without_empty_text(MAX_TERMINAL)?;
        if !fits(expr.size_and_depth()) {
            return None;
        }
        let number = self.number(expr);
        (!self.terminals[number].split).then_some(number)
    }

    /// The number of the terminal for an expression, a new one if it is new.
    fn number(&mut self, expr: Expr) -> usize {
        if let Some(&number) = self.numbers.get(&expr) {
            return number;
        }
        let number = self.terminals.len();
        let automaton = match self.mode {
            Mode::Long => Automaton::new(&expr, &mut self.budget),
            Mode::Whole | Mode::Character => None,
        };
        let is_set = matches!(expr, Expr::Set(_));
        let split = self.mode == Mode::Long && automaton.is_none() && !is_set;
        let first = expr.first_bytes();
        self.numbers.insert(expr.clone(), number);
        self.terminals.push(Terminal {
            expr,
            first,
            automaton,
            split,
        });
        number
    }

    /// The terminals that must be split, nothing if there is too much to look at.
    fn find_unsafe(&mut self, shapes: &[Shape], root: usize) -> Option<Vec<usize>> {
        if self.leaves.len() > MAX_LEAVES {
            return None;
        }
        let Self {
            terminals,
            leaves,
            overlaps,
            budget,
            ..
        } = self;
        let relations = Relations::new(shapes, root, leaves.len(), budget)?;
        let shared =
            |one: usize, two: usize, budget: &mut Budget| match (&leaves[one], &leaves[two]) {
                (Leaf::Terminal(one), Leaf::Terminal(two)) => {
                    overlap(terminals, overlaps, (*one, *two), budget).shared
                }
                (Leaf::Token(_), Leaf::Token(_)) => true,
                _ => false,
            };
        let together = relations.together(shared, budget)?;
        let mut broken = Vec::new();
        for (leaf, others) in together.iter().enumerate() {
            let Leaf::Terminal(ending) = leaves[leaf] else {
                continue;
            };
            let mut next = ByteSet::NONE;
            for follower in relations.follow[leaf].iter() {
                if let Leaf::Terminal(number) = leaves[follower] {
                    next.add_all(terminals[number].first);
                }
            }
            for other in others.iter() {
                let Leaf::Terminal(going_on) = leaves[other] else {
                    continue;
                };
                let overlap = overlap(terminals, overlaps, (ending, going_on), budget);
                if overlap.after.meets(next) && !matches!(terminals[going_on].expr, Expr::Set(_)) {
                    broken.push(going_on);
                }
            }
            budget.spend(leaves.len())?;
        }
        broken.sort_unstable();
        broken.dedup();
        Some(broken)
    }
}

/// How the texts of two terminals overlap.
fn overlap(
    terminals: &[Terminal],
    known: &mut HashMap<(usize, usize), Overlap>,
    pair: (usize, usize),
    budget: &mut Budget,
) -> Overlap {
    let (one, two) = (&terminals[pair.0], &terminals[pair.1]);
    if !one.first.meets(two.first) {
        return Overlap::NONE;
    }
    *known
        .entry(pair)
        .or_insert_with(|| match (&one.automaton, &two.automaton) {
            (Some(one), Some(_)) if pair.0 == pair.1 => one.overlap_with_itself(),
            (Some(one), Some(two)) => one.overlap(two, budget),
            _ => Overlap::UNKNOWN,
        })
}
