//! Deterministic automata over characters, and how the texts of two of them overlap.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::charset::{ByteSet, CharSet};
use super::expression::Expr;

/// The most nodes of the automaton that is not yet deterministic.
const MAX_NODES: usize = 20_000;
/// The most states of a deterministic automaton.
const MAX_STATES: usize = 4_096;
/// The most pairs of states that are looked at to compare two automata.
const MAX_PAIRS: usize = 20_000;

/// The work that may still be done, in steps of a few nanoseconds.
pub(super) struct Budget(pub(super) usize);

impl Budget {
    /// Takes `steps` away, and returns nothing when there are not that many.
    pub(super) fn spend(&mut self, steps: usize) -> Option<()> {
        let rest = self.0.checked_sub(steps);
        self.0 = rest.unwrap_or(0);
        rest.map(|_| ())
    }
}

/// A deterministic automaton. Its first state is number 0.
///
/// Every state lies on the way to an accepting one.
pub(super) struct Automaton {
    states: Vec<State>,
}

#[derive(Default)]
struct State {
    accepts: bool,
    /// Ranges of characters in ascending order, with the state that each leads to.
    edges: Vec<(u32, u32, usize)>,
    /// The bytes with which a character that leads on can begin.
    leads: ByteSet,
}

/// How the texts of one automaton overlap with those of another.
#[derive(Clone, Copy)]
pub(super) struct Overlap {
    /// Whether a text belongs to both.
    pub(super) shared: bool,
    /// The bytes with which the second can go on after a text of the first.
    pub(super) after: ByteSet,
}

impl Overlap {
    pub(super) const NONE: Self = Self {
        shared: false,
        after: ByteSet::NONE,
    };
    /// What must be assumed of two automata that are too large to compare.
    pub(super) const UNKNOWN: Self = Self {
        shared: true,
        after: ByteSet::ALL,
    };
}

enum Node {
    /// Goes on to another node with a character of the set.
    Set(Rc<CharSet>, usize),
    /// Goes on to other nodes without any character.
    Split(Vec<usize>),
    End,
}

impl Automaton {
    /// The automaton of a pure expression, nothing if it would be too large.
    pub(super) fn new(expr: &Expr, budget: &mut Budget) -> Option<Self> {
        let mut nodes = vec![Node::End];
        let start = add_nodes(&mut nodes, expr, 0)?;
        let mut builder = Builder {
            seen: vec![0; nodes.len()],
            nodes,
            round: 0,
            numbers: HashMap::new(),
            sets: Vec::new(),
        };
        builder.state_of(vec![start], budget)?;
        let mut states = Vec::new();
        while states.len() < builder.sets.len() {
            let state = builder.expand(states.len(), budget)?;
            states.push(state);
        }
        Some(Self { states })
    }

    /// How the texts of this automaton overlap with those of itself.
    pub(super) fn overlap_with_itself(&self) -> Overlap {
        let mut after = ByteSet::NONE;
        for state in self.states.iter().filter(|state| state.accepts) {
            after.add_all(state.leads);
        }
        Overlap {
            shared: true,
            after,
        }
    }

    /// How the texts of this automaton overlap with those of `other`, the empty text left out.
    pub(super) fn overlap(&self, other: &Self, budget: &mut Budget) -> Overlap {
        let mut found = Overlap::NONE;
        let mut pairs = vec![(0, 0)];
        let mut seen = HashMap::from([((0, 0), false)]);
        while let Some((mine, theirs)) = pairs.pop() {
            let (mine, theirs) = (&self.states[mine], &other.states[theirs]);
            let steps = mine.edges.len() + theirs.edges.len();
            if seen.len() > MAX_PAIRS || budget.spend(10 * steps).is_none() {
                return Overlap::UNKNOWN;
            }
            let (mut here, mut there) =
                (mine.edges.iter().peekable(), theirs.edges.iter().peekable());
            while let (Some(a), Some(b)) = (here.peek(), there.peek()) {
                if a.0.max(b.0) <= a.1.min(b.1) && seen.insert((a.2, b.2), true) != Some(true) {
                    let (mine, theirs) = (&self.states[a.2], &other.states[b.2]);
                    if mine.accepts {
                        found.after.add_all(theirs.leads);
                        found.shared |= theirs.accepts;
                    }
                    pairs.push((a.2, b.2));
                }
                if a.1 < b.1 {
                    here.next();
                } else {
                    there.next();
                }
            }
        }
        found
    }
}

/// Adds the nodes of an expression that goes on to the node `next`, and returns where it starts.
fn add_nodes(nodes: &mut Vec<Node>, expr: &Expr, next: usize) -> Option<usize> {
    let node = match expr {
        Expr::Set(set) => Node::Set(set.clone(), next),
        Expr::Seq(parts) => {
            return parts
                .iter()
                .rev()
                .try_fold(next, |next, part| add_nodes(nodes, part, next));
        }
        Expr::Alt(parts) => {
            let starts = parts.iter().map(|part| add_nodes(nodes, part, next));
            Node::Split(starts.collect::<Option<_>>()?)
        }
        Expr::Repeat(body, least, most) => {
            let mut start = next;
            if let Some(most) = most {
                for _ in *least..*most {
                    let body = add_nodes(nodes, body, start)?;
                    start = add_node(nodes, Node::Split(vec![body, next]))?;
                }
            } else {
                start = add_node(nodes, Node::Split(Vec::new()))?;
                let body = add_nodes(nodes, body, start)?;
                nodes[start] = Node::Split(vec![body, next]);
            }
            for _ in 0..*least {
                start = add_nodes(nodes, body, start)?;
            }
            return Some(start);
        }
        Expr::Token(_) | Expr::Rule(_) => return None,
    };
    add_node(nodes, node)
}

fn add_node(nodes: &mut Vec<Node>, node: Node) -> Option<usize> {
    (nodes.len() < MAX_NODES).then(|| {
        nodes.push(node);
        nodes.len() - 1
    })
}

struct Builder {
    nodes: Vec<Node>,
    /// The last round in which each node was reached.
    seen: Vec<usize>,
    round: usize,
    numbers: HashMap<Rc<[usize]>, usize>,
    /// The nodes of each state that wait for a character or are the end.
    sets: Vec<Rc<[usize]>>,
}

impl Builder {
    /// The number of the state that holds these nodes and those they lead to without a character.
    fn state_of(&mut self, mut waiting: Vec<usize>, budget: &mut Budget) -> Option<usize> {
        self.round += 1;
        let mut set = Vec::new();
        while let Some(node) = waiting.pop() {
            if std::mem::replace(&mut self.seen[node], self.round) == self.round {
                continue;
            }
            match &self.nodes[node] {
                Node::Split(next) => {
                    budget.spend(next.len())?;
                    waiting.extend(next);
                }
                Node::Set(..) | Node::End => set.push(node),
            }
        }
        set.sort_unstable();
        budget.spend(20 * set.len() + 50)?;
        let set: Rc<[usize]> = set.into();
        let number = self.sets.len();
        let found = *self.numbers.entry(set.clone()).or_insert(number);
        if found == number {
            self.sets.push(set);
        }
        (self.sets.len() <= MAX_STATES).then_some(found)
    }

    /// The edges of a state.
    fn expand(&mut self, number: usize, budget: &mut Budget) -> Option<State> {
        let mut state = State::default();
        // Where a range of characters begins or ends, and the node it leads to.
        let mut borders = Vec::new();
        for &node in self.sets[number].iter() {
            match &self.nodes[node] {
                Node::Set(set, next) => {
                    for &(low, high) in set.ranges() {
                        state.leads.add_leads(low, high);
                        borders.push((low, *next, true));
                        borders.push((high + 1, *next, false));
                    }
                }
                Node::End => state.accepts = true,
                Node::Split(_) => {}
            }
        }
        budget.spend(30 * borders.len())?;
        borders.sort_unstable();
        let mut active: BTreeMap<usize, usize> = BTreeMap::new();
        let mut borders = borders.into_iter().peekable();
        while let Some((low, next, begins)) = borders.next() {
            let count = active.entry(next).or_default();
            *count = if begins { *count + 1 } else { *count - 1 };
            if *count == 0 {
                active.remove(&next);
            }
            let Some(end) = borders.peek().map(|border| border.0) else {
                break;
            };
            if end > low && !active.is_empty() {
                let target = self.state_of(active.keys().copied().collect(), budget)?;
                match state.edges.last_mut() {
                    Some(last) if last.1 + 1 == low && last.2 == target => last.1 = end - 1,
                    _ => state.edges.push((low, end - 1, target)),
                }
            }
        }
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

    fn automaton(body: &str) -> Option<Automaton> {
        let grammar = parse(&format!("root ::= {body}")).unwrap();
        Automaton::new(&grammar.rules[0].body, &mut Budget(10_000_000))
    }

    fn accepts(automaton: &Automaton, text: &str) -> bool {
        let mut state = 0;
        for point in text.chars().map(u32::from) {
            let edges = &automaton.states[state].edges;
            let edge = edges.iter().find(|edge| (edge.0..=edge.1).contains(&point));
            let Some(edge) = edge else { return false };
            state = edge.2;
        }
        automaton.states[state].accepts
    }

    #[test]
    fn an_automaton_accepts_what_its_expression_says() {
        for (body, yes, no) in [
            (
                "\"ab\" | \"a\" [c-e]{1,2}",
                vec!["ab", "ac", "ade"],
                vec!["", "a", "abb", "acde"],
            ),
            (
                "(\"a\"* \"b\"?){2}",
                vec!["", "aab", "abab", "bb"],
                vec!["bbb", "abba b"],
            ),
            ("[^a]* \"a\" .{2}", vec!["axy", "xxaaa"], vec!["ax", "aaaa"]),
            ("(\"a\" | \"b\"){2,}", vec!["ab", "abab"], vec!["a", ""]),
        ] {
            let automaton = automaton(body).unwrap();
            assert!(yes.iter().all(|text| accepts(&automaton, text)), "{body}");
            assert!(!no.iter().any(|text| accepts(&automaton, text)), "{body}");
        }
    }

    #[test]
    fn overlaps_are_found_on_both_sides() {
        let leads = |characters: &str| {
            let mut bytes = ByteSet::NONE;
            characters
                .chars()
                .for_each(|one| bytes.add_leads(one.into(), one.into()));
            bytes
        };
        for (one, two, shared, after) in [
            ("\"ab\"", "\"abc\" | \"ad\"", false, "c"),
            ("\"abc\"", "\"ab\"", false, ""),
            ("[a-c]+", "\"b\" [x-y] | \"bc\"", true, "xyc"),
            ("\"a\"", "\"b\"", false, ""),
        ] {
            let (one, two) = (automaton(one).unwrap(), automaton(two).unwrap());
            let overlap = one.overlap(&two, &mut Budget(1_000));
            assert_eq!((overlap.shared, overlap.after), (shared, leads(after)));
        }
        let overlap = automaton("\"a\" [b-c]*").unwrap().overlap_with_itself();
        assert_eq!(overlap.after, leads("bc"));
    }

    #[test]
    fn what_is_too_large_is_refused() {
        assert!(automaton("((\"a\" | \"b\"){100}){100}").is_none());
        assert!(automaton("[ab]* \"a\" [ab]{20}").is_none());
        assert!(automaton("[ab]{500}").is_some());
    }
}
