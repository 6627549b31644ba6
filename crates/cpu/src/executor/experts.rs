//! Mixtures of experts: rows sorted by the expert that they go to, then products of each expert with
//! its rows alone.

use super::products::Product;
use super::workspace::Scratch;
use super::{Step, add, multiply};
use crate::memory::{Buffer, OutOfMemory, Plain, SharedSlice};
use crate::phases::gate::GatedUnit;
use crate::phases::route::{Choice, Route};
use crate::quant::{Activations, ActivationsView, LANES, Matrix};
use crate::team::Member;
use forthwith_core::program::{Experts, Phase, Program};
use std::ops::Range;

/// Counters of items that a phase of experts takes beside its own.
pub(super) const COUNTERS: usize = 2;

/// An expert that somebody chose and its rows.
#[derive(Clone, Copy, Default)]
pub(super) struct Chosen {
    expert: usize,
    first: usize,
    count: usize,
}

// SAFETY: three numbers of one size.
unsafe impl Plain for Chosen {}

/// The memory of these phases, empty for programs that have none. A *row* is one token for one of
/// its experts.
pub(super) struct ExpertSpace {
    /// `[tokens, experts]`
    scores: Buffer<f32>,
    /// `[tokens, used]`
    choices: Buffer<Choice>,
    /// The row of each choice.
    rows: Buffer<usize>,
    /// The token of each row.
    tokens: Buffer<usize>,
    /// The experts that have rows, and after the last of them one without.
    chosen: Buffer<Chosen>,
    /// The rows as products read them.
    activations: Activations,
    /// `[rows, feed_forward]`
    gated: Buffer<f32>,
    /// `[rows, hidden]`
    answers: Buffer<f32>,
}

/// How much of it there is.
#[derive(Clone, Copy, Default)]
pub(super) struct ExpertSizes {
    tokens: usize,
    experts: usize,
    rows: usize,
    hidden: usize,
    inner: usize,
}

impl ExpertSizes {
    pub(super) fn of(program: &Program, tokens: usize) -> Self {
        let (experts, used) = program.most_experts();
        if experts == 0 {
            return Self::default();
        }
        let inner = program.phases.iter().map(|phase| match phase {
            Phase::Experts(phase) => program.weight(phase.down).cols,
            _ => 0,
        });
        Self {
            tokens,
            experts,
            rows: tokens * used,
            hidden: program.hidden,
            inner: inner.max().unwrap_or(0),
        }
    }

    pub(super) fn widest(self) -> usize {
        self.hidden.max(self.inner)
    }

    pub(super) fn bytes(self) -> usize {
        let per_row = size_of::<Choice>() + 2 * size_of::<usize>() + 4 * (self.inner + self.hidden);
        4 * self.tokens * self.experts
            + self.rows * per_row
            + (self.experts + 1) * size_of::<Chosen>()
            + Activations::bytes(self.rows, self.widest())
    }
}

impl ExpertSpace {
    pub(super) fn new(sizes: ExpertSizes) -> Result<Self, OutOfMemory> {
        Ok(Self {
            scores: Buffer::zeroed(sizes.tokens * sizes.experts)?,
            choices: Buffer::zeroed(sizes.rows)?,
            rows: Buffer::zeroed(sizes.rows)?,
            tokens: Buffer::zeroed(sizes.rows)?,
            chosen: Buffer::zeroed(sizes.experts + 1)?,
            activations: Activations::new(sizes.rows, sizes.widest())?,
            gated: Buffer::zeroed(sizes.rows * sizes.inner)?,
            answers: Buffer::zeroed(sizes.rows * sizes.hidden)?,
        })
    }

    pub(super) fn view(&mut self) -> ExpertView<'_> {
        ExpertView {
            scores: self.scores.shared(),
            choices: self.choices.shared(),
            rows: self.rows.shared(),
            tokens: self.tokens.shared(),
            chosen: self.chosen.shared(),
            activations: self.activations.view(0),
            gated: self.gated.shared(),
            answers: self.answers.shared(),
        }
    }
}

/// The same, shared by the team.
#[derive(Clone, Copy)]
pub(super) struct ExpertView<'a> {
    scores: SharedSlice<'a, f32>,
    choices: SharedSlice<'a, Choice>,
    rows: SharedSlice<'a, usize>,
    tokens: SharedSlice<'a, usize>,
    chosen: SharedSlice<'a, Chosen>,
    activations: ActivationsView<'a>,
    gated: SharedSlice<'a, f32>,
    answers: SharedSlice<'a, f32>,
}

/// One expert's part of a matrix.
#[derive(Clone, Copy)]
struct Part<'a> {
    matrix: &'a Matrix,
    /// Rows of an expert.
    rows: usize,
}

impl Part<'_> {
    fn groups(self, expert: usize, within: &Range<usize>) -> Range<usize> {
        let first = expert * (self.rows / LANES);
        first + within.start..first + within.end
    }
}

impl<'a> Step<'a> {
    /// The router's choice, then the chosen experts' answers, added to the residual.
    pub(super) fn experts(
        &self,
        member: Member<'_>,
        index: usize,
        phase: &Experts,
        scratch: &mut Scratch<'_>,
    ) {
        self.choose(member, index, phase, scratch);
        self.gather(member, phase);
        member.barrier();
        self.gate_up_of_experts(member, index, phase, scratch);
        member.barrier();
        self.down_of_experts(member, index, phase, scratch);
        member.barrier();
        self.add_answers(member, phase, scratch);
    }

    /// Copies each token's normed row to the rows of its experts.
    fn gather(&self, member: Member<'_>, phase: &Experts) {
        let (space, hidden) = (self.space.experts, self.program.hidden);
        let plain = [phase.gate, phase.up]
            .iter()
            .any(|&id| self.matrix(id).reads_plain());
        let from = self.space.activations.with_cols(hidden);
        let to = space.activations.with_cols(hidden);
        for row in member.share(self.tokens() * phase.used) {
            // SAFETY: tokens of rows were written before the last barrier; the row is this member's.
            unsafe { to.copy(row, &from, space.tokens.range(row..row + 1)[0], plain) };
        }
    }

    fn gate_up_of_experts(
        &self,
        member: Member<'_>,
        index: usize,
        phase: &Experts,
        scratch: &mut Scratch<'_>,
    ) {
        let (space, isa) = (self.space.experts, self.isa);
        let rows = self.matrix(phase.down).cols;
        let [gate, up] = [phase.gate, phase.up].map(|id| Part {
            matrix: self.matrix(id),
            rows,
        });
        let input = space.activations.with_cols(self.program.hidden);
        let counter = self.expert_counter(index, 0);
        let work = |chosen: Chosen, groups: Range<usize>, scratch: &mut Scratch<'_>| {
            let input = (input.tail(chosen.first), chosen.count);
            let size = chosen.count * LANES;
            let gates = &mut scratch.second_tile[..groups.len() * size];
            let of = gate.groups(chosen.expert, &groups);
            gate.matrix.multiply(isa, of, input, gates, scratch.panel);
            let ups = &mut scratch.tile[..groups.len() * size];
            let of = up.groups(chosen.expert, &groups);
            up.matrix.multiply(isa, of, input, ups, scratch.panel);
            isa.run(GatedUnit {
                activation: phase.activation,
                gate: gates,
                up: ups,
            });
            let target = space.gated.tail(chosen.first * rows);
            for (group, tile) in groups.zip(ups.chunks_exact(size)) {
                Self::put_tile(target, rows, (group * LANES, rows), tile);
            }
        };
        self.each_expert(member, counter, [gate, up], scratch, work);
    }

    fn down_of_experts(
        &self,
        member: Member<'_>,
        index: usize,
        phase: &Experts,
        scratch: &mut Scratch<'_>,
    ) {
        let (space, isa, rows) = (self.space.experts, self.isa, self.program.hidden);
        let matrix = self.matrix(phase.down);
        let (down, inner) = (Part { matrix, rows }, matrix.cols);
        let input = space.activations.with_cols(inner);
        for row in member.share(self.tokens() * phase.used) {
            // SAFETY: written before the barrier; the row is this member's.
            unsafe {
                let values = space.gated.range(row * inner..(row + 1) * inner);
                input.put(isa, row, values, matrix.reads_plain());
            }
        }
        member.barrier();
        let counter = self.expert_counter(index, 1);
        let work = |chosen: Chosen, groups: Range<usize>, scratch: &mut Scratch<'_>| {
            let input = (input.tail(chosen.first), chosen.count);
            let size = chosen.count * LANES;
            let tiles = &mut scratch.tile[..groups.len() * size];
            let of = down.groups(chosen.expert, &groups);
            matrix.multiply(isa, of, input, tiles, scratch.panel);
            let target = space.answers.tail(chosen.first * rows);
            for (group, tile) in groups.zip(tiles.chunks_exact(size)) {
                Self::put_tile(target, rows, (group * LANES, rows), tile);
            }
        };
        self.each_expert(member, counter, [down], scratch, work);
    }

    /// Scores of all experts, each token's choices, and the rows sorted by expert. The normed rows of
    /// tokens stay in the step's activations.
    fn choose(&self, member: Member<'_>, index: usize, phase: &Experts, scratch: &mut Scratch<'_>) {
        let space = self.space.experts;
        let (tokens, used) = (self.tokens(), phase.used);
        let router = Product {
            matrix: self.matrix(phase.router),
            bias: None,
        };
        let all = router.matrix.rows;
        let plain = [phase.router, phase.gate, phase.up]
            .iter()
            .any(|&id| self.matrix(id).reads_plain());
        let input = self.prepare(member, &self.residual(), phase.norm, plain, scratch);
        self.products(
            (member, index),
            &[router],
            input,
            scratch,
            |_, group, tile| {
                Self::put_tile(space.scores, all, (group * LANES, all), tile);
            },
        );
        member.barrier();
        for token in member.share(tokens) {
            // SAFETY: scores were written before the barrier; the token is this member's.
            let (scores, chosen) = unsafe {
                (
                    space.scores.range(token * all..(token + 1) * all),
                    space.choices.range_mut(token * used..(token + 1) * used),
                )
            };
            self.isa.run(Route {
                scores,
                normalized: phase.normalized,
                chosen,
            });
        }
        member.barrier();
        if member.index == 0 {
            // SAFETY: choices were written before the barrier; the others wait at the next.
            unsafe {
                let choices = space.choices.range(0..tokens * used);
                sort(
                    choices,
                    (all, used),
                    space.chosen.range_mut(0..all + 1),
                    space.rows.range_mut(0..tokens * used),
                    space.tokens.range_mut(0..tokens * used),
                );
            }
        }
        member.barrier();
    }

    /// The index of a phase's counter beyond its own.
    fn expert_counter(&self, index: usize, which: usize) -> usize {
        self.program.phases.len() + COUNTERS * index + which
    }

    /// Hands out groups of the chosen experts' parts: `work(expert, groups within it, scratch)`.
    fn each_expert<const N: usize>(
        &self,
        member: Member<'_>,
        counter: usize,
        parts: [Part<'a>; N],
        scratch: &mut Scratch<'_>,
        work: impl Fn(Chosen, Range<usize>, &mut Scratch<'_>),
    ) {
        let space = self.space.experts;
        let groups = parts[0].rows / LANES;
        // SAFETY: written before the last barrier, and not again before the next step of experts,
        // several barriers later.
        let all = unsafe { space.chosen.range(0..space.chosen.len()) };
        let active = all.iter().take_while(|chosen| chosen.count > 0).count();
        self.take(member, counter, active * groups, |mut items| {
            while !items.is_empty() {
                let chosen = all[items.start / groups];
                let first = items.start % groups;
                let together = parts.iter().map(|part| part.matrix.together(chosen.count));
                let together = together.min().unwrap_or(1).min(groups - first);
                let within = first..first + together.min(items.len());
                items.start += within.len();
                work(chosen, within, scratch);
            }
        });
    }

    /// Adds each token's answers, in the order of its experts, to the residual.
    fn add_answers(&self, member: Member<'_>, phase: &Experts, scratch: &mut Scratch<'_>) {
        let (space, hidden, used) = (self.space.experts, self.program.hidden, phase.used);
        for token in member.share(self.tokens()) {
            let sum = &mut scratch.row[..hidden];
            sum.fill(0.0);
            // SAFETY: answers were written before the barrier; the token is this member's.
            unsafe {
                let choices = token * used..(token + 1) * used;
                let rows = space.rows.range(choices.clone());
                for (choice, row) in space.choices.range(choices).iter().zip(rows) {
                    let answer = space.answers.range(row * hidden..(row + 1) * hidden);
                    for (sum, value) in sum.iter_mut().zip(answer) {
                        *sum += choice.weight * value;
                    }
                }
                multiply(sum, phase.scale);
                add(
                    self.space
                        .residual
                        .range_mut(token * hidden..(token + 1) * hidden),
                    sum,
                );
            }
        }
    }
}

/// Sorts rows by expert, and by token within one.
fn sort(
    choices: &[Choice],
    (all, used): (usize, usize),
    chosen: &mut [Chosen],
    rows: &mut [usize],
    tokens: &mut [usize],
) {
    chosen.fill(Chosen::default());
    for choice in choices {
        chosen[choice.expert as usize].count += 1;
    }
    let mut end = 0;
    for (expert, place) in chosen[..all].iter_mut().enumerate() {
        (place.expert, place.first) = (expert, end);
        end += place.count;
    }
    for (at, choice) in choices.iter().enumerate() {
        let place = &mut chosen[choice.expert as usize];
        rows[at] = place.first;
        tokens[place.first] = at / used;
        place.first += 1;
    }
    let mut active = 0;
    for expert in 0..all {
        let place = chosen[expert];
        if place.count > 0 {
            chosen[active] = Chosen {
                first: place.first - place.count,
                ..place
            };
            active += 1;
        }
    }
    chosen[active] = Chosen::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_expert_and_token() {
        let choice = |expert| Choice {
            expert,
            weight: 0.5,
        };
        let choices = [3, 4, 0, 3, 3, 4].map(choice);
        let mut chosen = [Chosen::default(); 7];
        let (mut rows, mut tokens) = ([0; 6], [0; 6]);
        sort(&choices, (6, 2), &mut chosen, &mut rows, &mut tokens);
        let runs: Vec<_> = chosen.iter().take_while(|run| run.count > 0).collect();
        let runs: Vec<_> = runs
            .iter()
            .map(|run| (run.expert, run.first, run.count))
            .collect();
        assert_eq!(runs, [(0, 0, 1), (3, 1, 3), (4, 4, 2)]);
        assert_eq!(tokens, [1, 0, 1, 2, 0, 2]);
        assert_eq!(rows, [1, 4, 0, 2, 3, 5]);
    }
}
