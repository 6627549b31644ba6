//! The contract between the engine and a backend.
//!
//! A step is token-flat: the tokens of all sequences lie side by side, [`Segment`]s say which
//! belong together and where they stand. Prefill, decode and draft verification are all segments;
//! nothing marks which is which. A backend owns the memory of the KV cache; the engine owns which
//! block belongs to whom.

use std::sync::Arc;

use crate::program::Output;
use crate::rows::{PlainPasses, RowPasses};
use crate::units::{BlockId, Blocks, Bytes, TokenId, Tokens};

/// A run of consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// How many of [`StepInput::tokens`] belong to this segment, at least 1.
    pub tokens: usize,
    /// The position of the first of them; all earlier positions are already cached.
    pub position: usize,
    /// The sequence's blocks in order of position; they cover `position + tokens`.
    pub blocks: &'a [BlockId],
    /// The position from which tokens belong to the second text of a pair, for models that tell
    /// them apart.
    pub second_from: Option<usize>,
}

/// One step's work. Segments are of different sequences and do not share the blocks they write.
#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a> {
    /// All tokens, segment after segment.
    pub tokens: &'a [TokenId],
    /// The runs, in the order of their tokens.
    pub segments: &'a [Segment<'a>],
    /// The tokens (as indexes into `tokens`, ascending) whose next-token logits are wanted, or the
    /// vectors of programs that have those: the last token of each text, or any where each token
    /// has one.
    pub output_rows: &'a [usize],
}

/// The shape of a backend's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGeometry {
    /// Positions in one block.
    pub block_size: Tokens,
    /// Bytes of one block over all layers.
    pub block_bytes: Bytes,
    /// How many blocks the backend holds.
    pub blocks: Blocks,
}

/// A backend could not run a step. The KV cache's content is undefined afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The input breaks the contract; the engine has a bug.
    #[error("step input: {0}")]
    Input(String),
    /// A member of the thread team panicked.
    #[error("a worker failed while running the step: {0}")]
    Worker(String),
    /// The device reported an error.
    #[error("device: {0}")]
    Device(String),
}

/// Runs a loaded model, one step at a time.
pub trait Executor: Send {
    /// Token ids below this exist; the number of logits in a row.
    fn vocab(&self) -> usize;

    /// What a step answers with.
    fn output(&self) -> Output {
        Output::Logits
    }

    /// The numbers in a row of a step's output.
    fn output_width(&self) -> usize {
        match self.output() {
            Output::Logits => self.vocab(),
            Output::Vectors { width, .. } => width,
        }
    }

    /// The shape of the KV cache.
    fn kv_geometry(&self) -> KvGeometry;

    /// The most tokens that one step may carry; the workspace is sized for it.
    fn max_step_tokens(&self) -> Tokens;

    /// Runs one step: appends the tokens' keys and values to the cache and writes
    /// `output_rows.len()` rows of [`Executor::output_width`] numbers into `output` (resized).
    ///
    /// The row of a token depends on the tokens of its own sequence alone, bit for bit: not on
    /// the other segments, the split into segments, the blocks' ids or the number of threads.
    fn step(&mut self, input: &StepInput<'_>, output: &mut Vec<f32>) -> Result<(), StepError>;

    /// Copies a whole block, every layer, for a sequence that forks inside it.
    fn copy_block(&mut self, from: BlockId, to: BlockId);

    /// How many threads [`Executor::lend_threads`] runs its work on.
    fn threads(&self) -> usize {
        1
    }

    /// Lends the threads between two steps: calls `work` once on each of them, with numbers from 0
    /// to [`Executor::threads`] exclusive, and returns when all are done. A panic becomes an error.
    fn lend_threads(&mut self, work: &(dyn Fn(usize) + Sync)) -> Result<(), StepError> {
        work(0);
        Ok(())
    }

    /// The passes over a row of logits, for the sampler.
    fn row_passes(&self) -> Arc<dyn RowPasses> {
        Arc::new(PlainPasses)
    }
}

impl StepInput<'_> {
    /// Checks the contract that executors rely on, so that a backend may index without fear.
    ///
    /// # Errors     [`StepError::Input`] says what is broken
    pub fn check(&self, executor: &dyn Executor) -> Result<(), StepError> {
        let (vocab, geometry) = (executor.vocab(), executor.kv_geometry());
        let max_tokens = executor.max_step_tokens();
        let broken = |what: String| Err(StepError::Input(what));
        if self.tokens.is_empty() || self.tokens.len() > max_tokens.get() {
            return broken(format!(
                "{} tokens, allowed 1..={max_tokens}",
                self.tokens.len()
            ));
        }
        if let Some(id) = self.tokens.iter().find(|id| id.index() >= vocab) {
            return broken(format!("token {id} is outside the vocabulary of {vocab}"));
        }
        let total: usize = self.segments.iter().map(|segment| segment.tokens).sum();
        if total != self.tokens.len() || self.segments.iter().any(|segment| segment.tokens == 0) {
            return broken(format!(
                "segments hold {total} of {} tokens",
                self.tokens.len()
            ));
        }
        for segment in self.segments {
            let end = Tokens::new(segment.position + segment.tokens);
            if end.blocks_needed(geometry.block_size) > Blocks::new(segment.blocks.len()) {
                return broken(format!(
                    "{} blocks cannot hold {end} tokens",
                    segment.blocks.len()
                ));
            }
            if let Some(id) = segment
                .blocks
                .iter()
                .find(|id| id.index() >= geometry.blocks.get())
            {
                return broken(format!("block {id} of {}", geometry.blocks));
            }
        }
        if let Output::Vectors {
            each_token, whole, ..
        } = executor.output()
        {
            self.check_texts(each_token, whole)?;
        }
        let ascending = self.output_rows.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || self.output_rows.last().is_some_and(|&row| row >= total) {
            return broken(format!(
                "output rows {:?} of {total} tokens",
                self.output_rows
            ));
        }
        Ok(())
    }

    /// What programs rely on that answer with vectors.
    fn check_texts(&self, each_token: bool, whole: bool) -> Result<(), StepError> {
        if whole && self.segments.iter().any(|segment| segment.position > 0) {
            let problem = "a text does not begin in the step that computes it";
            return Err(StepError::Input(problem.to_owned()));
        }
        let mut ends = self.segments.iter().scan(0, |end, segment| {
            *end += segment.tokens;
            Some(*end - 1)
        });
        // Both ascend.
        let mut is_end = |row: usize| ends.find(|&end| end >= row) == Some(row);
        match self.output_rows.iter().find(|&&row| !is_end(row)) {
            Some(row) if !each_token => Err(StepError::Input(format!(
                "output row {row} is not the last token of a text"
            ))),
            _ => Ok(()),
        }
    }
}
