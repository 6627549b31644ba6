//! Sequences that are computed side by side, without an engine.

use crate::error::Failure;
use forthwith_core::clock::{Clock, SystemClock};
use forthwith_core::executor::{Executor, Segment, StepInput};
use forthwith_core::units::{BlockId, TokenId, Tokens};
use forthwith_cpu::{BLOCK_SIZE, Cpu};
use std::time::Duration;

pub(super) struct Crowd {
    pub(super) cpu: Cpu,
    tables: Vec<Vec<BlockId>>,
    words: Vec<TokenId>,
    logits: Vec<f32>,
    clock: SystemClock,
}

impl Crowd {
    /// As many sequences of a length as the cache holds.
    pub(super) fn new(cpu: Cpu, length: Tokens) -> Self {
        let each = length.get().div_ceil(BLOCK_SIZE.get()).max(1);
        let blocks = u32::try_from(cpu.kv_geometry().blocks.get()).unwrap_or(u32::MAX);
        let blocks: Vec<BlockId> = (0..blocks).map(BlockId::new).collect();
        let words = u32::try_from(cpu.vocab()).unwrap_or(u32::MAX);
        Self {
            tables: blocks.chunks_exact(each).map(<[_]>::to_vec).collect(),
            words: (0..words).map(TokenId::new).collect(),
            logits: Vec::new(),
            clock: SystemClock::start(),
            cpu,
        }
    }

    /// The time to compute a prompt as the first sequence.
    pub(super) fn prefill(&mut self, tokens: usize) -> Result<Duration, Failure> {
        let began = self.clock.now();
        let step = self.cpu.max_step_tokens().get();
        for position in (0..tokens).step_by(step) {
            self.step(1, position, step.min(tokens - position))?;
        }
        Ok(self.clock.now().saturating_sub(began))
    }

    /// Gives the first `batch` sequences a past of `depth` tokens, the same for all.
    pub(super) fn fill(&mut self, batch: usize, depth: usize) -> Result<(), Failure> {
        self.prefill(depth)?;
        let used = depth.div_ceil(BLOCK_SIZE.get());
        for row in 1..batch {
            for block in 0..used {
                let (from, to) = (self.tables[0][block], self.tables[row][block]);
                self.cpu.copy_block(from, to);
            }
        }
        Ok(())
    }

    /// The time to decode `steps` tokens of each of the first `batch` sequences.
    pub(super) fn decode(
        &mut self,
        batch: usize,
        depth: usize,
        steps: usize,
    ) -> Result<Duration, Failure> {
        let began = self.clock.now();
        for position in depth..depth + steps {
            self.step(batch, position, 1)?;
        }
        Ok(self.clock.now().saturating_sub(began))
    }

    /// Computes `count` tokens of each of the first `rows` sequences.
    fn step(&mut self, rows: usize, position: usize, count: usize) -> Result<(), Failure> {
        let word = |row: usize, at: usize| self.words[(row * 7919 + at * 37) % self.words.len()];
        let places = position..position + count;
        let tokens: Vec<TokenId> = (0..rows)
            .flat_map(|row| places.clone().map(move |at| (row, at)))
            .map(|(row, at)| word(row, at))
            .collect();
        let segments: Vec<Segment<'_>> = self.tables[..rows]
            .iter()
            .map(|blocks| Segment {
                tokens: count,
                position,
                blocks,
                second_from: None,
            })
            .collect();
        let last: Vec<usize> = (0..rows).map(|row| (row + 1) * count - 1).collect();
        let input = StepInput {
            tokens: &tokens,
            segments: &segments,
            output_rows: &last,
        };
        let done = self.cpu.step(&input, &mut self.logits);
        done.map_err(Failure::failed)
    }
}
