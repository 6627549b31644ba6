use super::*;
use forthwith_core::shape::WeightSource;
use std::fs;
use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/models")
        .join(name)
}

/// A copy of a fixture whose `config.json` was changed.
fn changed(name: &str, change: impl Fn(String) -> String) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(fixture(name).join("config.json")).unwrap();
    fs::write(folder.path().join("config.json"), change(config)).unwrap();
    let weights = "model.safetensors";
    fs::copy(fixture(name).join(weights), folder.path().join(weights)).unwrap();
    folder
}

fn refusal(folder: &Path) -> String {
    let opened = open(folder);
    let built = opened.map(|file| crate::build(&file));
    let message = match built {
        Ok(Ok(_)) => panic!("opened"),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn names_and_keys_become_those_of_gguf() {
    let file = open(&fixture("llama-tied-llama3")).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.text("general.architecture"), Ok(Some("llama")));
    assert_eq!(metadata.size("llama.embedding_length"), Ok(Some(32)));
    assert_eq!(metadata.size("llama.attention.head_count_kv"), Ok(Some(2)));
    assert_eq!(metadata.text("llama.rope.scaling.type"), Ok(Some("llama3")));
    assert_eq!(metadata.texts(IGNORED_KEYS), Ok(None));
    let query = file.tensor("blk.2.attn_q.weight").unwrap();
    assert_eq!(
        (query.rows, query.cols, query.format.name()),
        (32, 32, "F16")
    );
    assert!(file.tensor("output.weight").is_none());
}

#[test]
fn keys_that_nobody_reads_are_kept_for_whoever_prints_them() {
    let folder = changed("qwen3", |config| {
        config.replacen('{', "{\"unheard_of\": {\"scale\": 2}, \"odd\": [[1]],", 1)
    });
    let file = open(folder.path()).unwrap();
    let ignored = file.metadata().texts(IGNORED_KEYS).unwrap().unwrap();
    assert_eq!(ignored, [b"unheard_of.scale".to_vec(), b"odd".to_vec()]);
}

#[test]
fn what_would_answer_wrongly_is_refused() {
    for (name, from, to, says) in [
        ("qwen3", "\"silu\"", "\"gelu\"", "`hidden_act`"),
        (
            "qwen3",
            "Qwen3ForCausalLM",
            "MambaForCausalLM",
            "`MambaForCausalLM`",
        ),
        (
            "qwen3",
            "{",
            "{\"auto_map\": {\"AutoModel\": \"x.Y\"},",
            "never run",
        ),
        (
            "qwen3",
            "{",
            "{\"quantization_config\": {\"bits\": 4},",
            "quantized by other tools",
        ),
        (
            "qwen3",
            "\"num_hidden_layers\": 3",
            "\"num_hidden_layers\": 2",
            "blk.2.",
        ),
        (
            "qwen3",
            "\"hidden_size\": 32",
            "\"hidden_size\": 64",
            "expected [96, 64], found [96, 32]",
        ),
        (
            "qwen2-biases",
            "\"tie_word_embeddings\": true",
            "\"tie_word_embeddings\": false",
            "no output head",
        ),
        (
            "gpt2",
            "\"n_head\": 4",
            "\"n_head\": 5",
            "`gpt2.attention.head_count`",
        ),
        (
            "gptneox-serial",
            "\"num_attention_heads\": 4",
            "\"num_attention_heads\": 5",
            "three for each of 5 heads",
        ),
        (
            "llama-dynamic",
            "\"dynamic\"",
            "\"magic\"",
            "`magic` is not supported",
        ),
        (
            "mistral-window",
            "\"sliding_window\": 7",
            "\"sliding_window\": -7",
            "sliding_window",
        ),
    ] {
        let folder = changed(name, |config| {
            assert!(config.contains(from), "{name}: {from}");
            config.replacen(from, to, 1)
        });
        let message = refusal(folder.path());
        assert!(message.contains(says), "{name}, {to}: {message}");
    }
}

#[test]
fn shards_are_found_through_their_index_and_nowhere_else() {
    let folder = changed("qwen3", |config| config);
    let path = |name: &str| folder.path().join(name);
    fs::rename(
        path("model.safetensors"),
        path("model-00001-of-00001.safetensors"),
    )
    .unwrap();
    assert!(refusal(folder.path()).contains("model.safetensors: missing"));
    let index = |file: &str| {
        let json = format!("{{\"weight_map\": {{\"model.norm.weight\": \"{file}\"}}}}");
        fs::write(path("model.safetensors.index.json"), json).unwrap();
    };
    index("model-00001-of-00001.safetensors");
    assert!(open(folder.path()).is_ok());
    for outside in [
        "../model.safetensors",
        "/etc/passwd",
        "weights.bin",
        ".safetensors",
    ] {
        index(outside);
        let message = refusal(folder.path());
        assert!(
            message.contains("not the name of a safetensors file"),
            "{message}"
        );
    }
    index("model-00002-of-00002.safetensors");
    assert!(refusal(folder.path()).contains("model-00002-of-00002.safetensors"));
}

#[test]
fn pickled_weights_are_refused_with_the_remedy() {
    let folder = changed("qwen3", |config| config);
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    fs::write(folder.path().join("pytorch_model.bin"), b"PK").unwrap();
    let message = refusal(folder.path());
    assert!(
        message.contains("pickle") && message.contains("convert them"),
        "{message}"
    );
}

#[test]
fn broken_files_are_one_line() {
    let whole = fs::read(fixture("qwen3").join("model.safetensors")).unwrap();
    let header = 8 + usize::try_from(u64::from_le_bytes(whole[..8].try_into().unwrap())).unwrap();
    let text = String::from_utf8(whole[8..header].to_vec()).unwrap();
    let with = |text: &str| {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&whole[header..]);
        bytes
    };
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let corpus = [
        Vec::new(),
        whole[..7].to_vec(),
        whole[..header - 1].to_vec(),
        whole[..whole.len() - 1].to_vec(),
        [&whole[..], b"more"].concat(),
        huge,
        with("{"),
        with("[]"),
        with(&text.replace("BF16", "F8_E4M3")),
        with(&text.replace("BF16", "F32")),
        with(&text.replacen("\"shape\":[32", "\"shape\":[33", 1)),
        with(&text.replacen("\"shape\":[", "\"shape\":[18446744073709551615,", 1)),
        with(&text.replacen("\"data_offsets\":[", "\"data_offsets\":[1", 1)),
        with(&text.replacen("model.layers.0", "model.layers.9", 1)),
        with(&text.replacen("model.norm", "model.morn", 1)),
    ];
    for (number, bytes) in corpus.iter().enumerate() {
        let folder = changed("qwen3", |config| config);
        fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let message = refusal(folder.path());
        assert!(message.len() < 1_000, "{number}: {message}");
    }
    let empty = changed("gpt2", |config| config);
    let header =
        r#"{"h.0.attn.c_attn.weight":{"dtype":"F32","shape":[0,96],"data_offsets":[0,0]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    fs::write(empty.path().join("model.safetensors"), bytes).unwrap();
    assert!(refusal(empty.path()).contains("`token_embd.weight` is missing"));
    for config in [
        "",
        "{",
        "[]",
        "null",
        "{\"architectures\": 3}",
        "{\"architectures\": []}",
    ] {
        let folder = changed("qwen3", |_| config.to_owned());
        refusal(folder.path());
    }
    let deep = changed("qwen3", |_| "[".repeat(100_000));
    refusal(deep.path());
}

proptest::proptest! {
    /// Thousands with `PROPTEST_CASES`.
    #[test]
    fn mutated_folders_never_panic(
        name in proptest::sample::select(vec!["gpt2", "gptneox-parallel", "gemma2", "smollm3"]),
        edits in proptest::collection::vec((0_usize..3_000, proptest::num::u8::ANY), 1..6),
        in_config in proptest::bool::ANY,
    ) {
        let which = if in_config { "config.json" } else { "model.safetensors" };
        let mut bytes = fs::read(fixture(name).join(which)).unwrap();
        for (at, byte) in edits {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let folder = changed(name, |config| config);
        fs::write(folder.path().join(which), bytes).unwrap();
        let said = match open(folder.path()) {
            Ok(file) => crate::build(&file).err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        proptest::prop_assert!(said.is_none_or(|said| !said.contains('\n')));
    }
}
