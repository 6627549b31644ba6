//! Models in several GGUF files, named `…-00001-of-0000N.gguf`.
//!
//! The first file holds the keys and says how many there are; the others hold tensors. All are opened
//! together, so a part that is missing or does not belong is found before anything is loaded.
//!
//! Source: the splitting tool of llama.cpp, keys `split.no`, `split.count`, `split.tensors.count`.

use crate::error::OpenError;
use crate::folder::malformed;
use crate::{Backing, WeightFile, gguf, mmap};
use forthwith_core::metadata::Metadata;
use std::path::{Path, PathBuf};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
const MAX_PARTS: usize = 1024;

/// Adds the other files of a model to its first one; a model of one file stays as it is.
///
/// # Errors     a part is missing or wrong, or `file` is not the first
pub(crate) fn complete(mut file: WeightFile) -> Result<WeightFile, OpenError> {
    let path = file.path.clone();
    let count = number(&path, &file.index.metadata, COUNT)?.unwrap_or(1);
    if count <= 1 {
        return Ok(file);
    }
    if count > MAX_PARTS {
        let problem = format!("{count} files, allowed are {MAX_PARTS}");
        return Err(malformed(&path, COUNT, problem));
    }
    let stem = stem(&path, 1, count).ok_or_else(|| {
        let problem = format!(
            "the model has {count} files; name the first one, which ends in -00001-of-{count:05}.gguf"
        );
        malformed(&path, COUNT, problem)
    })?;
    check_number(&path, &file.index.metadata, 0)?;
    for part in 2..=count {
        add(&mut file, &name(&stem, part, count), part - 1)?;
    }
    let stated = number(&path, &file.index.metadata, TENSORS)?;
    let found = file.index.tensors.len();
    match stated {
        Some(stated) if stated != found => {
            let problem = format!("{stated}, but the {count} files hold {found}");
            Err(malformed(&path, TENSORS, problem))
        }
        _ => Ok(file),
    }
}

/// Adds the tensors of one further file.
fn add(file: &mut WeightFile, path: &Path, place: usize) -> Result<(), OpenError> {
    let (map, handle) = mmap::map(path)?;
    let index = gguf::read(&map).map_err(|fault| fault.of(path))?;
    check_number(path, &index.metadata, place)?;
    let backing = file.backings.len();
    for mut entry in index.tensors {
        entry.backing = backing;
        let position = file.index.tensors.len();
        let name = entry.name.clone();
        if file.index.positions.insert(name, position).is_some() {
            let field = format!("tensor `{}`", entry.name);
            return Err(malformed(path, &field, "is in two files"));
        }
        file.index.tensors.push(entry);
    }
    file.backings.push(Backing::Mapped(map, handle));
    file.others.push(path.to_owned());
    Ok(())
}

fn check_number(path: &Path, metadata: &Metadata, place: usize) -> Result<(), OpenError> {
    match number(path, metadata, NUMBER)? {
        Some(found) if found == place => Ok(()),
        found => {
            let problem = format!("{found:?}, expected {place} for a file of this name");
            Err(malformed(path, NUMBER, problem))
        }
    }
}

fn number(path: &Path, metadata: &Metadata, key: &str) -> Result<Option<usize>, OpenError> {
    let read = metadata.size(key);
    read.map_err(|error| malformed(path, key, error.to_string()))
}

/// The path before the part's number, if it ends as that of this part does.
fn stem(path: &Path, part: usize, count: usize) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&ending(part, count))?;
    Some(path.with_file_name(stem))
}

fn name(stem: &Path, part: usize, count: usize) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(ending(part, count));
    PathBuf::from(name)
}

fn ending(part: usize, count: usize) -> String {
    format!("-{part:05}-of-{count:05}.gguf")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::GgufWriter;
    use forthwith_core::format::Format;
    use forthwith_core::metadata::Value;
    use forthwith_core::shape::WeightSource as _;

    fn part(number: u16, count: u64, tensors: &[&str]) -> GgufWriter {
        let mut writer = GgufWriter::new()
            .key(NUMBER, Value::Unsigned(number.into()))
            .key(COUNT, Value::Unsigned(count));
        if number == 0 {
            writer = writer
                .key("general.architecture", Value::Text(b"llama".to_vec()))
                .key(TENSORS, Value::Signed(3));
        }
        for (index, name) in (1_u8..).zip(tensors) {
            let value = f32::from(index) + 10.0 * f32::from(number);
            writer = writer.tensor(name, Format::F32, &[2], &[value; 2]);
        }
        writer
    }

    /// Writes parts and opens the one of that number.
    fn open(name: &str, parts: &[GgufWriter], which: usize) -> Result<WeightFile, String> {
        let folder = std::env::temp_dir().join(format!("forthwith-split-{}", std::process::id()));
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = |part: usize| folder.join(format!("m{}", ending(part, 3)));
        for (index, part) in (1..).zip(parts) {
            part.write(&path(index)).unwrap();
        }
        let opened = crate::open(&path(which)).map_err(|error| error.to_string());
        std::fs::remove_dir_all(&folder).unwrap();
        opened
    }

    fn good() -> [GgufWriter; 3] {
        [part(0, 3, &["a"]), part(1, 3, &["b"]), part(2, 3, &["c"])]
    }

    #[test]
    fn all_parts_are_one_model() {
        let file = open("good", &good(), 1).unwrap();
        let names: Vec<&str> = file.tensors().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        let values = |name: &str| file.tensor(name).unwrap().to_f32();
        assert_eq!((values("a"), values("c")), (vec![1.0; 2], vec![21.0; 2]));
        let mut bytes = [0; 4];
        file.read("b", 4, &mut bytes).unwrap();
        assert_eq!(f32::from_le_bytes(bytes), 11.0);
    }

    #[test]
    fn parts_that_are_missing_or_do_not_belong_are_named() {
        let [a, b, c] = good();
        let cases: [(&str, Vec<GgufWriter>, usize, &str); 6] = [
            ("second", good().into(), 2, "name the first one"),
            (
                "missing",
                vec![part(0, 3, &["a"]), part(1, 3, &["b"])],
                1,
                "-00003-of-00003.gguf`: cannot open",
            ),
            ("swapped", vec![a, c, b], 1, "split.no: Some(2), expected 1"),
            (
                "twice",
                vec![part(0, 3, &["a"]), part(1, 3, &["a"]), part(2, 3, &["c"])],
                1,
                "is in two files",
            ),
            (
                "few",
                vec![part(0, 3, &["a"]), part(1, 3, &[]), part(2, 3, &["c"])],
                1,
                "3, but the 3 files hold 2",
            ),
            (
                "count",
                vec![part(0, 4, &["a"])],
                1,
                "the model has 4 files",
            ),
        ];
        for (name, parts, which, says) in cases {
            let error = open(name, &parts, which).unwrap_err();
            assert!(error.contains(says), "{name}: {error}");
        }
        let many = part(0, 99_999, &["a"]);
        assert!(
            open("many", &[many], 1)
                .unwrap_err()
                .contains("allowed are 1024")
        );
    }
}
