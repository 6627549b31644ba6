//! The first phase: rows of tables for each token, its position and its text.

use super::workspace::Scratch;
use super::{Step, Weight, add};
use crate::team::Member;
use forthwith_core::program::{Embed, Norm, WeightId};

impl Step<'_> {
    /// Writes the residual of this member's share of tokens.
    pub(super) fn embed(&self, member: Member<'_>, phase: &Embed, scratch: &mut Scratch<'_>) {
        let (table, hidden) = (self.matrix(phase.table), self.program.hidden);
        let positions = phase.positions.map(|id| self.matrix(id));
        for token in member.share(self.tokens()) {
            // SAFETY: this member's share of tokens.
            let row = unsafe {
                self.space
                    .residual
                    .range_mut(token * hidden..(token + 1) * hidden)
            };
            table.read_row(self.input.tokens[token].index(), row);
            for value in &mut *row {
                *value *= phase.scale;
            }
            if let Some(positions) = positions {
                let learned = &mut scratch.row[..hidden];
                let position = self.places.tokens[token].position;
                positions.read_row(position, learned);
                add(row, learned);
            }
            if let Some(types) = phase.token_types {
                self.add_type(types, token, row, scratch);
            }
            if let Some(norm) = phase.norm {
                self.normalize_in_place(norm, row, scratch);
            }
        }
    }

    /// Adds the row of the text, first or second of a pair, that a token belongs to.
    fn add_type(&self, types: WeightId, token: usize, row: &mut [f32], scratch: &mut Scratch<'_>) {
        let place = self.places.tokens[token];
        let second = self.input.segments[place.segment].second_from;
        let second = second.is_some_and(|from| place.position >= from);
        match &self.weights[types.0] {
            // Models that have no pairs have a single row, which is a vector.
            Weight::Vector(only) => add(row, only),
            Weight::Matrix(types) => {
                let learned = &mut scratch.row[..row.len()];
                types.read_row(usize::from(second), learned);
                add(row, learned);
            }
        }
    }

    pub(super) fn normalize_in_place(
        &self,
        norm: Norm,
        row: &mut [f32],
        scratch: &mut Scratch<'_>,
    ) {
        let out = &mut scratch.row[..row.len()];
        self.normalize(norm, row, out);
        row.copy_from_slice(out);
    }
}
