//! Tiny models of each family against what transformers answers, stored in `fixtures/models`.

use forthwith_core::executor::{Executor, Segment, StepInput};
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

/// Token ids and the logits after each.
fn golden(folder: &Path) -> (Vec<TokenId>, Vec<f32>) {
    let json = std::fs::read(folder.join("golden.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let ids = json["ids"].as_array().unwrap().iter();
    let ids = ids.map(|id| TokenId::new(u32::try_from(id.as_u64().unwrap()).unwrap()));
    let rows = json["logits"].as_array().unwrap().iter();
    let values = rows.flat_map(|row| row.as_array().unwrap());
    #[expect(
        clippy::cast_possible_truncation,
        reason = "logits in single precision"
    )]
    let logits = values.map(|value| value.as_f64().unwrap() as f32).collect();
    (ids.collect(), logits)
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
        }];
        let input = StepInput {
            tokens,
            segments: &segments,
            logit_rows: &rows,
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

#[test]
fn folders_of_each_family_answer_as_transformers_does() {
    let (mut families, mut wrong) = (std::collections::BTreeSet::new(), Vec::new());
    for folder in folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        // LongRoPE has no reader yet.
        if name.starts_with("phi") {
            continue;
        }
        let file = forthwith_models::open(&folder).unwrap();
        let program = Arc::new(forthwith_models::build(&file).unwrap());
        families.insert(program.architecture.clone());
        let (ids, want) = golden(&folder);
        let oracle = Reference::load(Arc::clone(&program), &file, Arithmetic::Oracle, BLOCKS);
        let by_oracle = apart(&run(&mut oracle.unwrap(), &ids, ids.len()), &want);
        let config = CpuConfig {
            threads: 2,
            isa: IsaChoice::best(),
            kv_format: KvFormat::F32,
            kv_blocks: BLOCKS,
            max_step_tokens: Tokens::new(64),
            context: Tokens::new(64),
        };
        let mut cpu = Cpu::load(program, &file, &config, &|_, _| {}).unwrap();
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
    assert_eq!(families.len(), 10, "{families:?}");
}
