//! Generated files: damaged ones are survived, sound ones are read back.

use super::{Raw, sample};
use crate::WeightFile;
use crate::testing::GgufWriter;
use forthwith_core::format::Format;
use forthwith_core::metadata::Value;
use forthwith_core::shape::WeightSource;
use proptest::prelude::*;
use std::path::Path;

/// Reads hostile bytes; whatever is accepted must hold what it promises.
fn survive(bytes: Vec<u8>) {
    match WeightFile::from_bytes(Path::new("fuzzed"), bytes) {
        Ok(file) => {
            for view in file.tensors() {
                assert_eq!(
                    view.bytes.len(),
                    view.rows * view.format.row_bytes(view.cols)
                );
                assert!(file.tensor(view.name).is_some());
            }
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
}

#[test]
fn every_truncation_is_survived() {
    let bytes = sample().to_bytes();
    for length in 0..bytes.len() {
        survive(bytes[..length].to_vec());
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::Unsigned),
        any::<i64>().prop_map(Value::Signed),
        (-1e300_f64..1e300).prop_map(Value::Float),
        any::<f32>()
            .prop_filter("comparable", |x| !x.is_nan())
            .prop_map(|x| Value::Float(x.into())),
        any::<bool>().prop_map(Value::Bool),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Value::Text),
        prop::collection::vec(any::<i64>(), 0..9).prop_map(Value::Integers),
        prop::collection::vec(any::<i32>().prop_map(i64::from), 0..9).prop_map(Value::Integers),
        prop::collection::vec(-1e30_f32..1e30, 0..9).prop_map(Value::Floats),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(Value::Bools),
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9)
            .prop_map(Value::Texts),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn flipped_bytes_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = sample().to_bytes();
        for (index, value) in flips {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        survive(bytes);
    }

    #[test]
    fn numbers_put_anywhere_in_the_index_never_panic(
        at in any::<prop::sample::Index>(),
        number in prop_oneof![
            any::<u64>(), Just(u64::MAX), Just(1 << 63), 0_u64..70_000, Just(1 << 32),
        ],
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample().to_bytes();
        let at = at.index(700);
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        let shorter = bytes[..cut.index(bytes.len())].to_vec();
        survive(bytes);
        survive(shorter);
    }

    #[test]
    fn any_bytes_after_the_magic_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        survive(Raw(b"GGUF".to_vec()).u32(3).bytes(&tail).0);
        survive(Raw::header(2, 2).bytes(&tail).0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_written_is_read_back(
        keys in prop::collection::btree_map("[a-z._]{1,12}", any_value(), 0..8),
        tensors in prop::collection::btree_map(
            "[a-z._0-9]{1,20}",
            (prop::sample::select(Format::ALL), 1_u64..4, 1_u64..5, 1_u64..3, any::<u8>()),
            0..6,
        ),
        version in 2_u32..=3,
        alignment in prop::option::of((3_u32..12).prop_map(|power| 1 << power)),
    ) {
        let mut writer = GgufWriter::new().version(version);
        if let Some(alignment) = alignment {
            writer = writer.alignment(alignment);
        }
        for (key, value) in &keys {
            writer = writer.key(key, value.clone());
        }
        let mut expected = Vec::new();
        for (name, (format, blocks, rows, outer, byte)) in &tensors {
            let info = format.info();
            let cols = blocks * info.elements as u64;
            let bytes = vec![*byte; usize::try_from(blocks * rows * outer).unwrap() * info.bytes];
            writer = writer.raw_tensor(name, info.gguf_id, &[cols, *rows, *outer], bytes.clone());
            expected.push((name.clone(), *format, rows * outer, cols, bytes));
        }
        let file = WeightFile::from_bytes(Path::new("x"), writer.to_bytes()).unwrap();
        for (key, value) in &keys {
            prop_assert_eq!(file.metadata().get(key), Some(value));
        }
        let found: Vec<_> = file
            .tensors()
            .map(|t| (t.name.to_owned(), t.format, t.rows as u64, t.cols as u64, t.bytes.to_vec()))
            .collect();
        prop_assert_eq!(found, expected);
    }
}
