//! The flat batch of one step, built from the plan in buffers that are kept between steps.

use forthwith_core::executor::{Executor, Segment, StepError, StepInput};
use forthwith_core::units::TokenId;

use crate::scheduler::plan::StepPlan;
use crate::sequence::Sequence;

pub(crate) struct Batch {
    tokens: Vec<TokenId>,
    segments: Vec<Segment<'static>>,
    output_rows: Vec<usize>,
    output: Vec<f32>,
}

impl Batch {
    /// Room for steps of so many tokens and sequences, with rows of such a width.
    pub(crate) fn new(tokens: usize, sequences: usize, width: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            segments: Vec::with_capacity(sequences),
            output_rows: Vec::with_capacity(sequences),
            output: Vec::with_capacity(sequences.saturating_mul(width)),
        }
    }

    /// Lays out the plan's tokens side by side and runs the model over them.
    pub(crate) fn run(
        &mut self,
        plan: &StepPlan,
        (running, each_token): (&[Sequence], bool),
        executor: &mut dyn Executor,
    ) -> Result<(), StepError> {
        self.tokens.clear();
        self.output_rows.clear();
        let mut segments: Vec<Segment<'_>> = std::mem::take(&mut self.segments);
        for segment in &plan.segments {
            let sequence = &running[segment.sequence];
            let end = sequence.computed + segment.tokens;
            self.tokens
                .extend_from_slice(&sequence.tokens[sequence.computed..end]);
            segments.push(Segment {
                tokens: segment.tokens,
                position: sequence.computed,
                blocks: sequence.table.blocks(),
                second_from: sequence.second_from(),
            });
            // From positions of the sequence to places in the step.
            let first = self.tokens.len() - segment.tokens;
            let rows = sequence.rows_within(segment.tokens, each_token);
            let rows = rows.map(|position| first + position - sequence.computed);
            self.output_rows.extend(rows);
        }
        let input = StepInput {
            tokens: &self.tokens,
            segments: &segments,
            output_rows: &self.output_rows,
        };
        let outcome = executor.step(&input, &mut self.output);
        segments.clear();
        // Collecting nothing keeps the buffer and sheds the borrow.
        self.segments = segments.into_iter().map(|_| unreachable!()).collect();
        outcome?;
        let expected = self.output_rows.len() * executor.output_width();
        if self.output.len() != expected {
            return Err(StepError::Device(format!(
                "the step returned {} numbers instead of {expected}",
                self.output.len()
            )));
        }
        Ok(())
    }

    /// The rows that were asked for, one after the other.
    pub(crate) fn output(&self) -> &[f32] {
        &self.output
    }
}
