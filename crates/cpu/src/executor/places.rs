//! Where the tokens of a step stand, written down once for all phases.

use super::workspace::TILE_TOKENS;
use forthwith_core::executor::StepInput;
use forthwith_core::units::Tokens;
use std::ops::Range;

/// Where a token of the step stands.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) segment: usize,
    pub(super) position: usize,
    /// One past the segment's last position.
    pub(super) end: usize,
}

/// Tokens of one segment that are attended together.
#[derive(Clone)]
pub(super) struct Tile {
    pub(super) segment: usize,
    pub(super) tokens: Range<usize>,
}

/// Lists that keep their memory from step to step.
pub(super) struct Places {
    /// One for each token.
    pub(super) tokens: Vec<Place>,
    pub(super) tiles: Vec<Tile>,
}

impl Places {
    /// Room for any step of so many tokens.
    pub(super) fn new(max_step_tokens: Tokens) -> Self {
        Self {
            tokens: Vec::with_capacity(max_step_tokens.get()),
            tiles: Vec::with_capacity(max_step_tokens.get()),
        }
    }

    pub(super) fn fill(&mut self, input: &StepInput<'_>) {
        self.tokens.clear();
        self.tiles.clear();
        for (segment, run) in input.segments.iter().enumerate() {
            let first = self.tokens.len();
            let end = first + run.tokens;
            let positions = run.position..run.position + run.tokens;
            let end_position = positions.end;
            self.tokens.extend(positions.map(|position| Place {
                segment,
                position,
                end: end_position,
            }));
            let starts = (first..end).step_by(TILE_TOKENS);
            self.tiles.extend(starts.map(|start| Tile {
                segment,
                tokens: start..(start + TILE_TOKENS).min(end),
            }));
        }
    }
}
