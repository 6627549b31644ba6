//! Products of matrices in every format with few rows of activations and with many.

use super::{Case, Plan, Unit, Work, noise, number};
use crate::isa::IsaChoice;
use crate::memory::OutOfMemory;
use crate::quant::matrix::{Matrix, Packer, panel_bytes, stored_bytes};
use crate::quant::{Activations, FEW_TILES, LANES};
use crate::team::Team;
use forthwith_core::format::{Encoder, Format};
use forthwith_core::program::WeightSpec;
use forthwith_core::shape::{ReadError, TensorView, WeightSource};

const COLS: usize = 2048;
/// Packed bytes of a matrix: more than a cache holds.
const MATRIX_BYTES: usize = 96 << 20;
/// One run does about so many multiply-adds, on the next groups of the matrix.
const RUN_PRODUCTS: usize = 1 << 27;
const ROWS: [usize; 6] = [1, 2, 4, 8, 32, 512];

pub(super) fn plans() -> Vec<Plan> {
    let formats = Format::ALL.iter();
    let plans = formats.flat_map(|&format| {
        ROWS.map(|rows| {
            let name = format!("product/{}/{rows}", format.name().to_lowercase());
            Plan::new(name, move |isa| case(isa, format, rows))
        })
    });
    plans.collect()
}

/// Sixteen rows, over and over.
struct Repeated {
    bytes: Vec<u8>,
}

impl WeightSource for Repeated {
    fn tensor(&self, _: &str) -> Option<TensorView<'_>> {
        None
    }

    fn read(&self, _: &str, offset: usize, out: &mut [u8]) -> Result<(), ReadError> {
        let from = self.bytes.iter().cycle().skip(offset % self.bytes.len());
        for (to, from) in out.iter_mut().zip(from) {
            *to = *from;
        }
        Ok(())
    }
}

/// The values in a format; blocks of noise where the format is only read.
fn stored(format: Format, values: &[f32]) -> Vec<u8> {
    let info = format.info();
    let Encoder::Absent { rescale } = info.encoder else {
        return format.quantize(values);
    };
    let mut state = 1_u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    let count = values.len() / info.elements * info.bytes;
    let mut bytes: Vec<u8> = (0..count).map(|_| byte()).collect();
    for block in bytes.chunks_exact_mut(info.bytes) {
        rescale(block, 0.01);
    }
    bytes
}

/// A matrix that fills the memory.
fn matrix(format: Format) -> Result<Matrix, OutOfMemory> {
    let spec = |rows| WeightSpec {
        name: String::new(),
        first: 0,
        rows,
        cols: COLS,
        format,
    };
    let group = stored_bytes(&spec(LANES));
    let spec = spec(MATRIX_BYTES / group * LANES);
    let source = Repeated {
        bytes: stored(format, &noise(LANES * COLS)),
    };
    let view = TensorView {
        name: &spec.name,
        format,
        rows: spec.rows,
        cols: COLS,
        bytes: &[],
    };
    let mut packer = Packer::new(stored_bytes(&spec))?;
    let mut team = Team::new(1).expect("a team of one starts no thread");
    let packed = packer.pack(&view, &source, &mut team);
    packed.expect("the source has every byte");
    Ok(packer.finish().next().expect("one was packed"))
}

fn case(isa: IsaChoice, format: Format, rows: usize) -> Result<Case, OutOfMemory> {
    let matrix = matrix(format)?;
    let all = matrix.groups();
    let count = (RUN_PRODUCTS / (rows * LANES * COLS)).clamp(8, all);
    let mut activations = Activations::new(rows, COLS)?;
    let view = activations.view(COLS);
    for (row, x) in noise(rows * COLS).chunks_exact(COLS).enumerate() {
        // SAFETY: a single thread.
        unsafe { view.put(isa, row, x, true) };
    }
    let mut out = vec![0.0; rows.max(FEW_TILES) * LANES];
    let mut panel = vec![0; panel_bytes(COLS)];
    let stored = format.row_bytes(COLS) * LANES * count;
    let work = Work {
        bytes: number(stored),
        multiply_adds: number(rows * COLS * LANES * count),
        unit: if matrix.reads_plain() {
            Unit::Floats
        } else {
            Unit::Bytes
        },
    };
    let mut next = 0;
    Ok(Case::new(work, move || {
        let mut left = count;
        while left > 0 {
            let together = matrix.together(rows).min(left).min(all - next);
            let input = (activations.view(COLS), rows);
            matrix.multiply(isa, next..next + together, input, &mut out, &mut panel);
            next = (next + together) % all;
            left -= together;
        }
    }))
}
