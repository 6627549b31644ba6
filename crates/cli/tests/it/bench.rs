//! `forthwith bench engine` on a tiny model: figures differ from run to run, shapes do not.

use crate::{error, forthwith, stdout};
use forthwith_models::testing::tiny_llama;
use serde_json::Value;

const SMALL: [&str; 13] = [
    "bench",
    "engine",
    "--threads",
    "2",
    "--prefill",
    "8,16",
    "--decode",
    "4",
    "--depth",
    "0,8",
    "--batch",
    "1,3",
    "--repeat",
];

fn positive(value: &Value, names: &[&str]) {
    for name in names {
        assert!(value[name].as_f64().unwrap() > 0.0, "{name}: {value}");
    }
}

#[test]
fn json_has_every_measurement_and_the_roof() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    tiny_llama(7).write(&model).unwrap();
    let mut command = forthwith(folder.path());
    command
        .args(SMALL)
        .args(["2", "--json", "--model"])
        .arg(&model);
    let report: Value = serde_json::from_str(&stdout(&command.output().unwrap(), 0)).unwrap();
    for (row, tokens) in report["prefill"].as_array().unwrap().iter().zip([8, 16]) {
        assert_eq!(row["tokens"], tokens);
        positive(row, &["tok_s", "gop_s", "share_of_roof"]);
    }
    let decode = report["decode"].as_array().unwrap();
    assert_eq!(decode.len(), 4);
    for (row, (depth, batch)) in decode.iter().zip([(0, 1), (0, 3), (8, 1), (8, 3)]) {
        assert_eq!(
            (&row["depth"], &row["batch"]),
            (&depth.into(), &batch.into())
        );
        positive(row, &["tok_s", "gb_s", "share_of_roof"]);
    }
    positive(&report["roof"], &["read_gb_s", "int8_gop_s", "f32_gop_s"]);
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<_> = phases
        .iter()
        .map(|phase| phase["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 14);
    assert_eq!((names[1], names[13]), ("prefill.qkv", "decode.logits"));
    for phase in phases {
        positive(phase, &["ms", "bytes"]);
        let embeds = phase["name"].as_str().unwrap().ends_with("embed");
        assert_eq!(phase["ops"] == 0, embeds, "{phase}");
    }
    let mut command = forthwith(folder.path());
    command.args(SMALL).args(["1", "--model"]).arg(&model);
    let text = stdout(&command.output().unwrap(), 0);
    for line in [
        "roof ",
        "prefill       16 tokens",
        "decode         3 together, depth       8",
        "phase     decode.logits",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    tiny_llama(7).write(&model).unwrap();
    let told = |arguments: &[&str]| {
        let mut command = forthwith(folder.path());
        command
            .args(["bench", "engine", "--model"])
            .arg(&model)
            .args(arguments);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    for (arguments, expected) in [
        (&["--prefill", "0"][..], "--prefill"),
        (&["--batch", ""], "--batch"),
        (&["--decode", "-1"], "--decode"),
        (&["--repeat", "x"], "--repeat"),
        (
            &["--prefill", "999999", "--depth", "0"],
            "--prefill 999999 needs a context of 999999",
        ),
        (
            &["--depth", "99999", "--prefill", "8"],
            "--depth 99999 with --decode 64 needs a context",
        ),
    ] {
        let message = told(arguments);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
    let output = forthwith(folder.path())
        .args(["bench", "engine", "--model", "toy"])
        .output();
    let message = error(&output.unwrap(), 2);
    assert!(message.contains("has no kernels to measure"), "{message}");
}
