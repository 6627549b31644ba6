//! Keys and values.

use super::cursor::{Cursor, Owner};
use crate::error::Fault;
use forthwith_core::metadata::{Metadata, Value};

pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
const MAX_KEY_BYTES: usize = 1_024;
const MAX_STRING_BYTES: usize = 64 << 20;
/// All keys and values together may take this much memory. The largest known vocabulary with its
/// merges takes a third of it; without it a sparse file of zeros could ask for eight times its size.
const MAX_METADATA_BYTES: usize = 128 << 20;
/// A short string on the heap: its handle, the allocator's header and smallest size class.
const STRING_OVERHEAD: usize = size_of::<Vec<u8>>() + 16;
/// The first reservation of an array of strings, however many the file announces.
const FIRST_STRINGS: usize = 4_096;

/// GGUF's numbers for the types of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Text,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn read(cursor: &mut Cursor<'_>, owner: Owner<'_>, part: &'static str) -> Result<Self, Fault> {
        let field = owner.part(part);
        let number = cursor.u32(field)?;
        let known = usize::try_from(number)
            .ok()
            .and_then(|index| Self::ALL.get(index));
        known.copied().ok_or_else(|| {
            Fault::malformed(
                field,
                format!("{number}, known are 0 to {}", Self::ALL.len() - 1),
            )
        })
    }

    /// The bytes of one element; a string takes at least its length.
    const fn smallest(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::Text | Self::Array | Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// Reads `count` keys with their values.
pub(super) fn read_all(cursor: &mut Cursor<'_>, count: usize) -> Result<Metadata, Fault> {
    let mut reader = Reader {
        cursor,
        allowance: MAX_METADATA_BYTES,
    };
    let mut metadata = Metadata::default();
    for number in 0..count as u64 {
        let key = reader.key(Owner::NumberedKey(number))?;
        let owner = Owner::Key(key);
        let value = reader.value(owner)?;
        if metadata.insert(key, value).is_some() {
            return Err(Fault::malformed(owner.part(""), "appears twice"));
        }
    }
    Ok(metadata)
}

struct Reader<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    /// Memory that further values may still take.
    allowance: usize,
}

impl<'a> Reader<'_, 'a> {
    fn key(&mut self, owner: Owner<'_>) -> Result<&'a str, Fault> {
        let bytes = self.cursor.string(owner, "length", MAX_KEY_BYTES)?;
        self.spend(bytes.len() + STRING_OVERHEAD, owner)?;
        match std::str::from_utf8(bytes) {
            Ok("") => Err(Fault::malformed(
                owner.part("length"),
                "0, a key has a name",
            )),
            Ok(key) => Ok(key),
            Err(_) => Err(Fault::malformed(owner.part("name"), "not UTF-8")),
        }
    }

    fn value(&mut self, owner: Owner<'_>) -> Result<Value, Fault> {
        let kind = Kind::read(self.cursor, owner, "value type")?;
        if let Owner::Key(ALIGNMENT_KEY) = owner
            && kind != Kind::U32
        {
            let problem = format!("{kind:?}, must be U32");
            return Err(Fault::malformed(owner.part("value type"), problem));
        }
        match kind {
            Kind::Text => self.text(owner).map(Value::Text),
            Kind::Array => self.array(owner),
            Kind::Bool => {
                let [byte] = self.cursor.array(owner.part("value"))?;
                truth(byte, owner).map(Value::Bool)
            }
            scalar => {
                let bytes = self.cursor.take(scalar.smallest(), owner.part("value"))?;
                Ok(number(scalar, bytes))
            }
        }
    }

    fn text(&mut self, owner: Owner<'_>) -> Result<Vec<u8>, Fault> {
        let bytes = self
            .cursor
            .string(owner, "string length", MAX_STRING_BYTES)?;
        self.spend(bytes.len() + STRING_OVERHEAD, owner)?;
        Ok(bytes.to_vec())
    }

    fn array(&mut self, owner: Owner<'_>) -> Result<Value, Fault> {
        let kind = Kind::read(self.cursor, owner, "array type")?;
        if kind == Kind::Array {
            let problem = "an array of arrays, which no model uses";
            return Err(Fault::malformed(owner.part("array type"), problem));
        }
        let field = owner.part("array length");
        let count = self.cursor.count(field, usize::MAX, kind.smallest())?;
        if kind == Kind::Text {
            return self.texts(owner, count).map(Value::Texts);
        }
        let held_each = match kind {
            Kind::F32 | Kind::F64 => size_of::<f32>(),
            Kind::Bool => size_of::<bool>(),
            _ => size_of::<i64>(),
        };
        self.spend(count.saturating_mul(held_each), owner)?;
        let bytes = self.cursor.take(count * kind.smallest(), field)?;
        let elements = bytes.chunks_exact(kind.smallest());
        match kind {
            Kind::F32 | Kind::F64 => Ok(Value::Floats(
                elements.map(|raw| float(kind, raw)).collect(),
            )),
            Kind::Bool => bytes
                .iter()
                .map(|&byte| truth(byte, owner))
                .collect::<Result<_, _>>()
                .map(Value::Bools),
            _ => elements
                .map(|raw| integer(kind, raw, owner))
                .collect::<Result<_, _>>()
                .map(Value::Integers),
        }
    }

    fn texts(&mut self, owner: Owner<'_>, count: usize) -> Result<Vec<Vec<u8>>, Fault> {
        let mut texts = Vec::with_capacity(count.min(FIRST_STRINGS));
        for _ in 0..count {
            texts.push(self.text(owner)?);
        }
        Ok(texts)
    }

    fn spend(&mut self, bytes: usize, owner: Owner<'_>) -> Result<(), Fault> {
        let Some(rest) = self.allowance.checked_sub(bytes) else {
            let limit = MAX_METADATA_BYTES >> 20;
            let problem = format!("all metadata together exceeds {limit} MiB");
            return Err(Fault::malformed(owner.part("value"), problem));
        };
        self.allowance = rest;
        Ok(())
    }
}

fn truth(byte: u8, owner: Owner<'_>) -> Result<bool, Fault> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Fault::malformed(
            owner.part("value"),
            format!("bool {other}, must be 0 or 1"),
        )),
    }
}

fn number(kind: Kind, bytes: &[u8]) -> Value {
    match kind {
        Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => Value::Unsigned(unsigned(bytes)),
        Kind::F32 => Value::Float(f64::from(f32::from_bits(low_half(unsigned(bytes))))),
        Kind::F64 => Value::Float(f64::from_bits(unsigned(bytes))),
        _ => Value::Signed(signed(bytes)),
    }
}

fn integer(kind: Kind, bytes: &[u8], owner: Owner<'_>) -> Result<i64, Fault> {
    match kind {
        Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => {
            let value = unsigned(bytes);
            i64::try_from(value).map_err(|_| {
                Fault::malformed(owner.part("value"), format!("{value} does not fit 63 bits"))
            })
        }
        _ => Ok(signed(bytes)),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "models hold no array that needs doubles"
)]
fn float(kind: Kind, bytes: &[u8]) -> f32 {
    match kind {
        Kind::F64 => f64::from_bits(unsigned(bytes)) as f32,
        _ => f32::from_bits(low_half(unsigned(bytes))),
    }
}

/// Up to eight little-endian bytes, zero-extended.
fn unsigned(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}

/// One to eight little-endian bytes, sign-extended.
fn signed(bytes: &[u8]) -> i64 {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(wide)
}

fn low_half(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).expect("masked to 32 bits")
}
