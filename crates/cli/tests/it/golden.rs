//! Logits of the real models against those of llama.cpp, stored in `fixtures/logits`.
//!
//! Two comparisons for each model: the oracle against llama.cpp's own run of the same weights in
//! single precision, and the kernels against the oracle, where they may lose at most a tenth more
//! than llama.cpp's kernels lose.

use forthwith_core::executor::{Executor, Segment, StepInput};
use forthwith_core::program::Program;
use forthwith_core::units::{BlockId, Blocks, TokenId, Tokens};
use forthwith_cpu::{Arithmetic, Cpu, CpuConfig, IsaChoice, KvFormat, Reference, usable_cpus};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

const POSITIONS: usize = 200;
/// Tokens that the condensed golden distribution lists at each position.
const LISTED: usize = 128;

struct Golden {
    ids: Vec<TokenId>,
    /// llama.cpp's mean divergence from the oracle, the better of its two paths.
    peer: f64,
    /// Per position: log-probabilities of the most likely tokens, and of all others together.
    oracle: Vec<(Vec<(usize, f64)>, f64)>,
}

fn golden(model: &str) -> Golden {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/logits");
    let json = std::fs::read(folder.join(format!("{model}.golden.json"))).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let id = |id: &Value| TokenId::new(u32::try_from(id.as_u64().unwrap()).unwrap());
    let peer = |path: &str| json[format!("llama_cpp_kl_mean_{path}")].as_f64().unwrap();
    let bytes = std::fs::read(folder.join(format!("{model}.oracle.bin"))).unwrap();
    let (words, _) = bytes.as_chunks::<4>();
    let position = |words: &[[u8; 4]]| {
        assert_eq!(u32::from_le_bytes(words[0]) as usize, LISTED);
        let pairs = words[1..=2 * LISTED].chunks(2);
        let listed = pairs.map(|pair| {
            (
                u32::from_le_bytes(pair[0]) as usize,
                f64::from(f32::from_le_bytes(pair[1])),
            )
        });
        (
            listed.collect(),
            f64::from(f32::from_le_bytes(words[2 * LISTED + 1])),
        )
    };
    Golden {
        ids: json["ids"].as_array().unwrap().iter().map(id).collect(),
        peer: peer("prefill").min(peer("decode")),
        oracle: words.chunks(2 * LISTED + 2).map(position).collect(),
    }
}

/// Log-probabilities of one row.
pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from(logit - largest).exp())
        .sum();
    let shift = f64::from(largest) + sum.ln();
    logits
        .iter()
        .map(|&logit| f64::from(logit) - shift)
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "a count of positions")]
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    values.sum::<f64>() / count as f64
}

/// Divergence of `logits` from the stored distribution: the listed tokens and the rest as one.
fn condensed_divergence(golden: &Golden, logits: &[f32], vocab: usize) -> f64 {
    let rows = golden.oracle.iter().zip(logits.chunks(vocab));
    mean(rows.map(|((listed, rest), logits)| {
        let ours = log_softmax(logits);
        let mut remaining = 1.0;
        let mut divergence = 0.0;
        for &(id, log) in listed {
            divergence += log.exp() * (log - ours[id]);
            remaining -= ours[id].exp();
        }
        divergence + rest.exp() * (rest - f64::max(remaining, 1e-300).ln())
    }))
}

fn divergence(oracle: &[f32], logits: &[f32], vocab: usize) -> f64 {
    let rows = oracle.chunks(vocab).zip(logits.chunks(vocab));
    mean(rows.map(|(oracle, logits)| {
        let (p, q) = (log_softmax(oracle), log_softmax(logits));
        p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
    }))
}

/// The logits of every token, in chunks of `chunk`.
fn logits(executor: &mut dyn Executor, ids: &[TokenId], chunk: usize) -> Vec<f32> {
    let blocks: Vec<BlockId> = (0..8).map(BlockId::new).collect();
    let mut all = Vec::new();
    let mut out = Vec::new();
    for (index, tokens) in ids.chunks(chunk).enumerate() {
        let segments = [Segment {
            tokens: tokens.len(),
            position: index * chunk,
            blocks: &blocks,
            second_from: None,
        }];
        let rows: Vec<usize> = (0..tokens.len()).collect();
        let input = StepInput {
            tokens,
            segments: &segments,
            output_rows: &rows,
        };
        executor.step(&input, &mut out).unwrap();
        all.extend_from_slice(&out);
    }
    all
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn check(model: &str) {
    let Some(path) = super::real_model(&format!("{model}.gguf")) else {
        return;
    };
    let golden = golden(model);
    assert_eq!(
        (golden.ids.len(), golden.oracle.len()),
        (POSITIONS, POSITIONS)
    );
    let file = forthwith_weights::open(&path).unwrap();
    let program: Arc<Program> = Arc::new(forthwith_models::build(&file).unwrap());
    let vocab = program.vocab;
    let blocks = Blocks::new(8);

    let reference = |arithmetic| {
        let program = Arc::clone(&program);
        let mut reference = Reference::load(program, &file, arithmetic, blocks).unwrap();
        logits(&mut reference, &golden.ids, POSITIONS)
    };
    let oracle = reference(Arithmetic::Oracle);
    let to_peer = condensed_divergence(&golden, &oracle, vocab);
    assert!(
        to_peer.abs() < 1e-6,
        "the oracle diverges from llama.cpp's by {to_peer:e}"
    );

    let load = |threads, isa| {
        let max_step_tokens = Tokens::new(256);
        let config = CpuConfig {
            threads,
            isa,
            kv_format: KvFormat::F16,
            kv_blocks: blocks,
            max_step_tokens,
            context: Tokens::new(4096),
        };
        Cpu::load(Arc::clone(&program), &file, &config, &|_, _| {}).unwrap()
    };
    let best = IsaChoice::best();
    let ours = logits(&mut load(usable_cpus(), best), &golden.ids, POSITIONS);
    let lost = divergence(&oracle, &ours, vocab);
    eprintln!(
        "{model}: oracle to llama.cpp {to_peer:.2e}, kernels {lost:.6}, llama.cpp's {:.6}",
        golden.peer
    );
    assert!(
        lost <= 1.1 * golden.peer,
        "{lost} is more than 1.1 times {}",
        golden.peer
    );

    let quantizing = reference(Arithmetic::Quantizing(KvFormat::F16));
    let apart = divergence(&quantizing, &ours, vocab);
    // Sums that round differently move single activations by one step of 127; the distance that
    // this leaves is of the size that quantization itself leaves.
    assert!(
        apart <= 1.5 * golden.peer,
        "the kernels are {apart} from the quantizing reference"
    );

    for (threads, chunk) in [(1, 67), (3, 1)] {
        let again = logits(&mut load(threads, best), &golden.ids, chunk);
        assert!(
            bits(&again) == bits(&ours),
            "{threads} threads in chunks of {chunk} differ"
        );
    }
}

#[test]
fn real_smollm2_logits_equal_the_golden_ones() {
    check("smollm2");
}

#[test]
fn real_gemma3_logits_equal_the_golden_ones() {
    check("gemma3-270m");
}
