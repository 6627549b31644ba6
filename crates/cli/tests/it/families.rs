//! Tiny models of each family against what transformers answers, stored in `fixtures/models`.

use forthwith_core::executor::{Executor, Segment, StepInput};
use forthwith_core::program::Output;
use forthwith_core::units::{BlockId, Blocks, TokenId, Tokens};
use forthwith_cpu::{Arithmetic, Cpu, CpuConfig, IsaChoice, KvFormat, Reference};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The largest difference, as a share of the largest logit.
const TOLERANCE: f32 = 1e-5;
const BLOCKS: Blocks = Blocks::new(4);

fn folders() -> Vec<PathBuf> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models");
    let entries = std::fs::read_dir(models).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.join("golden.json").exists());
    folders.sort_unstable();
    folders
}

fn read_golden(path: &Path) -> (Vec<TokenId>, Value) {
    let json = std::fs::read(path).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let ids = json["ids"].as_array().unwrap().iter();
    let ids = ids.map(|id| TokenId::new(u32::try_from(id.as_u64().unwrap()).unwrap()));
    (ids.collect(), json)
}

/// The numbers of a list or of a list of lists.
fn numbers(json: &Value) -> Vec<f32> {
    match json {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        #[expect(clippy::cast_possible_truncation, reason = "single precision")]
        number => vec![number.as_f64().unwrap() as f32],
    }
}

/// Token ids and the logits after each.
fn golden(folder: &Path) -> (Vec<TokenId>, Vec<f32>) {
    let (ids, json) = read_golden(&folder.join("golden.json"));
    (ids, numbers(&json["logits"]))
}

/// Logits at all positions, in steps of so many tokens.
fn run(executor: &mut dyn Executor, ids: &[TokenId], step: usize) -> Vec<f32> {
    let blocks = [BlockId::new(2), BlockId::new(0)];
    let mut all = Vec::new();
    for (index, tokens) in ids.chunks(step).enumerate() {
        let rows: Vec<usize> = (0..tokens.len()).collect();
        let segments = [Segment {
            tokens: tokens.len(),
            position: index * step,
            blocks: &blocks,
            second_from: None,
        }];
        let input = StepInput {
            tokens,
            segments: &segments,
            output_rows: &rows,
        };
        let mut logits = Vec::new();
        executor.step(&input, &mut logits).unwrap();
        all.extend(logits);
    }
    all
}

fn apart(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let size = want
        .iter()
        .fold(0.0_f32, |size, value| size.max(value.abs()));
    let pairs = got.iter().zip(want);
    pairs.fold(0.0_f32, |worst, (got, want)| worst.max((got - want).abs())) / size
}

fn config(context: usize) -> CpuConfig {
    CpuConfig {
        threads: 2,
        isa: IsaChoice::best(),
        kv_format: KvFormat::F32,
        kv_blocks: BLOCKS,
        max_step_tokens: Tokens::new(64),
        context: Tokens::new(context),
    }
}

#[test]
fn folders_of_each_family_answer_as_transformers_does() {
    let (mut families, mut wrong) = (std::collections::BTreeSet::new(), Vec::new());
    for folder in folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let file = forthwith_models::open(&folder).unwrap();
        // LongRoPE computes with other numbers beyond the original context.
        let context = if name == "phi3-longrope-short" {
            32
        } else {
            64
        };
        let program = forthwith_models::build_for(&file, Tokens::new(context));
        let program = Arc::new(program.unwrap());
        if program.output() != Output::Logits {
            continue;
        }
        families.insert(program.architecture.clone());
        let (ids, want) = golden(&folder);
        let oracle = Reference::load(Arc::clone(&program), &file, Arithmetic::Oracle, BLOCKS);
        let by_oracle = run(&mut oracle.unwrap(), &ids, ids.len());
        let streamed = Reference::streamed(Arc::clone(&program), &file, Arithmetic::Oracle, BLOCKS);
        assert_eq!(
            run(&mut streamed.unwrap(), &ids, ids.len()),
            by_oracle,
            "{name} read again"
        );
        let by_oracle = apart(&by_oracle, &want);
        let mut cpu = Cpu::load(program, &file, &config(64), &|_, _| {}).unwrap();
        let whole = run(&mut cpu, &ids, ids.len());
        let by_cpu = apart(&whole, &want);
        eprintln!("{name}: oracle {by_oracle:.1e}, kernels {by_cpu:.1e}");
        if by_oracle >= TOLERANCE || by_cpu >= TOLERANCE {
            wrong.push(name.to_owned());
        }
        let bits = |logits: &[f32]| -> Vec<u32> { logits.iter().map(|x| x.to_bits()).collect() };
        assert_eq!(
            bits(&run(&mut cpu, &ids, 5)),
            bits(&whole),
            "{name} in steps"
        );
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(families.len(), 11, "{families:?}");
}

/// Files that llama.cpp's converter made of these folders: its names and keys, its order of rows. Where it
/// loses something, llama.cpp's answers are stored.
#[test]
fn converted_files_answer_as_their_folders_or_llama_cpp_do() {
    let changed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/gguf/answers.json");
    let changed: Value = serde_json::from_slice(&std::fs::read(changed).unwrap()).unwrap();
    let mut wrong = Vec::new();
    let mut count = 0;
    for folder in folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let path = folder.join(format!("../../gguf/{name}.gguf"));
        if !path.is_file() {
            continue;
        }
        count += 1;
        let file = forthwith_models::open(&path).unwrap();
        let context = if name == "phi3-longrope-short" {
            32
        } else {
            64
        };
        let program = match forthwith_models::build_for(&file, Tokens::new(context)) {
            Ok(program) => Arc::new(program),
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        let mut cpu = Cpu::load(Arc::clone(&program), &file, &config(context), &|_, _| {}).unwrap();
        let (ids, json) = read_golden(&folder.join("golden.json"));
        let (got, want) = if program.output() == Output::Logits {
            let changed = changed.get(name).map(|answer| &answer["logits"]);
            let want = changed.unwrap_or(&json["logits"]);
            (run(&mut cpu, &ids, ids.len()), numbers(want))
        } else {
            let second = json["second_from"].as_u64();
            let second = second.map(|at| usize::try_from(at).unwrap());
            let mut got = vectors(&mut cpu, &[(&ids[..], second)]);
            let want = wanted(&json, &mut got);
            (got, want)
        };
        let far = apart(&got, &want);
        eprintln!("{name}: {far:.1e}");
        // llama.cpp looks GELU up in a table of half floats.
        let allowed = if name.starts_with("gemma") {
            1e-3
        } else {
            TOLERANCE
        };
        if far >= allowed {
            wrong.push(format!("{name}: {far:.1e}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(count, 24);
}

/// What the program of a text model should answer, from what is stored.
fn wanted(json: &Value, got: &mut [f32]) -> Vec<f32> {
    if json.get("vector").is_some() {
        let length = got.iter().map(|value| value * value).sum::<f32>().sqrt();
        for value in got.iter_mut() {
            *value /= length;
        }
        return numbers(&json["vector"]);
    }
    if json.get("logits").is_some() {
        return numbers(&json["logits"]);
    }
    let rows = json["last_hidden_state"].as_array().unwrap();
    let states = numbers(&json["last_hidden_state"]);
    let width = states.len() / rows.len();
    #[expect(clippy::cast_precision_loss, reason = "few rows")]
    let mean = |at: usize| states.iter().skip(at).step_by(width).sum::<f32>() / rows.len() as f32;
    (0..width).map(mean).collect()
}

/// The vectors of texts in one step.
fn vectors(executor: &mut dyn Executor, texts: &[(&[TokenId], Option<usize>)]) -> Vec<f32> {
    let Output::Vectors { each_token, .. } = executor.output() else {
        panic!("answers with vectors");
    };
    let tokens: Vec<TokenId> = texts.iter().flat_map(|text| text.0).copied().collect();
    let blocks = [3, 0, 2].map(BlockId::new);
    let segments: Vec<Segment<'_>> = texts
        .iter()
        .zip(blocks.chunks(1))
        .map(|(&(text, second_from), blocks)| Segment {
            tokens: text.len(),
            position: 0,
            blocks,
            second_from,
        })
        .collect();
    let mut end = 0;
    let ends = texts.iter().map(|text| {
        end += text.0.len();
        end - 1
    });
    let output_rows: Vec<usize> = if each_token {
        (0..tokens.len()).collect()
    } else {
        ends.collect()
    };
    let input = StepInput {
        tokens: &tokens,
        segments: &segments,
        output_rows: &output_rows,
    };
    let mut output = Vec::new();
    executor.step(&input, &mut output).unwrap();
    output
}

#[test]
fn text_models_of_each_family_answer_as_transformers_does() {
    let (mut families, mut wrong) = (std::collections::BTreeSet::new(), Vec::new());
    for folder in folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let file = forthwith_models::open(&folder).unwrap();
        let program = Arc::new(forthwith_models::build(&file).unwrap());
        if program.output() == Output::Logits {
            continue;
        }
        families.insert(program.architecture.clone());
        let (ids, json) = read_golden(&folder.join("golden.json"));
        let second = json["second_from"]
            .as_u64()
            .map(|at| usize::try_from(at).unwrap());
        let text = (&ids[..], second);
        let oracle = Reference::load(Arc::clone(&program), &file, Arithmetic::Oracle, BLOCKS);
        let mut by_oracle = vectors(&mut oracle.unwrap(), &[text]);
        let streamed = Reference::streamed(Arc::clone(&program), &file, Arithmetic::Oracle, BLOCKS);
        assert_eq!(
            vectors(&mut streamed.unwrap(), &[text]),
            by_oracle,
            "{name} read again"
        );
        let context = program.context.get();
        let mut cpu = Cpu::load(program, &file, &config(context), &|_, _| {}).unwrap();
        let mut by_cpu = vectors(&mut cpu, &[text]);
        let alone = by_cpu.clone();
        let together = vectors(&mut cpu, &[(&ids[3..9], None), text, (&ids[..1], None)]);
        let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|x| x.to_bits()).collect() };
        let (together, alone) = (bits(&together), bits(&alone));
        let found = together.windows(alone.len()).any(|window| window == alone);
        assert!(found, "{name} in company");
        let want = wanted(&json, &mut by_oracle);
        wanted(&json, &mut by_cpu);
        let (by_oracle, by_cpu) = (apart(&by_oracle, &want), apart(&by_cpu, &want));
        eprintln!("{name}: oracle {by_oracle:.1e}, kernels {by_cpu:.1e}");
        if by_oracle >= TOLERANCE || by_cpu >= TOLERANCE {
            wrong.push(name.to_owned());
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(families.len(), 6, "{families:?}");
}

/// Mixtures of experts, which come as GGUF files alone: transformers' answers, by the reference and by
/// the kernels, in one step and in several.
#[test]
fn mixtures_of_experts_answer_as_transformers_does() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/gguf");
    for (name, experts) in [("mixtral", "2 of 5"), ("qwen3moe", "3 of 7")] {
        let file = forthwith_models::open(&fixtures.join(format!("{name}.gguf"))).unwrap();
        let program = forthwith_models::build_for(&file, Tokens::new(64)).unwrap();
        assert!(program.to_string().contains(experts), "{program}");
        let program = Arc::new(program);
        let (ids, golden) = read_golden(&fixtures.join(format!("{name}.golden.json")));
        let want = numbers(&golden["logits"]);
        let oracle = Reference::load(Arc::clone(&program), &file, Arithmetic::Oracle, BLOCKS);
        let by_oracle = apart(&run(&mut oracle.unwrap(), &ids, ids.len()), &want);
        let mut cpu = Cpu::load(program, &file, &config(64), &|_, _| {}).unwrap();
        let whole = run(&mut cpu, &ids, ids.len());
        let by_cpu = apart(&whole, &want);
        eprintln!("{name}: oracle {by_oracle:.1e}, kernels {by_cpu:.1e}");
        assert!(by_oracle < TOLERANCE && by_cpu < TOLERANCE, "{name}");
        for tokens in [1, 5] {
            assert_eq!(
                run(&mut cpu, &ids, tokens),
                whole,
                "{name} in steps of {tokens}"
            );
        }
    }
}
