//! Files that are wrong, by the hundred: one clear line and exit 2, and no mutation ends the process.

use super::forthwith;
use forthwith_models::testing::tiny_llama;
use forthwith_text::{ChatTemplate, Tokenizer};
use forthwith_weights::WeightFile;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many mutated files a test run opens; `FORTHWITH_MUTATIONS=100000 cargo test -p forthwith --test it
/// mutated` is the whole count.
const MUTATIONS: u64 = 3000;
/// The memory that a refusal may reserve, addresses included, in KiB.
const ADDRESSES: u64 = 2 << 20;
/// Long for a refusal, on a busy machine as well.
const PATIENCE: Duration = Duration::from_secs(20);

fn served(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/served")
        .join(name)
}

/// A small generator (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 24).unwrap() % bound
    }
}

/// Places in a file of that length, spread evenly.
fn places(length: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |index| index * length / count)
}

/// Fifty GGUF files: cut off, or with a count of the index that cannot be.
fn gguf() -> Vec<Vec<u8>> {
    let good = tiny_llama(3).to_bytes();
    let mut all: Vec<Vec<u8>> = places(good.len(), 40)
        .map(|at| good[..at].to_vec())
        .collect();
    // Version, the two counts, and the length and the kind of the first key.
    for (at, bytes) in [
        (4, vec![9, 0, 0, 0]),
        (4, vec![1, 0, 0, 0]),
        (8, vec![0xff; 8]),
        (8, vec![0, 0, 0, 0, 1, 0, 0, 0]),
        (16, vec![0xff; 8]),
        (16, vec![0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0]),
        (24, vec![0xff; 8]),
        (24, vec![0, 0, 0, 0, 0, 0, 0, 0x80]),
        (0, b"PK\x03\x04".to_vec()),
        (0, b"\x80\x02}q".to_vec()),
    ] {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(&bytes);
        all.push(file);
    }
    all
}

/// Fifty safetensors files: cut off, or with a header that does not describe what follows.
fn safetensors() -> Vec<Vec<u8>> {
    let good = fs::read(served("embedder").join("model.safetensors")).unwrap();
    let length = usize::try_from(u64::from_le_bytes(good[..8].try_into().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&good[8..8 + length]).unwrap();
    let mut all: Vec<Vec<u8>> = places(good.len(), 25)
        .map(|at| good[..at].to_vec())
        .collect();
    for size in [0_u64, 1, 7, 1 << 20, 1 << 40, u64::MAX] {
        all.push([&size.to_le_bytes(), &good[8..]].concat());
    }
    let name = "embeddings.word_embeddings.weight";
    let changes: [fn(&mut Value); 19] = [
        |tensor| *tensor = json!(null),
        |tensor| *tensor = json!([]),
        |tensor| *tensor = json!({}),
        |tensor| tensor["dtype"] = json!("F8_E4M3"),
        |tensor| tensor["dtype"] = json!("I32"),
        |tensor| tensor["dtype"] = json!("F32"),
        |tensor| tensor["dtype"] = json!(7),
        |tensor| tensor["shape"] = json!([512, 33]),
        |tensor| tensor["shape"] = json!([512]),
        |tensor| tensor["shape"] = json!([-1, 32]),
        |tensor| tensor["shape"] = json!([u64::MAX, 2]),
        |tensor| tensor["shape"] = json!("x"),
        |tensor| tensor["data_offsets"] = json!([0]),
        |tensor| tensor["data_offsets"] = json!([10, 0]),
        |tensor| tensor["data_offsets"] = json!([0, u64::MAX]),
        |tensor| tensor["data_offsets"] = json!([1, 32769]),
        |tensor| tensor["data_offsets"] = json!([-1, 5]),
        |tensor| tensor["data_offsets"] = json!(["a", "b"]),
        |tensor| {
            tensor.as_object_mut().unwrap().remove("shape");
        },
    ];
    for change in changes {
        let mut header = header.clone();
        change(&mut header[name]);
        let text = header.to_string();
        let size = (text.len() as u64).to_le_bytes();
        all.push([&size, text.as_bytes(), &good[8 + length..]].concat());
    }
    all
}

/// Fifty `tokenizer.json` files: cut off, or with a value of the wrong kind.
fn tokenizers() -> Vec<Vec<u8>> {
    let good = fs::read(served("embedder").join("tokenizer.json")).unwrap();
    let json: Value = serde_json::from_slice(&good).unwrap();
    // What stands behind the last bracket is white space.
    let mut all: Vec<Vec<u8>> = places(good.len() - 2, 30)
        .map(|at| good[..at].to_vec())
        .collect();
    for key in [
        "model",
        "added_tokens",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
    ] {
        for wrong in [
            json!(5),
            json!("x"),
            json!({"type": "Unheard"}),
            json!([[]]),
        ] {
            let mut json = json.clone();
            json[key] = wrong;
            all.push(json.to_string().into_bytes());
        }
    }
    all
}

/// Runs the binary on a model with bounded memory; the refusal's line.
fn refused(model: &Path, what: &str) -> String {
    let cache = tempfile::tempdir().unwrap();
    let binary = forthwith(cache.path());
    let mut command = std::process::Command::new("sh");
    let script =
        format!("ulimit -v {ADDRESSES} && exec \"$0\" embed --threads 1 --model \"$1\" text");
    command
        .arg("-c")
        .arg(script)
        .arg(binary.get_program())
        .arg(model);
    command.env("FORTHWITH_CACHE", cache.path());
    let began = std::time::SystemTime::now();
    let output = command.output().unwrap();
    let took = began.elapsed().unwrap_or_default();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{what}: {text}");
    let line = super::error(&output, 2);
    assert!(
        !text.contains("panicked") && line.len() < 800,
        "{what}: {text}"
    );
    assert!(took < PATIENCE, "{what} took {took:?}");
    line
}

/// A copy of a served model with one file replaced.
fn with(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let copy = folder.join("model");
    if !copy.exists() {
        copy_folder(&served("embedder"), &copy);
    }
    fs::write(copy.join(name), bytes).unwrap();
    copy
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn a_hundred_and_fifty_files_are_refused_in_one_line_each() {
    let (gguf, safetensors, tokenizers) = (gguf(), safetensors(), tokenizers());
    assert_eq!(
        (gguf.len(), safetensors.len(), tokenizers.len()),
        (50, 50, 50)
    );
    let folder = tempfile::tempdir().unwrap();
    for (index, bytes) in gguf.iter().enumerate() {
        let path = folder.path().join("bad.gguf");
        fs::write(&path, bytes).unwrap();
        let line = refused(&path, &format!("GGUF {index}"));
        assert!(line.contains("bad.gguf"), "{index}: {line}");
    }
    for (name, files) in [
        ("model.safetensors", safetensors),
        ("tokenizer.json", tokenizers),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for (index, bytes) in files.iter().enumerate() {
            let model = with(folder.path(), name, bytes);
            let line = refused(&model, &format!("{name} {index}"));
            let names_it = line.contains(name) || line.contains("tensor");
            assert!(names_it, "{name} {index}: {line}");
        }
    }
}

/// Reads everything that loading reads; what it says is not the point.
fn load(file: &WeightFile) {
    let _ = forthwith_models::build(file);
    if let Ok(tokenizer) = Tokenizer::from_gguf(file.metadata()) {
        let _ = tokenizer.encode_prompt("the server");
        let _ = ChatTemplate::from_gguf(file.metadata(), &tokenizer);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the tests' own setting")]
fn mutated_files_are_read_or_refused() {
    let stated = std::env::var("FORTHWITH_MUTATIONS").ok();
    let count = stated.map_or(MUTATIONS, |count| count.parse().unwrap());
    let gguf = tiny_llama(5).to_bytes();
    // Most of what can be wrong is in the first part.
    let index = gguf.len() - 64 * 1024_usize.min(gguf.len() / 64);
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("model");
    copy_folder(&served("chat"), &copy);
    let files = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    let good = files.map(|file| fs::read(copy.join(file)).unwrap());
    let encoders = ["roberta-rerank.gguf", "modernbert.gguf"].map(|name| {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/gguf");
        fs::read(fixtures.join(name)).unwrap()
    });
    let encoder = folder.path().join("encoder.gguf");
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    for number in 0..count {
        if number % 8 == 1 {
            let mut bytes = encoders[dice.below(2)].clone();
            mutate(&mut bytes, 8192, &mut dice);
            fs::write(&encoder, &bytes).unwrap();
            if let Ok(file) = forthwith_models::open(&encoder) {
                load(&file);
            }
            continue;
        }
        if number % 4 > 0 {
            let mut bytes = gguf.clone();
            mutate(&mut bytes, index.max(1), &mut dice);
            if let Ok(file) = WeightFile::from_bytes("mutated.gguf".as_ref(), bytes) {
                load(&file);
            }
            continue;
        }
        let which = dice.below(files.len());
        let mut bytes = good[which].clone();
        let length = bytes.len().min(4096);
        mutate(&mut bytes, length, &mut dice);
        fs::write(copy.join(files[which]), &bytes).unwrap();
        if let Ok(file) = forthwith_models::open(&copy) {
            let _ = forthwith_models::build(&file);
        }
        if let Ok(tokenizer) = Tokenizer::from_folder(&copy) {
            let _ = tokenizer.encode_prompt("the server");
        }
        fs::write(copy.join(files[which]), &good[which]).unwrap();
    }
}

/// Changes a few bytes below a place, or cuts the rest off.
fn mutate(bytes: &mut Vec<u8>, below: usize, dice: &mut Dice) {
    for _ in 0..=dice.below(4) {
        let at = dice.below(below);
        bytes[at] = match dice.below(4) {
            0 => 0xff,
            1 => 0,
            2 => bytes[at] ^ (1 << dice.below(8)),
            _ => u8::try_from(dice.below(256)).unwrap(),
        };
    }
    if dice.below(10) == 0 {
        let end = dice.below(bytes.len());
        bytes.truncate(end);
    }
}
