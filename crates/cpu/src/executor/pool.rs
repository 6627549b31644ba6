//! The last phase of programs that answer with vectors: rows of texts, through a head.

use super::workspace::Scratch;
use super::{Rows, Step, Weight, add, multiply};
use crate::memory::SharedSlice;
use crate::phases::gate::{Activate, activate_one};
use crate::quant::LANES;
use crate::team::Member;
use forthwith_core::program::{HeadLayer, Pool, Pooling};
use std::ops::Range;

impl Step<'_> {
    /// Writes a vector for each listed row.
    pub(super) fn pool(
        &self,
        member: Member<'_>,
        counter: usize,
        phase: &Pool,
        scratch: &mut Scratch<'_>,
    ) {
        let hidden = self.program.hidden;
        let pooled = if phase.layers.is_empty() {
            self.output
        } else {
            self.space.pooled
        };
        for index in member.share(self.input.output_rows.len()) {
            let range = index * hidden..(index + 1) * hidden;
            // SAFETY: this member's share of rows.
            self.pool_row(phase, index, unsafe { pooled.range_mut(range) }, scratch);
        }
        let mut from = Rows {
            from: pooled,
            width: hidden,
            count: self.input.output_rows.len(),
            listed: None,
        };
        for (index, layer) in phase.layers.iter().enumerate() {
            member.barrier();
            // A layer may write over what it reads: its input is copied before it begins.
            let to = if index + 1 == phase.layers.len() {
                self.output
            } else {
                self.space.pooled
            };
            from = self.head_layer((member, counter + index), layer, from, to, scratch);
        }
    }

    /// The vector of one listed row, before the head.
    fn pool_row(&self, phase: &Pool, index: usize, out: &mut [f32], scratch: &mut Scratch<'_>) {
        let listed = self.input.output_rows[index];
        let text = self.text_around(listed);
        let tokens = match phase.pooling {
            Pooling::First => text.start..text.start + 1,
            Pooling::Last | Pooling::Each => listed..listed + 1,
            Pooling::Mean => text,
        };
        let (hidden, first) = (self.program.hidden, tokens.start);
        let count = tokens.len();
        for token in tokens {
            let range = token * hidden..(token + 1) * hidden;
            // SAFETY: the residual was written before the last barrier.
            let row = unsafe { self.space.residual.range(range) };
            let row = match phase.norm {
                None => row,
                Some(norm) => {
                    let normed = &mut scratch.row[..hidden];
                    self.normalize(norm, row, normed);
                    normed
                }
            };
            if token == first {
                out.copy_from_slice(row);
            } else {
                add(out, row);
            }
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "a step has far fewer than 2^24 tokens"
        )]
        multiply(out, 1.0 / count as f32);
    }

    /// The rows of the text that a token belongs to.
    fn text_around(&self, token: usize) -> Range<usize> {
        let place = self.places.tokens[token];
        let tokens = self.input.segments[place.segment].tokens;
        let end = token + place.end - place.position;
        end - tokens..end
    }

    /// Applies one layer of a head and returns where its rows are.
    fn head_layer<'b>(
        &self,
        (member, counter): (Member<'_>, usize),
        layer: &HeadLayer,
        from: Rows<'b>,
        to: SharedSlice<'b, f32>,
        scratch: &mut Scratch<'_>,
    ) -> Rows<'b> {
        let weight = layer.linear.weight;
        let rows = match &self.weights[weight.0] {
            Weight::Vector(single) => {
                let bias = layer.linear.bias.map_or(0.0, |id| self.vector(id)[0]);
                self.single_output(member, (single, bias), layer, from, to);
                1
            }
            Weight::Matrix(matrix) => {
                let (product, width) = (self.product(layer.linear), matrix.rows);
                let input = self.prepare(member, &from, None, matrix.reads_plain(), scratch);
                self.products(
                    (member, counter),
                    &[product],
                    input,
                    scratch,
                    |_, group, values| {
                        if let Some(activation) = layer.activation {
                            self.isa.run(Activate { activation, values });
                        }
                        Self::put_tile(to, width, (group * LANES, width), values);
                    },
                );
                width
            }
        };
        if let Some(norm) = layer.norm {
            member.barrier();
            for row in member.share(from.count) {
                // SAFETY: written before the barrier; the row is this member's.
                let row = unsafe { to.range_mut(row * rows..(row + 1) * rows) };
                self.normalize_in_place(norm, row, scratch);
            }
        }
        Rows {
            from: to,
            width: rows,
            ..from
        }
    }

    /// A layer with one output: a sum in double precision, in the order of its inputs.
    #[expect(clippy::cast_possible_truncation, reason = "outputs are single floats")]
    fn single_output(
        &self,
        member: Member<'_>,
        (weight, bias): (&[f32], f32),
        layer: &HeadLayer,
        from: Rows<'_>,
        to: SharedSlice<'_, f32>,
    ) {
        for row in member.share(from.count) {
            // SAFETY: rows were written before the last barrier, and this member writes its own.
            let (input, out) = unsafe {
                let input = from.from.range(row * from.width..(row + 1) * from.width);
                (input, to.range_mut(row..row + 1))
            };
            let terms = input.iter().zip(weight);
            let sum: f64 = terms.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            let value = (sum + f64::from(bias)) as f32;
            out[0] = layer.activation.map_or(value, |activation| {
                activate_one(self.isa, activation, value)
            });
        }
    }
}
