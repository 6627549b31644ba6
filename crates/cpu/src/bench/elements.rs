//! Kernels over single elements: quantization, norm, rotation, gate, exponentials.
//!
//! The executor finds their inputs in a near cache, and so do they here: their work is counted in
//! operations, of the memory only what they touch.

use super::{Case, Plan, Unit, Work, noise, number};
use crate::isa::math::exp;
use crate::isa::{Isa, IsaChoice, Kernel, Lanes};
use crate::memory::OutOfMemory;
use crate::phases::gate::GatedUnit;
use crate::phases::norm::{NormValues, Normalize};
use crate::phases::rope::{Rotate, table};
use crate::quant::Activations;
use forthwith_core::program::{Activation, NormKind, Pairing, Rope};

const WIDTH: usize = 2048;
const HEAD_DIM: usize = 128;

pub(super) fn plans() -> Vec<Plan> {
    let mut plans = vec![
        Plan::new(format!("quantize/{WIDTH}"), quantize),
        Plan::new(format!("norm/{WIDTH}"), |isa| Ok(norm(isa))),
        Plan::new(format!("exp/{WIDTH}"), |isa| Ok(exponentials(isa))),
    ];
    for (name, pairing) in [("adjacent", Pairing::Adjacent), ("halves", Pairing::Halves)] {
        let name = format!("rope/{name}/{HEAD_DIM}");
        plans.push(Plan::new(name, move |isa| Ok(rotate(isa, pairing))));
    }
    for (name, activation) in [
        ("silu", Activation::Silu),
        ("gelu", Activation::GeluTanh),
        ("exact gelu", Activation::Gelu),
    ] {
        let name = format!("gate/{name}/{WIDTH}");
        plans.push(Plan::new(name, move |isa| Ok(gate(isa, activation))));
    }
    plans
}

/// So many bytes, and so many operations on each element.
fn work(bytes: usize, elements: usize, operations: usize) -> Work {
    Work {
        bytes: number(bytes),
        multiply_adds: number(elements * operations),
        unit: Unit::Floats,
    }
}

/// Largest, probe, multiply, round, two sums.
fn quantize(isa: IsaChoice) -> Result<Case, OutOfMemory> {
    let mut activations = Activations::new(1, WIDTH)?;
    let x = noise(WIDTH);
    Ok(Case::new(work(5 * WIDTH, WIDTH, 6), move || {
        // SAFETY: a single thread.
        unsafe { activations.view(WIDTH).put(isa, 0, &x, false) };
    }))
}

/// Square and add, two multiplications.
fn norm(isa: IsaChoice) -> Case {
    let (x, weight, mut out) = (noise(WIDTH), noise(WIDTH), vec![0.0; WIDTH]);
    Case::new(work(12 * WIDTH, WIDTH, 3), move || {
        let norm = NormValues {
            kind: NormKind::RootMeanSquare,
            weight: &weight,
            bias: None,
            eps: 1e-5,
        };
        isa.run(Normalize {
            norm,
            x: &x,
            out: &mut out,
        });
    })
}

/// Four products for each pair.
fn rotate(isa: IsaChoice, pairing: Pairing) -> Case {
    let rope = Rope {
        pairing,
        inverse_frequencies: vec![0.1; HEAD_DIM / 2],
        magnitude: 1.0,
    };
    let mut turns = vec![0.0; HEAD_DIM];
    table(&rope, 77, &mut turns);
    let mut head = noise(HEAD_DIM);
    Case::new(work(12 * HEAD_DIM, HEAD_DIM, 2), move || {
        isa.run(Rotate {
            pairing,
            table: &turns,
            head: &mut head,
        });
    })
}

/// An exponential of 17 operations, and five more; twelve for the hyperbolic
/// tangent's way, nineteen for the error function's.
fn gate(isa: IsaChoice, activation: Activation) -> Case {
    let (gate, up) = (noise(WIDTH), noise(WIDTH));
    let mut out = up.clone();
    let operations = match activation {
        Activation::Silu | Activation::Tanh => 17 + 5,
        Activation::GeluTanh => 17 + 12,
        Activation::Gelu => 17 + 19,
        Activation::Relu => 1,
    };
    Case::new(work(12 * WIDTH, WIDTH, operations), move || {
        out.copy_from_slice(&up);
        isa.run(GatedUnit {
            activation,
            gate: &gate,
            up: &mut out,
        });
    })
}

struct Exponentials<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Exponentials<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let isa = isa.wide();
        let outs = self.out.as_chunks_mut::<16>().0;
        for (x, out) in self.x.as_chunks::<16>().0.iter().zip(outs) {
            // SAFETY: both chunks hold sixteen floats.
            unsafe { isa.store(out.as_mut_ptr(), exp(isa, isa.load(x.as_ptr()))) };
        }
    }
}

/// What the softmax is made of.
fn exponentials(isa: IsaChoice) -> Case {
    let (x, mut out) = (noise(WIDTH), vec![0.0; WIDTH]);
    Case::new(work(8 * WIDTH, WIDTH, 17), move || {
        isa.run(Exponentials {
            x: &x,
            out: &mut out,
        });
    })
}
