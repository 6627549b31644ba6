//! The list of tensors: names, shapes, formats and where their bytes lie.

use super::cursor::{Cursor, Owner};
use crate::error::{Fault, one_line};
use forthwith_core::format::Format;
use std::collections::HashMap;
use std::ops::Range;

const MAX_NAME_BYTES: usize = 255;
const MAX_DIMENSIONS: u32 = 4;

/// One tensor. Its bytes lie in the file and number `rows · format.row_bytes(cols)`.
#[derive(Debug)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Which of the file's parts holds the bytes.
    pub(crate) backing: usize,
    pub(crate) bytes: Range<usize>,
}

/// All tensors in file order, and the position of each name.
#[derive(Debug)]
pub(super) struct Tensors {
    pub(super) entries: Vec<TensorEntry>,
    pub(super) positions: HashMap<String, usize>,
}

/// A tensor as the index lists it, its bytes not placed yet.
struct Listed<'a> {
    name: &'a str,
    format: Format,
    rows: usize,
    cols: usize,
    size: u64,
    offset: u64,
}

/// Reads `count` tensors and places them in the data section that follows the list.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    count: usize,
    alignment: u64,
) -> Result<Tensors, Fault> {
    let mut listed = Vec::new();
    for number in 0..count as u64 {
        listed.push(read_one(cursor, number)?);
    }
    let data_start = (cursor.position() as u64).next_multiple_of(alignment);
    let file_size = (cursor.position() + cursor.left()) as u64;
    let mut tensors = Tensors {
        entries: Vec::new(),
        positions: HashMap::new(),
    };
    let mut free_from = 0;
    for tensor in listed {
        let end = tensor.check_place(alignment, free_from)?;
        let bytes = file_range(data_start, tensor.offset, tensor.size, file_size)
            .ok_or_else(|| tensor.fault("offset", tensor.past_the_end(data_start, file_size)))?;
        free_from = end;
        let name = tensor.name.to_owned();
        if tensors
            .positions
            .insert(name.clone(), tensors.entries.len())
            .is_some()
        {
            return Err(tensor.fault("", "appears twice"));
        }
        tensors.entries.push(TensorEntry {
            name,
            format: tensor.format,
            rows: tensor.rows,
            cols: tensor.cols,
            backing: 0,
            bytes,
        });
    }
    Ok(tensors)
}

fn read_one<'a>(cursor: &mut Cursor<'a>, number: u64) -> Result<Listed<'a>, Fault> {
    let owner = Owner::NumberedTensor(number);
    let name = cursor.string(owner, "name length", MAX_NAME_BYTES)?;
    let name = match std::str::from_utf8(name) {
        Ok("") => {
            return Err(Fault::malformed(
                owner.part("name length"),
                "0, a tensor has a name",
            ));
        }
        Ok(name) => name,
        Err(_) => return Err(Fault::malformed(owner.part("name"), "not UTF-8")),
    };
    let owner = Owner::Tensor(name);
    let (rows, cols) = read_shape(cursor, owner)?;
    let number = cursor.u32(owner.part("type"))?;
    let format = Format::from_gguf_id(number).ok_or_else(|| Fault::UnsupportedType {
        tensor: one_line(name),
        number,
        name: type_name(number),
    })?;
    let offset = cursor.u64(owner.part("offset"))?;
    let info = format.info();
    let dims = owner.part("dims");
    if cols % info.elements as u64 != 0 {
        let problem = format!(
            "rows of {cols} elements are no whole blocks of {} {format}",
            info.elements
        );
        return Err(Fault::malformed(dims, problem));
    }
    let row_bytes = (cols / info.elements as u64).checked_mul(info.bytes as u64);
    let size = row_bytes.and_then(|bytes| bytes.checked_mul(rows));
    let too_large = || Fault::malformed(dims, format!("[{rows}, {cols}] overflows"));
    Ok(Listed {
        name,
        format,
        rows: usize::try_from(rows).map_err(|_| too_large())?,
        cols: usize::try_from(cols).map_err(|_| too_large())?,
        size: size.ok_or_else(too_large)?,
        offset,
    })
}

/// Rows and columns: the first dimension is the contiguous one, all others fold into rows.
fn read_shape(cursor: &mut Cursor<'_>, owner: Owner<'_>) -> Result<(u64, u64), Fault> {
    let count = cursor.u32(owner.part("dimension count"))?;
    if !(1..=MAX_DIMENSIONS).contains(&count) {
        let problem = format!("{count}, allowed are 1 to {MAX_DIMENSIONS}");
        return Err(Fault::malformed(owner.part("dimension count"), problem));
    }
    let field = owner.part("dims");
    let cols = cursor.u64(field)?;
    let mut rows: u64 = 1;
    let mut elements = Some(cols);
    for _ in 1..count {
        let dimension = cursor.u64(field)?;
        elements = elements.and_then(|elements| elements.checked_mul(dimension));
        rows = rows.wrapping_mul(dimension);
    }
    match elements {
        Some(0) => Err(Fault::malformed(field, "a dimension is 0")),
        Some(_) => Ok((rows, cols)),
        None => Err(Fault::malformed(
            field,
            "the number of elements overflows 64 bits",
        )),
    }
}

impl Listed<'_> {
    /// Checks alignment and order; returns where the tensor ends in the data section.
    fn check_place(&self, alignment: u64, free_from: u64) -> Result<u64, Fault> {
        let offset = self.offset;
        if !offset.is_multiple_of(alignment) {
            return Err(self.fault("offset", format!("{offset} is no multiple of {alignment}")));
        }
        if offset < free_from {
            let problem = format!("{offset} overlaps the tensor before, which ends at {free_from}");
            return Err(self.fault("offset", problem));
        }
        offset
            .checked_add(self.size)
            .ok_or_else(|| self.fault("offset", format!("{offset} overflows")))
    }

    fn past_the_end(&self, data_start: u64, file_size: u64) -> String {
        format!(
            "{} bytes at {data_start} + {} end after the file's {file_size} bytes; \
             it is cut short, fetch it again",
            self.size, self.offset
        )
    }

    fn fault(&self, part: &'static str, problem: impl Into<String>) -> Fault {
        Fault::malformed(Owner::Tensor(self.name).part(part), problem)
    }
}

fn file_range(data_start: u64, offset: u64, size: u64, file_size: u64) -> Option<Range<usize>> {
    let start = data_start.checked_add(offset)?;
    let end = start.checked_add(size).filter(|&end| end <= file_size)?;
    Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

/// The names of all tensor types that GGUF has numbered, also those that have no format here.
pub(super) fn type_name(number: u32) -> &'static str {
    const NAMES: &[&str] = &[
        "F32",
        "F16",
        "Q4_0",
        "Q4_1",
        "Q4_2, removed",
        "Q4_3, removed",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q8_1",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "Q8_K",
        "IQ2_XXS",
        "IQ2_XS",
        "IQ3_XXS",
        "IQ1_S",
        "IQ4_NL",
        "IQ3_S",
        "IQ2_S",
        "IQ4_XS",
        "I8",
        "I16",
        "I32",
        "I64",
        "F64",
        "IQ1_M",
        "BF16",
        "Q4_0_4_4, removed",
        "Q4_0_4_8, removed",
        "Q4_0_8_8, removed",
        "TQ1_0",
        "TQ2_0",
        "IQ4_NL_4_4, removed",
        "IQ4_NL_4_8, removed",
        "IQ4_NL_8_8, removed",
        "MXFP4",
        "NVFP4",
        "Q1_0",
        "Q2_0",
    ];
    usize::try_from(number)
        .ok()
        .and_then(|index| NAMES.get(index))
        .unwrap_or(&"unknown")
}
