//! A weight matrix in this backend's memory.

use super::activations::ActivationsView;
use super::dense::{self, DenseProduct};
use super::kernels::{Form, Product};
pub(crate) use super::layout::LANES;
use super::layout::{COLUMNS, EXPANDED_RECORD, Recipe, Scale, Stored};
use crate::isa::IsaChoice;
use crate::kv::{BrainStore, HalfStore, SingleStore};
use crate::memory::{Buffer, OutOfMemory};
use crate::team::{Member, Team};
use forthwith_core::format::Format;
use forthwith_core::program::WeightSpec;
use forthwith_core::shape::{ReadError, TensorView, WeightSource};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a cache line: where matrices start.
const LINE: usize = 64;
/// Stored bytes that a thread reads and packs at a time.
const RUN_BYTES: usize = 256 << 10;

/// Scratch for one thread's products with matrices of `cols` columns, in bytes.
pub(crate) fn panel_bytes(cols: usize) -> usize {
    (cols / COLUMNS * EXPANDED_RECORD).max(dense::PANEL_BYTES)
}

/// A matrix in groups of sixteen rows; the last group is padded with zero rows.
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    form: Form,
    group_bytes: usize,
    /// What all matrices of a model lie in.
    memory: Arc<Buffer<u8>>,
    start: usize,
}

/// The bytes of a matrix as this backend keeps it.
pub(crate) fn stored_bytes(spec: &WeightSpec) -> usize {
    let bytes = spec.rows.div_ceil(LANES) * group_bytes(spec.format, spec.cols);
    bytes.next_multiple_of(LINE)
}

fn group_bytes(format: Format, cols: usize) -> usize {
    Form::of(format).group_bytes(cols)
}

/// Packs the matrices of a model one behind the other into memory of its own: many are smaller than
/// a huge page.
pub(crate) struct Packer {
    memory: Buffer<u8>,
    packed: Vec<Place>,
    end: usize,
}

/// Where a packed matrix lies.
struct Place {
    spec: (usize, usize, Format),
    start: usize,
}

impl Packer {
    /// Room for matrices of `bytes` by [`stored_bytes`].
    pub(crate) fn new(bytes: usize) -> Result<Self, OutOfMemory> {
        Ok(Self {
            memory: Buffer::zeroed(bytes)?,
            packed: Vec::new(),
            end: 0,
        })
    }

    /// Repacks a stored tensor behind the last one; the team's members read what they pack.
    pub(crate) fn pack(
        &mut self,
        tensor: &TensorView<'_>,
        source: &dyn WeightSource,
        team: &mut Team,
    ) -> Result<(), ReadError> {
        let group_bytes = group_bytes(tensor.format, tensor.cols);
        let groups = tensor.rows.div_ceil(LANES);
        let (start, size) = (self.end, groups * group_bytes);
        let stored = LANES * tensor.format.row_bytes(tensor.cols);
        let run = (RUN_BYTES / stored).min(groups / team.members()).max(1);
        let target = self.memory.shared();
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        let job = |_: Member<'_>| {
            let mut bytes = Vec::new();
            loop {
                let first = next.fetch_add(run, Ordering::Relaxed);
                if first >= groups {
                    return;
                }
                let end = (first + run).min(groups);
                let place = start + first * group_bytes..start + end * group_bytes;
                // SAFETY: the counter hands out each group once.
                let out = unsafe { target.range_mut(place) };
                if let Err(error) = pack_run(tensor, source, first, &mut bytes, out) {
                    next.store(groups, Ordering::Relaxed);
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    *failure = Some(error);
                }
            }
        };
        team.run(&job).map_err(ReadError)?;
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let spec = (tensor.rows, tensor.cols, tensor.format);
        self.packed.push(Place { spec, start });
        self.end = (start + size).next_multiple_of(LINE);
        Ok(())
    }

    /// The matrices, in the order of packing.
    pub(crate) fn finish(self) -> impl Iterator<Item = Matrix> {
        let memory = Arc::new(self.memory);
        self.packed.into_iter().map(move |place| {
            let (rows, cols, format) = place.spec;
            Matrix {
                rows,
                cols,
                form: Form::of(format),
                group_bytes: group_bytes(format, cols),
                memory: Arc::clone(&memory),
                start: place.start,
            }
        })
    }
}

impl Matrix {
    /// The number of groups.
    pub(crate) fn groups(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Whether products read the plain rows of activations.
    pub(crate) fn reads_plain(&self) -> bool {
        self.form.reads_plain()
    }

    /// How many groups are best multiplied at a time by so many rows of activations.
    pub(crate) fn together(&self, tokens: usize) -> usize {
        match self.form {
            Form::Packed(_) => 1,
            Form::Dense(_) => dense::together(tokens),
        }
    }

    fn stored(&self, groups: Range<usize>) -> &[u8] {
        let place = |group: usize| self.start + group * self.group_bytes;
        &self.memory[place(groups.start)..place(groups.end)]
    }

    /// Expands one row.
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        let (group, lane) = (row / LANES, row % LANES);
        let group = self.stored(group..group + 1);
        match self.form {
            Form::Packed(kernel) => {
                let recipe = kernel.recipe;
                let runs = group.chunks_exact(recipe.run_bytes());
                for (run, out) in runs.zip(out.chunks_exact_mut(recipe.run() * COLUMNS)) {
                    for (r, out) in out.chunks_exact_mut(COLUMNS).enumerate() {
                        recipe.read(run, r, lane, out);
                    }
                }
            }
            Form::Dense(format) => {
                let size = format.info().bytes;
                for (column, out) in group.chunks_exact(LANES * size).zip(out) {
                    let element = &column[lane * size..(lane + 1) * size];
                    format.dequantize(element, std::slice::from_mut(out));
                }
            }
        }
    }

    /// `out[group, t, lane]` for the sixteen rows of each group and the first `tokens` rows of
    /// activations.
    pub(crate) fn multiply(
        &self,
        isa: IsaChoice,
        groups: Range<usize>,
        (activations, tokens): (ActivationsView<'_>, usize),
        out: &mut [f32],
        panel: &mut [u8],
    ) {
        assert_eq!(activations.cols, self.cols, "activations match the matrix");
        let groups = self.stored(groups);
        macro_rules! dense {
            ($store:ident) => {
                isa.run(DenseProduct {
                    groups,
                    activations,
                    rows: tokens,
                    out,
                    panel,
                    store: PhantomData::<$store>,
                })
            };
        }
        match self.form {
            Form::Packed(kernel) => {
                let outs = out.chunks_exact_mut(tokens * LANES);
                for (group, out) in groups.chunks_exact(self.group_bytes).zip(outs) {
                    let product = Product {
                        group,
                        activations,
                        rows: tokens,
                        out,
                        panel,
                    };
                    (kernel.run)(isa, product);
                }
            }
            Form::Dense(Format::F16) => dense!(HalfStore),
            Form::Dense(Format::BF16) => dense!(BrainStore),
            Form::Dense(_) => dense!(SingleStore),
        }
    }
}

/// Reads and packs the groups from `first` on that fill `out`.
fn pack_run(
    tensor: &TensorView<'_>,
    source: &dyn WeightSource,
    first: usize,
    bytes: &mut Vec<u8>,
    out: &mut [u8],
) -> Result<(), ReadError> {
    let group_bytes = group_bytes(tensor.format, tensor.cols);
    let row_bytes = tensor.format.row_bytes(tensor.cols);
    let row = first * LANES;
    let rows = (out.len() / group_bytes * LANES).min(tensor.rows - row);
    bytes.resize(rows * row_bytes, 0);
    source.read(tensor.name, row * row_bytes, bytes)?;
    let view = TensorView {
        rows,
        bytes,
        ..*tensor
    };
    for (index, group) in out.chunks_exact_mut(group_bytes).enumerate() {
        pack_group(&view, index * LANES, group);
    }
    Ok(())
}

/// Packs rows `first..first + 16` (those that exist) into a zeroed group.
fn pack_group(view: &TensorView<'_>, first: usize, group: &mut [u8]) {
    for lane in 0..LANES.min(view.rows - first) {
        let row = view.row(first + lane);
        match Form::of(view.format) {
            Form::Packed(kernel) => pack_codes(view.format, row, kernel.recipe, lane, group),
            Form::Dense(format) if format == view.format => {
                interleave(row, format.info().bytes, lane, group);
            }
            Form::Dense(format) => {
                let mut values = vec![0.0; view.cols];
                view.format.dequantize(row, &mut values);
                interleave(&format.quantize(&values), format.info().bytes, lane, group);
            }
        }
    }
}

/// Puts a row of elements of `size` bytes into its lane.
fn interleave(row: &[u8], size: usize, lane: usize, group: &mut [u8]) {
    let places = group.chunks_exact_mut(LANES * size);
    for (element, place) in row.chunks_exact(size).zip(places) {
        place[lane * size..(lane + 1) * size].copy_from_slice(element);
    }
}

fn pack_codes(format: Format, row: &[u8], recipe: Recipe, lane: usize, group: &mut [u8]) {
    let info = format.info();
    let affine = info.affine.as_ref().expect("packed formats have codes");
    let subs = info.elements / affine.sub_block;
    let (mut codes, mut scales) = (vec![0; info.elements], vec![0.0; subs]);
    let mut offsets = vec![0.0; subs];
    let (mut scale_times, mut offset_times) = (vec![0; subs], vec![0; subs]);
    let multiples = affine
        .multiples
        .filter(|_| recipe.scales == Stored::Multiples);
    let (mut runs, records) = (group.chunks_exact_mut(recipe.run_bytes()), recipe.run());
    let per_record = COLUMNS / affine.sub_block;
    for block in row.chunks_exact(info.bytes) {
        (affine.split)(block, &mut codes, &mut scales, &mut offsets);
        recipe.convert(affine, &mut codes);
        let factors = multiples.map(|read| read(block, &mut scale_times, &mut offset_times));
        for (first, codes) in codes.chunks_exact(records * COLUMNS).enumerate() {
            let run = runs.next().expect("a row's blocks fill its runs");
            if let Some(factors) = factors {
                recipe.put_factors(run, lane, factors);
            }
            for (r, codes) in codes.chunks_exact(COLUMNS).enumerate() {
                recipe.put_codes(run, r, lane, codes);
                for sub in 0..per_record {
                    let at = (first * records + r) * per_record + sub;
                    let of = match factors {
                        Some(_) => (
                            Scale::Times(scale_times[at]),
                            Scale::Times(offset_times[at]),
                        ),
                        None => (Scale::Float(scales[at]), Scale::Float(offsets[at])),
                    };
                    recipe.put_affine(run, (r, lane, sub), of);
                }
            }
        }
    }
}

/// The meaning of a product: plain loops over dequantized weights, in double precision.
///
/// `out[t, row] = Σ_k weight[row, k] · x[t, k]`
pub(crate) fn reference(weights: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    let rows = weights.len() / cols;
    for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(rows)) {
        for (weights, out) in weights.chunks_exact(cols).zip(out) {
            *out = dot(weights, x);
        }
    }
}

/// How many rows of a matrix a thread asks for at once.
const ROWS_AT_ONCE: usize = 64;

/// The same, rows of the matrix divided among threads for speed; the result is the same.
///
/// `weights` gives a range of rows, of `shape = [rows, cols]`.
///
/// # Errors     what `weights` says
pub(crate) fn reference_on_threads<'a, E: Send>(
    shape: [usize; 2],
    weights: &(impl Fn(Range<usize>) -> Result<Cow<'a, [f32]>, E> + Sync),
    x: &[f32],
    out: &mut [f32],
) -> Result<(), E> {
    let ([rows, cols], tokens) = (shape, x.len() / shape[1]);
    let share = rows.div_ceil(crate::affinity::usable_cpus());
    let share_of = |first: usize| -> Result<Vec<Vec<f32>>, E> {
        let end = (first + share).min(rows);
        let mut columns = vec![Vec::with_capacity(end - first); tokens];
        for first in (first..end).step_by(ROWS_AT_ONCE) {
            let some = weights(first..end.min(first + ROWS_AT_ONCE))?;
            let mut out = vec![0.0; some.len() / cols * tokens];
            reference(&some, x, cols, &mut out);
            let width = some.len() / cols;
            for (column, out) in columns.iter_mut().zip(out.chunks_exact(width)) {
                column.extend_from_slice(out);
            }
        }
        Ok(columns)
    };
    let parts: Vec<Result<Vec<Vec<f32>>, E>> = std::thread::scope(|scope| {
        let firsts = (0..rows).step_by(share.max(1));
        let running: Vec<_> = firsts
            .map(|first| scope.spawn(move || share_of(first)))
            .collect();
        let parts = running.into_iter();
        parts
            .map(|part| part.join().expect("plain loops"))
            .collect()
    });
    let mut start = 0;
    for part in parts {
        let columns = part?;
        let width = columns.first().map_or(0, Vec::len);
        for (column, out) in columns.iter().zip(out.chunks_exact_mut(rows)) {
            out[start..start + width].copy_from_slice(column);
        }
        start += width;
    }
    Ok(())
}

/// A dot product in double precision, eight partial sums.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the result is a float by contract"
)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f64; 8];
    let (a_chunks, a_rest) = a.as_chunks::<8>();
    let (b_chunks, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for i in 0..8 {
            sums[i] += f64::from(a[i]) * f64::from(b[i]);
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] += f64::from(*a) * f64::from(*b);
    }
    sums.iter().sum::<f64>() as f32
}

#[cfg(test)]
mod tests {
    use super::super::activations::{self, Activations};
    use super::*;
    use forthwith_core::conformance::encode;
    use proptest::prelude::*;

    fn random_floats(len: usize) -> impl Strategy<Value = Vec<f32>> {
        proptest::collection::vec(-1.0_f32..1.0, len)
    }

    /// Few rows, and so many that groups are expanded first.
    fn few_or_many() -> impl Strategy<Value = usize> {
        prop_oneof![3 => 1_usize..14, 1 => 33_usize..46]
    }

    /// A source of one tensor.
    struct One<'a>(TensorView<'a>);

    impl WeightSource for One<'_> {
        fn tensor(&self, _: &str) -> Option<TensorView<'_>> {
            Some(self.0)
        }
    }

    /// A source whose bytes end after the first rows.
    struct Cut<'a>(TensorView<'a>);

    impl WeightSource for Cut<'_> {
        fn tensor(&self, _: &str) -> Option<TensorView<'_>> {
            Some(self.0)
        }

        fn read(&self, _: &str, offset: usize, _: &mut [u8]) -> Result<(), ReadError> {
            match offset {
                0 => Ok(()),
                _ => Err(ReadError("cut".to_owned())),
            }
        }
    }

    #[test]
    fn bytes_that_cannot_be_read_are_an_error() {
        let bytes = vec![0; 4 * 256 * 64];
        let (name, format, rows, cols) = ("w", Format::F32, 64, 256);
        let view = TensorView {
            name,
            format,
            rows,
            cols,
            bytes: &bytes,
        };
        let mut team = Team::new(2).unwrap();
        let mut packer = Packer::new(bytes.len()).unwrap();
        let cut = packer.pack(&view, &Cut(view), &mut team);
        assert_eq!(cut, Err(ReadError("cut".to_owned())));
        assert_eq!(packer.pack(&view, &One(view), &mut team), Ok(()));
    }

    fn pack(view: &TensorView<'_>, threads: usize) -> Matrix {
        let (name, rows, cols, format) = (String::new(), view.rows, view.cols, view.format);
        let spec = WeightSpec {
            first: 0,
            name,
            rows,
            cols,
            format,
        };
        let mut team = Team::new(threads).unwrap();
        let mut packer = Packer::new(2 * stored_bytes(&spec)).unwrap();
        packer.pack(view, &One(*view), &mut team).unwrap();
        packer.pack(view, &One(*view), &mut team).unwrap();
        packer.finish().nth(1).unwrap()
    }

    fn product(isa: IsaChoice, matrix: &Matrix, x: &[f32]) -> Vec<f32> {
        product_of(isa, matrix, x, matrix.groups())
    }

    /// The product, so many groups at a time.
    fn product_of(isa: IsaChoice, matrix: &Matrix, x: &[f32], together: usize) -> Vec<f32> {
        let tokens = x.len() / matrix.cols;
        let mut activations = Activations::new(tokens, matrix.cols).unwrap();
        let view = activations.view(matrix.cols);
        for (row, values) in x.chunks_exact(matrix.cols).enumerate() {
            // SAFETY: a single thread.
            unsafe { view.put(isa, row, values, true) };
        }
        let mut out = vec![0.0; tokens * matrix.rows];
        let mut tiles = vec![0.0; together * tokens * LANES];
        let mut panel = vec![0; panel_bytes(matrix.cols)];
        for first in (0..matrix.groups()).step_by(together) {
            let groups = first..(first + together).min(matrix.groups());
            matrix.multiply(isa, groups.clone(), (view, tokens), &mut tiles, &mut panel);
            for (group, tile) in groups.zip(tiles.chunks_exact(tokens * LANES)) {
                let rows = LANES.min(matrix.rows - group * LANES);
                for (t, lanes) in tile.chunks_exact(LANES).enumerate() {
                    let at = t * matrix.rows + group * LANES;
                    out[at..at + rows].copy_from_slice(&lanes[..rows]);
                }
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn products_match_the_reference(
            (rows, tokens) in (1_usize..20, few_or_many()),
            weights in random_floats(20 * 256), x in random_floats(46 * 256),
        ) {
            for &format in Format::ALL {
                let weights = &weights[..rows * 256];
                let x = &x[..tokens * 256];
                let bytes = encode(format, weights);
                let view = TensorView { name: "w", format, rows, cols: 256, bytes: &bytes };
                let matrix = pack(&view, 2);
                let seen = if matrix.reads_plain() {
                    x.to_vec()
                } else {
                    x.chunks_exact(256).flat_map(activations::reference).collect()
                };
                let mut want = vec![0.0; rows * tokens];
                reference(&view.to_f32(), &seen, 256, &mut want);
                for isa in IsaChoice::available() {
                    let got = product(isa, &matrix, x);
                    for (got, want) in got.iter().zip(&want) {
                        prop_assert!((got - want).abs() < 4e-5, "{format} {isa:?}: {got} {want}");
                    }
                }
            }
        }

        #[test]
        fn neither_company_nor_isa_changes_a_bit(
            tokens in few_or_many(), cols in prop_oneof![Just(256_usize), Just(512)],
            weights in random_floats(88 * 512), x in random_floats(46 * 512),
        ) {
            for &format in Format::ALL {
                // Six groups: four and two at a time where rows are few.
                let bytes = encode(format, &weights[..88 * cols]);
                let view = TensorView { name: "w", format, rows: 88, cols, bytes: &bytes };
                let matrix = pack(&view, 1);
                let x = &x[..tokens * cols];
                let bits = |values: &[f32]| -> Vec<u32> {
                    values.iter().map(|value| value.to_bits()).collect()
                };
                let first = bits(&product(IsaChoice::best(), &matrix, x));
                for isa in IsaChoice::available() {
                    let together = product(isa, &matrix, x);
                    prop_assert_eq!(&first, &bits(&together), "{} {:?}", format, isa);
                    for groups in [1, 3] {
                        let alone = x.chunks_exact(cols);
                        let alone: Vec<f32> =
                            alone.flat_map(|x| product_of(isa, &matrix, x, groups)).collect();
                        prop_assert_eq!(&first, &bits(&alone), "{} {:?}", format, isa);
                    }
                }
            }
        }
    }

    #[test]
    fn extreme_codes_do_not_overflow() {
        // All codes at their maximum against activations of ±127 in every combination of sign.
        for &format in Format::ALL {
            let bytes = encode(
                format,
                &(0..512)
                    .map(|i| if i % 8 == 7 { -1.0 } else { 1.0 })
                    .collect::<Vec<f32>>(),
            );
            let view = TensorView {
                name: "w",
                format,
                rows: 2,
                cols: 256,
                bytes: &bytes,
            };
            let matrix = pack(&view, 1);
            for sign in [1.0, -1.0] {
                let x = vec![127.0 * sign; 256];
                let mut want = [0.0; 2];
                reference(&view.to_f32(), &x, 256, &mut want);
                for isa in IsaChoice::available() {
                    let got = product(isa, &matrix, &x);
                    assert!(
                        (got[1] - want[1]).abs() < 0.5,
                        "{format}: {} {}",
                        got[1],
                        want[1]
                    );
                }
            }
        }
    }

    #[test]
    fn rows_read_back_what_was_stored() {
        for &format in Format::ALL {
            let values: Vec<f32> = (0..11 * 256_u16)
                .map(|i| f32::from(i % 97) / 50.0 - 1.0)
                .collect();
            let bytes = encode(format, &values);
            let view = TensorView {
                name: "w",
                format,
                rows: 11,
                cols: 256,
                bytes: &bytes,
            };
            let matrix = pack(&view, 3);
            let mut row = vec![0.0; 256];
            for (r, want) in view.to_f32().chunks_exact(256).enumerate() {
                matrix.read_row(r, &mut row);
                for (got, want) in row.iter().zip(want) {
                    assert!((got - want).abs() <= 1e-6, "{format} row {r}: {got} {want}");
                }
            }
        }
    }
}
