//! The kernel of each layout, and the form in which a format is kept.

use super::activations::ActivationsView;
use super::codes::{Bits, CodeForm, Microscaling, Nonlinear};
use super::layout::{BRAIN, BYTES, COLUMNS, HALF, Layout, Packed, Recipe, SINGLE, STORED, Stored};
use super::packed::GroupProduct;
use crate::isa::IsaChoice;
use forthwith_core::format::{Affine, Codes, Format, Scales};
use std::marker::PhantomData;

/// How a matrix of a format is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// Integer codes with scales; products read quantized activations.
    Packed(&'static PackedKernel),
    /// Floats of that format; products read plain activations.
    Dense(Format),
}

/// The product of a layout.
#[derive(Debug)]
pub(crate) struct PackedKernel {
    pub(crate) recipe: Recipe,
    pub(crate) run: fn(IsaChoice, Product<'_>),
}

/// What a [`GroupProduct`] needs, whatever the layout.
pub(crate) struct Product<'a> {
    pub(crate) group: &'a [u8],
    pub(crate) activations: ActivationsView<'a>,
    pub(crate) rows: usize,
    pub(crate) out: &'a mut [f32],
    pub(crate) panel: &'a mut [u8],
}

/// Every layout that has a kernel. Two formats of one layout share a row.
static KERNELS: [PackedKernel; 15] = [
    kernel::<Bits<2>, 16, BYTES, STORED>(),
    kernel::<Bits<3>, 16, BYTES, 4>(),
    kernel::<Bits<4>, 32, HALF, 8>(),
    kernel::<Bits<4>, 32, HALF, STORED>(),
    kernel::<Bits<4>, 32, BYTES, STORED>(),
    kernel::<Bits<5>, 32, HALF, 16>(),
    kernel::<Bits<5>, 32, HALF, STORED>(),
    kernel::<Bits<5>, 32, BYTES, STORED>(),
    kernel::<Bits<6>, 16, BYTES, 32>(),
    kernel::<Bits<8>, 32, HALF, 0>(),
    kernel::<Nonlinear, 32, HALF, 0>(),
    kernel::<Nonlinear, 32, BYTES, 0>(),
    kernel::<Microscaling, 32, BRAIN, 0>(),
    // What formats without a kernel of their own are expanded to.
    kernel::<Bits<8>, 32, SINGLE, 0>(),
    kernel::<Bits<8>, 16, SINGLE, 0>(),
];

const fn kernel<C: CodeForm, const SUB: usize, const SCALE: u32, const ZERO: i32>() -> PackedKernel
{
    PackedKernel {
        recipe: Packed::<C, SUB, SCALE, ZERO>::RECIPE,
        run: run::<Packed<C, SUB, SCALE, ZERO>>,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "its slices are written")]
fn run<L: Layout>(isa: IsaChoice, product: Product<'_>) {
    isa.run(GroupProduct {
        group: product.group,
        activations: product.activations,
        rows: product.rows,
        out: product.out,
        panel: product.panel,
        layout: PhantomData::<L>,
    });
}

fn find(recipe: Recipe) -> Option<&'static PackedKernel> {
    KERNELS.iter().find(|kernel| kernel.recipe == recipe)
}

impl Form {
    /// The form of a format: its own layout where that has a kernel; else signed bytes, which hold
    /// the codes of every format without offsets exactly; else single floats.
    pub(crate) fn of(format: Format) -> Self {
        let Some(affine) = &format.info().affine else {
            return match format {
                Format::F32 | Format::F16 | Format::BF16 => Self::Dense(format),
                _ => Self::Dense(Format::F32),
            };
        };
        let bytes = Recipe {
            bits: 8,
            table: None,
            scales: Stored::Floats(Scales::Single),
            zero: 0,
            ..Recipe::of(affine)
        };
        let kernel = find(Recipe::of(affine));
        let kernel = kernel.or_else(|| affine.zero_point.and_then(|_| find(bytes)));
        kernel.map_or(Self::Dense(Format::F32), Self::Packed)
    }

    /// What a format is expanded to, if no kernel reads its codes as they are stored.
    pub(crate) fn expansion(format: Format) -> Option<&'static str> {
        let info = format.info();
        match Self::of(format) {
            // Codes that alone take more room than the file's blocks.
            Self::Packed(kernel) => (kernel.recipe.bits * info.elements > 8 * info.bytes)
                .then_some("signed bytes with scales, exactly"),
            Self::Dense(kept) => (kept != format).then_some("F32, rounded to the nearest"),
        }
    }

    /// Whether products read the plain rows of activations.
    pub(crate) fn reads_plain(self) -> bool {
        matches!(self, Self::Dense(_))
    }

    /// The bytes of sixteen rows of `cols` columns.
    pub(crate) fn group_bytes(self, cols: usize) -> usize {
        match self {
            Self::Packed(kernel) => {
                let recipe = kernel.recipe;
                cols / COLUMNS / recipe.run() * recipe.run_bytes()
            }
            Self::Dense(format) => cols * super::LANES * format.info().bytes,
        }
    }
}

impl Recipe {
    /// Turns a split's codes into those that are stored.
    pub(crate) fn convert(self, affine: &Affine, codes: &mut [u8]) {
        if self.bits != 8 || affine.codes == Codes::Signed8 {
            return;
        }
        let zero = affine.zero_point.map_or(0.0, f32::from);
        for code in codes {
            #[expect(clippy::cast_possible_truncation, reason = "values of at most 8 bits")]
            let value = (affine.codes.value(*code) - zero) as i8;
            *code = value.cast_unsigned();
        }
    }
}
