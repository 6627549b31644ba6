//! A KV cache that stores the tokens themselves, for executors without weights.
//!
//! Such an executor answers only from what it reads back through the block table. A wrong block, a
//! lost token or two mixed-up sequences therefore change its answer or end the step with an error,
//! which makes it the judge of schedulers and block pools in tests.

use forthwith_core::executor::{KvGeometry, Segment, StepError, StepInput};
use forthwith_core::units::{BlockId, Blocks, Bytes, TokenId, Tokens};

const BYTES_PER_TOKEN: u64 = 4;

/// Blocks of stored tokens; a slot that was never written is `None`.
#[derive(Debug)]
pub(crate) struct TokenCache {
    block_size: usize,
    slots: Vec<Option<TokenId>>,
}

impl TokenCache {
    pub(crate) fn new(block_size: Tokens, blocks: Blocks) -> Self {
        assert!(
            block_size > Tokens::ZERO,
            "a block holds at least one token"
        );
        Self {
            block_size: block_size.get(),
            slots: vec![None; blocks.tokens(block_size).get()],
        }
    }

    pub(crate) fn geometry(&self) -> KvGeometry {
        KvGeometry {
            block_size: Tokens::new(self.block_size),
            block_bytes: Bytes::new(BYTES_PER_TOKEN * self.block_size as u64),
            blocks: Blocks::new(self.slots.len() / self.block_size),
        }
    }

    /// Appends the tokens of a checked step, segment after segment.
    pub(crate) fn write(&mut self, input: &StepInput<'_>) -> Result<(), StepError> {
        self.check_written_blocks_are_private(input.segments)?;
        let mut tokens = input.tokens.iter();
        for segment in input.segments {
            for (offset, &token) in tokens.by_ref().take(segment.tokens).enumerate() {
                let slot = self.slot(segment.blocks, segment.position + offset);
                self.slots[slot] = Some(token);
            }
        }
        Ok(())
    }

    /// The token at a position of a sequence, as its blocks hold it.
    pub(crate) fn read(&self, blocks: &[BlockId], position: usize) -> Result<TokenId, StepError> {
        self.slots[self.slot(blocks, position)].ok_or_else(|| {
            let block = blocks[position / self.block_size];
            StepError::Input(format!(
                "position {position} in block {block} was never written"
            ))
        })
    }

    pub(crate) fn copy_block(&mut self, from: BlockId, to: BlockId) {
        let start = from.index() * self.block_size;
        let target = to.index() * self.block_size;
        self.slots
            .copy_within(start..start + self.block_size, target);
    }

    fn slot(&self, blocks: &[BlockId], position: usize) -> usize {
        blocks[position / self.block_size].index() * self.block_size + position % self.block_size
    }

    /// Segments may read the same blocks, but the blocks that one of them writes are its own.
    fn check_written_blocks_are_private(&self, segments: &[Segment<'_>]) -> Result<(), StepError> {
        let mut written: Vec<(BlockId, usize)> = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let first = segment.position / self.block_size;
            let last = (segment.position + segment.tokens - 1) / self.block_size;
            written.extend(
                segment.blocks[first..=last]
                    .iter()
                    .map(|&block| (block, index)),
            );
        }
        written.sort_unstable();
        let written_by_another = |block: BlockId, index: usize| {
            let at = written.partition_point(|&(other, _)| other < block);
            let mut owners = written[at..]
                .iter()
                .take_while(|&&(other, _)| other == block);
            owners.any(|&(_, owner)| owner != index)
        };
        for (index, segment) in segments.iter().enumerate() {
            let mut blocks = segment.blocks.iter();
            if let Some(block) = blocks.find(|&&block| written_by_another(block, index)) {
                let problem =
                    format!("block {block} is written by one segment and used by another");
                return Err(StepError::Input(problem));
            }
        }
        Ok(())
    }
}

/// Calls `row` for each wanted row with the segment it belongs to and its position there.
pub(crate) fn for_each_logit_row<'a>(
    input: &StepInput<'a>,
    mut row: impl FnMut(&Segment<'a>, usize) -> Result<(), StepError>,
) -> Result<(), StepError> {
    let mut wanted = input.output_rows.iter().copied().peekable();
    let mut start = 0;
    for segment in input.segments {
        let end = start + segment.tokens;
        while let Some(index) = wanted.next_if(|&index| index < end) {
            row(segment, segment.position + index - start)?;
        }
        start = end;
    }
    Ok(())
}
