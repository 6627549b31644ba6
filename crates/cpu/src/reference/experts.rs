//! Mixtures of experts, one expert after the other.

use super::{Reference, add};
use crate::phases::{gate, route};
use forthwith_core::executor::StepError;
use forthwith_core::program::Experts;

impl Reference<'_> {
    pub(super) fn experts(&self, phase: &Experts, residual: &mut [f32]) -> Result<(), StepError> {
        let hidden = self.program.hidden;
        let (all, inner) = (
            self.program.experts(phase),
            self.program.weight(phase.down).cols,
        );
        let input = self.normalize(phase.norm, residual, hidden);
        let scores = self.product(phase.router.into(), &input)?;
        let routes: Vec<_> = scores
            .chunks_exact(all)
            .map(|scores| route::reference(scores, phase.used, phase.normalized))
            .collect();
        let mut sums = vec![0.0; residual.len()];
        for expert in 0..all {
            let chosen_by = |(token, choices): (usize, &Vec<route::Choice>)| {
                let choice = choices
                    .iter()
                    .find(|choice| choice.expert as usize == expert)?;
                Some((token, choice.weight))
            };
            let tokens: Vec<_> = routes.iter().enumerate().filter_map(chosen_by).collect();
            let row = |&(token, _): &(usize, f32)| &input[token * hidden..(token + 1) * hidden];
            let rows: Vec<f32> = tokens.iter().flat_map(row).copied().collect();
            let inside = expert * inner..(expert + 1) * inner;
            let gates = self.product_of(phase.gate, inside.clone(), &rows)?;
            let ups = self.product_of(phase.up, inside, &rows)?;
            let gated = gate::reference(phase.activation, &gates, &ups);
            let outputs = expert * hidden..(expert + 1) * hidden;
            let answers = self.product_of(phase.down, outputs, &gated)?;
            for ((token, weight), answer) in tokens.iter().zip(answers.chunks_exact(hidden)) {
                add(&mut sums[token * hidden..][..hidden], answer, *weight);
            }
        }
        add(residual, &sums, phase.scale);
        Ok(())
    }
}
