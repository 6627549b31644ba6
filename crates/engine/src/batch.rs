//! The flat batch of one step, built from the plan in buffers that are kept between steps.

use forthwith_core::executor::{Executor, Segment, StepError, StepInput};
use forthwith_core::units::TokenId;

use crate::scheduler::plan::StepPlan;
use crate::sequence::Sequence;

pub(crate) struct Batch {
    tokens: Vec<TokenId>,
    segments: Vec<Segment<'static>>,
    logit_rows: Vec<usize>,
    logits: Vec<f32>,
}

impl Batch {
    /// Room for steps of so many tokens and sequences.
    pub(crate) fn new(tokens: usize, sequences: usize, vocab: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            segments: Vec::with_capacity(sequences),
            logit_rows: Vec::with_capacity(sequences),
            logits: Vec::with_capacity(sequences.saturating_mul(vocab)),
        }
    }

    /// Lays out the plan's tokens side by side and runs the model over them.
    pub(crate) fn run(
        &mut self,
        plan: &StepPlan,
        running: &[Sequence],
        executor: &mut dyn Executor,
    ) -> Result<(), StepError> {
        self.tokens.clear();
        self.logit_rows.clear();
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
            });
            if segment.samples {
                self.logit_rows.push(self.tokens.len() - 1);
            }
        }
        let input = StepInput {
            tokens: &self.tokens,
            segments: &segments,
            logit_rows: &self.logit_rows,
        };
        let outcome = executor.step(&input, &mut self.logits);
        segments.clear();
        // Collecting nothing keeps the buffer and sheds the borrow.
        self.segments = segments.into_iter().map(|_| unreachable!()).collect();
        outcome?;
        let expected = self.logit_rows.len() * executor.vocab();
        if self.logits.len() != expected {
            return Err(StepError::Device(format!(
                "the step returned {} logits instead of {expected}",
                self.logits.len()
            )));
        }
        Ok(())
    }

    /// The logits of the sampling segments, in their order.
    pub(crate) fn rows(&self, vocab: usize) -> impl Iterator<Item = &[f32]> {
        self.logits.chunks_exact(vocab)
    }
}
