//! Float matrices in a smaller format, made while a model is opened.
//!
//! The file stays as it is; the new bytes lie in memory until they are packed for a backend.

use crate::{Backing, WeightFile};
use forthwith_core::format::{Encoder, Format};
use forthwith_core::shape::TensorView;
use forthwith_core::units::Bytes;
use std::thread;

/// What became of a file's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requantized {
    /// Matrices in the new format.
    pub matrices: usize,
    /// Float matrices that stay as they are: their width is no multiple of the format's blocks, or no
    /// product reads them.
    pub kept: usize,
    /// The size of the new ones before and after.
    pub bytes: (Bytes, Bytes),
}

/// Parts of names of tensors that are read row by row, or are too small to matter.
const KEPT: [&str; 5] = [
    "position_embd",
    "token_types",
    "relative_attention_bias",
    "head.",
    "norm",
];

impl WeightFile {
    /// Puts the float matrices that products read into a format, with so many threads.
    ///
    /// # Panics
    /// If the format is only read, see [`Encoder::Absent`].
    #[must_use]
    pub fn requantized(mut self, format: Format, threads: usize) -> (Self, Requantized) {
        assert!(
            matches!(format.info().encoder, Encoder::Rounding { .. }),
            "{format} is only read"
        );
        let mut bytes = Vec::new();
        let mut told = Requantized {
            matrices: 0,
            kept: 0,
            bytes: (Bytes::ZERO, Bytes::ZERO),
        };
        let own = self.backings.len();
        for position in 0..self.index.tensors.len() {
            let view = self.view(position);
            let floats = [Format::F32, Format::F16, Format::BF16].contains(&view.format);
            if view.rows < 2 || !floats {
                continue;
            }
            let fits = view.cols.is_multiple_of(format.info().elements);
            if !fits || KEPT.iter().any(|part| view.name.contains(part)) {
                told.kept += 1;
                continue;
            }
            let start = bytes.len();
            let before = view.bytes.len();
            bytes.extend(encode(&view, format, threads));
            told.matrices += 1;
            told.bytes.0 += Bytes::new(before as u64);
            told.bytes.1 += Bytes::new((bytes.len() - start) as u64);
            let entry = &mut self.index.tensors[position];
            (entry.format, entry.backing) = (format, own);
            entry.bytes = start..bytes.len();
        }
        self.backings.push(Backing::Owned(bytes));
        (self, told)
    }
}

/// Encodes a matrix, its rows divided among threads.
fn encode(view: &TensorView<'_>, format: Format, threads: usize) -> Vec<u8> {
    let stored = view.format.row_bytes(view.cols);
    let row_bytes = format.row_bytes(view.cols);
    let mut out = vec![0; view.rows * row_bytes];
    let rows = view.rows.div_ceil(threads.max(1));
    thread::scope(|scope| {
        let parts = out
            .chunks_mut(rows * row_bytes)
            .zip(view.bytes.chunks(rows * stored));
        for (out, bytes) in parts {
            scope.spawn(move || {
                let mut values = vec![0.0; view.cols];
                for (out, row) in out.chunks_mut(row_bytes).zip(bytes.chunks(stored)) {
                    view.format.dequantize(row, &mut values);
                    out.copy_from_slice(&format.quantize(&values));
                }
            });
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::GgufWriter;
    use forthwith_core::shape::WeightSource as _;

    #[test]
    fn float_matrices_become_smaller_and_all_else_stays() {
        let values = |count: u16| -> Vec<f32> {
            (0..count).map(|at| (f32::from(at) * 0.37).sin()).collect()
        };
        let bytes = GgufWriter::new()
            .tensor("blk.0.ffn_up.weight", Format::F32, &[64, 5], &values(320))
            .tensor("blk.0.narrow.weight", Format::F16, &[40, 2], &values(80))
            .tensor("position_embd.weight", Format::F32, &[64, 2], &values(128))
            .tensor("blk.0.small.weight", Format::Q4_0, &[64, 2], &values(128))
            .tensor("output_norm.weight", Format::F32, &[64], &values(64))
            .to_bytes();
        let open = || WeightFile::from_bytes("m.gguf".as_ref(), bytes.clone()).unwrap();
        let (file, told) = open().requantized(Format::Q8_0, 3);
        assert_eq!((told.matrices, told.kept), (1, 2));
        assert_eq!(
            (told.bytes.0.get(), told.bytes.1.get()),
            (320 * 4, 320 / 32 * 34)
        );
        let tensor = file.tensor("blk.0.ffn_up.weight").unwrap();
        assert_eq!(
            (tensor.format, tensor.rows, tensor.cols),
            (Format::Q8_0, 5, 64)
        );
        for (got, want) in tensor.to_f32().iter().zip(values(320)) {
            assert!((got - want).abs() < 0.005, "{got} {want}");
        }
        let mut row = vec![0; 68];
        file.read("blk.0.ffn_up.weight", 68, &mut row).unwrap();
        assert_eq!(row, tensor.bytes[68..136]);
        for name in [
            "blk.0.narrow.weight",
            "position_embd.weight",
            "blk.0.small.weight",
        ] {
            let (file, before) = (file.tensor(name).unwrap(), open());
            assert_eq!(file.bytes, before.tensor(name).unwrap().bytes, "{name}");
        }
        let (one, _) = open().requantized(Format::Q8_0, 1);
        let again = one.tensor("blk.0.ffn_up.weight").unwrap();
        assert_eq!(again.bytes, tensor.bytes, "whatever the number of threads");
    }
}
