//! The last phase of programs that generate: the residual to logits.

use super::workspace::Scratch;
use super::{Rows, Step, multiply};
use crate::phases::softcap::Softcap;
use crate::quant::LANES;
use crate::team::Member;
use forthwith_core::program::Logits;

impl Step<'_> {
    /// Writes the logits of the listed rows.
    pub(super) fn logits(
        &self,
        member: Member<'_>,
        counter: usize,
        phase: &Logits,
        scratch: &mut Scratch<'_>,
    ) {
        let wanted = self.input.output_rows;
        if wanted.is_empty() {
            return;
        }
        let (head, vocab, scale) = (self.product(phase.head), self.program.vocab, phase.scale);
        let rows = Rows {
            count: wanted.len(),
            listed: Some(wanted),
            ..self.residual()
        };
        let plain = head.matrix.reads_plain();
        let input = self.prepare(member, &rows, phase.norm, plain, scratch);
        self.products(
            (member, counter),
            &[head],
            input,
            scratch,
            |_, group, tile| {
                multiply(tile, scale);
                Self::put_tile(self.output, vocab, (group * LANES, vocab), tile);
            },
        );
        if let Some(cap) = phase.softcap {
            member.barrier();
            for row in member.share(wanted.len()) {
                // SAFETY: this member's share of rows, written before the barrier.
                let values = unsafe { self.output.range_mut(row * vocab..(row + 1) * vocab) };
                self.isa.run(Softcap { cap, values });
            }
        }
    }
}
