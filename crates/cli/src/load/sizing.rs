//! The lengths that a model is loaded for, and the memory that follows from them.

use super::{LoadSettings, RESERVE, kv_memory};
use crate::error::Failure;
use crate::select::{Compute, available_memory};
use forthwith_core::program::{Output, Phase, Program};
use forthwith_core::units::{Bytes, Tokens};
use forthwith_cpu::{BLOCK_SIZE, kv_block_bytes, weight_bytes, workspace_bytes};
use forthwith_engine::budget::{KvMemory, Ledger, MemoryNeeds, sampling_bytes};

/// Tokens of a text where a step computes it as a whole and nothing else is said.
const WHOLE_TEXT: Tokens = Tokens::new(8192);

/// The lengths that a model is loaded for.
pub(super) struct Sizing {
    pub(super) compute: Compute,
    pub(super) context: Tokens,
    pub(super) step_tokens: Tokens,
    /// Whether a step computes whole texts and keeps nothing of them.
    whole_texts: bool,
    /// Whether the context is shorter than the trained one without anybody having said so.
    cut: bool,
    /// The context that was asked for, if the model has no numbers for its last positions.
    too_long: Option<Tokens>,
}

/// The longest text for which a model has numbers, if it has learned some for each position.
fn longest(program: &Program) -> Option<Tokens> {
    program.phases.iter().find_map(|phase| match phase {
        Phase::Embed(embed) => Some(Tokens::new(program.weight(embed.positions?).rows)),
        _ => None,
    })
}

impl Sizing {
    pub(super) fn new(program: &Program, settings: &LoadSettings) -> Self {
        let whole_texts = matches!(program.output(), Output::Vectors { whole: true, .. });
        let trained = program.context;
        let step_tokens = settings.schedule.step_tokens();
        let asked = settings.context.map(Tokens::new);
        let too_long = asked.filter(|&asked| longest(program).is_some_and(|most| asked > most));
        let asked = match too_long {
            Some(_) => longest(program),
            None => asked,
        };
        if !whole_texts {
            return Self {
                compute: settings.compute,
                context: asked.unwrap_or(trained),
                step_tokens,
                whole_texts,
                cut: false,
                too_long,
            };
        }
        let usual = trained.min(WHOLE_TEXT);
        let context = asked.unwrap_or(usual);
        Self {
            compute: settings.compute.of_whole_texts(),
            context,
            step_tokens: step_tokens.max(context),
            whole_texts,
            cut: asked.is_none() && context < trained,
            too_long,
        }
    }

    pub(super) fn warnings(&self, program: &Program) -> Vec<String> {
        let (context, trained) = (self.context, program.context);
        let longer = (context > trained).then(|| {
            format!(
                "the context of {context} tokens is longer than the {trained} that the model was \
                 trained for"
            )
        });
        let cut = self.cut.then(|| {
            format!(
                "a step computes whole texts, of at most {context} of the {trained} tokens that the \
                 model was trained for; --context lifts the limit for more memory"
            )
        });
        let too_long = self.too_long.map(|asked| {
            format!(
                "a context of {asked} tokens was asked for, the model has learned {context} positions: it \
                 takes {context}"
            )
        });
        longer.into_iter().chain(cut).chain(too_long).collect()
    }

    pub(super) fn ledger(
        &self,
        program: &Program,
        settings: &LoadSettings,
    ) -> Result<Ledger, Failure> {
        let threads = self.compute.threads;
        let max_running = settings.schedule.max_running().min(self.step_tokens.get());
        let block_bytes = kv_block_bytes(program, self.compute.kv_format);
        let kv = if self.whole_texts && settings.kv_memory.is_none() {
            // The texts of one step, and a block for each that is not full; the same again is free.
            let blocks = self.step_tokens.blocks_needed(BLOCK_SIZE).get() + 2 * max_running + 2;
            KvMemory::Exact(Bytes::new(blocks as u64 * block_bytes.get()))
        } else {
            kv_memory(settings)
        };
        let needs = MemoryNeeds {
            available: available_memory()?,
            weights: weight_bytes(program),
            workspace: workspace_bytes(program, self.step_tokens, self.context, threads)
                + sampling_bytes(program.vocab, max_running, threads),
            reserve: RESERVE,
            block_bytes,
            block_size: BLOCK_SIZE,
            context: self.context,
            max_running: settings.schedule.max_running(),
            kv,
        };
        Ok(Ledger::new(&needs)?)
    }
}
