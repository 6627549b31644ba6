//! Views of stored tensors.

use crate::format::Format;

/// A tensor as it lies in a model file: row-major, `rows × cols`, each row a whole number of blocks.
///
/// A one-dimensional tensor has one row. `bytes.len()` equals `rows · format.row_bytes(cols)`;
/// whoever builds a view checks that once.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// The tensor's name in the file.
    pub name: &'a str,
    /// How its elements are stored.
    pub format: Format,
    /// The number of rows (outputs of a matrix product).
    pub rows: usize,
    /// The number of columns (inputs of a matrix product), the contiguous dimension.
    pub cols: usize,
    /// The stored blocks.
    pub bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// The stored bytes of one row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let stride = self.format.row_bytes(self.cols);
        &self.bytes[row * stride..(row + 1) * stride]
    }

    /// All elements as `f32`, row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        self.format.dequantize(self.bytes, &mut out);
        out
    }
}

/// Stored bytes that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReadError(pub String);

/// Where an executor finds the weights that a program names.
pub trait WeightSource: Sync {
    /// The tensor of that name, if the file has it.
    fn tensor(&self, name: &str) -> Option<TensorView<'_>>;

    /// Copies stored bytes of a tensor, from byte `offset` of it on.
    ///
    /// A source that lies in a file reads it here: what has become of the file since it was opened
    /// is an error, where looking through [`TensorView::bytes`] would end the process.
    fn read(&self, name: &str, offset: usize, out: &mut [u8]) -> Result<(), ReadError> {
        let end = offset.saturating_add(out.len());
        let bytes = self
            .tensor(name)
            .and_then(|view| view.bytes.get(offset..end));
        let bytes = bytes.ok_or_else(|| ReadError("no such bytes".to_owned()))?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}
