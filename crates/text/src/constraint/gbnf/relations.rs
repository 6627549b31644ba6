//! Which leaves of a grammar can follow each other, and which can begin at one place.
//!
//! A rule is looked at once for all places that mention it. So what is found can be too much, but
//! never too little.

use super::automaton::Budget;

/// A body of a rule whose leaves are numbered through the whole grammar.
#[derive(Debug)]
pub(super) enum Shape {
    Leaf(usize),
    Rule(usize),
    /// One after the other. The empty sequence is the empty text.
    Seq(Vec<Shape>),
    Alt(Vec<Shape>),
    Repeat(Box<Shape>, u32, Option<u32>),
}

impl Shape {
    /// One after the other, with the parts of sequences inside taken out of them.
    pub(super) fn seq(parts: impl Iterator<Item = Self>) -> Self {
        let mut flat = Vec::new();
        for part in parts {
            match part {
                Self::Seq(inner) => flat.extend(inner),
                part => flat.push(part),
            }
        }
        Self::Seq(flat)
    }

    /// One of several, with the choices inside taken out of them.
    pub(super) fn alt(parts: impl Iterator<Item = Self>) -> Self {
        let mut flat = Vec::new();
        for part in parts {
            match part {
                Self::Alt(inner) => flat.extend(inner),
                part => flat.push(part),
            }
        }
        Self::Alt(flat)
    }
}

/// A set of leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaves(Vec<u64>);

impl Leaves {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn add(&mut self, leaf: usize) {
        self.0[leaf / 64] |= 1 << (leaf % 64);
    }

    /// Adds all leaves of `other`, and returns whether one of them is new.
    fn add_all(&mut self, other: &Self) -> bool {
        let mut is_new = false;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            is_new |= theirs & !*mine != 0;
            *mine |= theirs;
        }
        is_new
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = usize::try_from(rest.trailing_zeros())
                    .ok()
                    .filter(|bit| *bit < 64)?;
                rest &= rest - 1;
                Some(64 * index + bit)
            })
        })
    }
}

/// Where a part of a grammar can begin and end.
#[derive(Clone, PartialEq, Eq)]
struct Ends {
    nullable: bool,
    first: Leaves,
    last: Leaves,
}

/// The leaves that can follow each leaf, and those with which a text can begin.
pub(super) struct Relations {
    pub(super) follow: Vec<Leaves>,
    start: Leaves,
}

impl Relations {
    /// Looks at a grammar that begins with the rule `root` and has `count` leaves.
    ///
    /// Returns nothing when the budget is spent.
    pub(super) fn new(
        shapes: &[Shape],
        root: usize,
        count: usize,
        budget: &mut Budget,
    ) -> Option<Self> {
        let none = Ends {
            nullable: false,
            first: Leaves::new(count),
            last: Leaves::new(count),
        };
        let mut finder = Finder {
            rules: vec![none; shapes.len()],
            follow: None,
            count,
            budget,
        };
        let mut users = vec![Vec::new(); shapes.len()];
        for (user, shape) in shapes.iter().enumerate() {
            each_rule(shape, &mut |used| users[used].push(user));
        }
        let mut waiting: Vec<usize> = (0..shapes.len()).collect();
        let mut is_waiting = vec![true; shapes.len()];
        while let Some(index) = waiting.pop() {
            is_waiting[index] = false;
            let ends = finder.ends(&shapes[index])?;
            if finder.rules[index] != ends {
                finder.rules[index] = ends;
                for &user in &users[index] {
                    if !std::mem::replace(&mut is_waiting[user], true) {
                        waiting.push(user);
                    }
                }
            }
        }
        finder.follow = Some(vec![Leaves::new(count); count]);
        for shape in shapes {
            finder.ends(shape)?;
        }
        let start = finder.rules[root].first.clone();
        Some(Self {
            follow: finder.follow?,
            start,
        })
    }

    /// For each leaf, the leaves that can begin where it begins.
    ///
    /// `shared` tells whether two leaves can stand for the same text. Returns nothing when the
    /// budget is spent.
    pub(super) fn together(
        &self,
        mut shared: impl FnMut(usize, usize, &mut Budget) -> bool,
        budget: &mut Budget,
    ) -> Option<Vec<Leaves>> {
        let count = self.follow.len();
        let words = count.div_ceil(64);
        let mut together = vec![Leaves::new(count); count];
        let mut waiting: Vec<usize> = self.start.iter().collect();
        let mut is_waiting = vec![false; count];
        for &leaf in &waiting {
            together[leaf].add_all(&self.start);
            is_waiting[leaf] = true;
        }
        while let Some(leaf) = waiting.pop() {
            is_waiting[leaf] = false;
            budget.spend(words)?;
            // What can begin where something begins that follows `leaf`.
            let mut after = Leaves::new(count);
            for other in together[leaf].iter() {
                budget.spend(words + 5)?;
                if shared(leaf, other, budget) {
                    after.add_all(&self.follow[other]);
                }
            }
            for next in self.follow[leaf].iter() {
                budget.spend(words)?;
                if together[next].add_all(&after) && !std::mem::replace(&mut is_waiting[next], true)
                {
                    waiting.push(next);
                }
            }
        }
        Some(together)
    }
}

fn each_rule(shape: &Shape, visit: &mut impl FnMut(usize)) {
    match shape {
        Shape::Leaf(_) => {}
        Shape::Rule(index) => visit(*index),
        Shape::Seq(parts) | Shape::Alt(parts) => {
            for part in parts {
                each_rule(part, visit);
            }
        }
        Shape::Repeat(body, ..) => each_rule(body, visit),
    }
}

struct Finder<'a> {
    rules: Vec<Ends>,
    /// What follows each leaf, once the ends of all rules are known.
    follow: Option<Vec<Leaves>>,
    count: usize,
    budget: &'a mut Budget,
}

impl Finder<'_> {
    /// Where a shape can begin and end. Notes what follows what inside of it.
    fn ends(&mut self, shape: &Shape) -> Option<Ends> {
        self.budget.spend(4 * self.count.div_ceil(64) + 10)?;
        let mut ends = Ends {
            nullable: false,
            first: Leaves::new(self.count),
            last: Leaves::new(self.count),
        };
        match shape {
            Shape::Leaf(leaf) => {
                ends.first.add(*leaf);
                ends.last.add(*leaf);
            }
            Shape::Rule(index) => ends = self.rules[*index].clone(),
            Shape::Seq(parts) => {
                ends.nullable = true;
                for part in parts.iter().rev() {
                    let part = self.ends(part)?;
                    self.link(&part.last, &ends.first)?;
                    if ends.nullable {
                        ends.last.add_all(&part.last);
                    }
                    if part.nullable {
                        ends.first.add_all(&part.first);
                    } else {
                        ends.first = part.first;
                    }
                    ends.nullable &= part.nullable;
                }
            }
            Shape::Alt(parts) => {
                for part in parts {
                    let part = self.ends(part)?;
                    ends.nullable |= part.nullable;
                    ends.first.add_all(&part.first);
                    ends.last.add_all(&part.last);
                }
            }
            Shape::Repeat(body, least, most) => {
                ends = self.ends(body)?;
                ends.nullable |= *least == 0;
                if *most != Some(1) {
                    self.link(&ends.last, &ends.first)?;
                }
            }
        }
        Some(ends)
    }

    fn link(&mut self, last: &Leaves, next: &Leaves) -> Option<()> {
        let Some(follow) = &mut self.follow else {
            return Some(());
        };
        for leaf in last.iter() {
            self.budget.spend(next.0.len())?;
            follow[leaf].add_all(next);
        }
        Some(())
    }
}
