//! The perplexity of a real model on a text, through the kernels and through the plain reference.
//!
//! The reference takes minutes, so what it gave is stored in `fixtures/perplexity`; the ignored test
//! computes it again.

use super::golden::log_softmax;
use forthwith_core::executor::{Executor, Segment, StepInput};
use forthwith_core::program::Program;
use forthwith_core::units::{BlockId, Blocks, TokenId, Tokens};
use forthwith_cpu::{
    Arithmetic, BLOCK_SIZE, Cpu, CpuConfig, IsaChoice, KvFormat, Reference, usable_cpus,
};
use forthwith_text::Tokenizer;
use forthwith_weights::WeightFile;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const STEP: usize = 256;
/// How far the kernels may be from the reference in single floats. Sums that round differently at a
/// border of the eight-bit activations alone move a text of this length by as much.
const TOLERANCE: f64 = 0.003;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/perplexity")
}

/// A stored number.
fn stored(name: &str) -> f64 {
    let json = std::fs::read(folder().join("smollm2.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    json[name].as_f64().unwrap()
}

struct Model {
    file: WeightFile,
    program: Arc<Program>,
    ids: Vec<TokenId>,
}

impl Model {
    /// The model and the text in its tokens, where the tests have the model.
    fn open() -> Option<Self> {
        let file = forthwith_weights::open(&super::real_model("smollm2.gguf")?).unwrap();
        let program = Arc::new(forthwith_models::build(&file).unwrap());
        let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
        let text = std::fs::read_to_string(folder().join("text.txt")).unwrap();
        let ids = tokenizer.encode_prompt(&text).unwrap();
        Some(Self { file, program, ids })
    }

    fn blocks(&self) -> Blocks {
        Tokens::new(self.ids.len()).blocks_needed(BLOCK_SIZE)
    }

    /// `exp` of the mean of `−ln p` over every token but the first, in steps of so many tokens.
    #[expect(clippy::cast_precision_loss, reason = "a count of tokens")]
    fn perplexity(&self, executor: &mut dyn Executor, step: usize) -> f64 {
        let blocks = 0..u32::try_from(self.blocks().get()).unwrap();
        let blocks: Vec<BlockId> = blocks.map(BlockId::new).collect();
        let (mut logits, mut sum) = (Vec::new(), 0.0);
        let followers = self.ids.len() - 1;
        for (index, tokens) in self.ids[..followers].chunks(step).enumerate() {
            let position = index * step;
            let rows: Vec<usize> = (0..tokens.len()).collect();
            let input = StepInput {
                tokens,
                segments: &[Segment {
                    tokens: tokens.len(),
                    position,
                    blocks: &blocks,
                    second_from: None,
                }],
                output_rows: &rows,
            };
            executor.step(&input, &mut logits).unwrap();
            let next = &self.ids[position + 1..];
            for (row, next) in logits.chunks_exact(self.program.vocab).zip(next) {
                sum -= log_softmax(row)[next.index()];
            }
        }
        (sum / followers as f64).exp()
    }
}

#[test]
fn real_smollm2_perplexity_is_that_of_the_reference() {
    let Some(model) = Model::open() else {
        return;
    };
    #[expect(clippy::cast_precision_loss, reason = "a count of tokens")]
    let tokens = model.ids.len() as f64;
    assert_eq!(
        tokens,
        stored("tokens"),
        "the stored numbers are of this text"
    );
    let (oracle, quantizing) = (stored("oracle"), stored("quantizing"));
    for (kv_format, tolerance) in [
        (KvFormat::F16, TOLERANCE),
        (KvFormat::F32, TOLERANCE),
        // Eight bits each, on request.
        (KvFormat::BF16, 2.0 * TOLERANCE),
        (KvFormat::Q8_0, 2.0 * TOLERANCE),
    ] {
        let config = CpuConfig {
            threads: usable_cpus(),
            isa: IsaChoice::best(),
            kv_format,
            kv_blocks: model.blocks(),
            max_step_tokens: Tokens::new(STEP),
            context: Tokens::new(model.ids.len()),
        };
        let program = Arc::clone(&model.program);
        let mut cpu = Cpu::load(program, &model.file, &config, &|_, _| {}).unwrap();
        let ours = model.perplexity(&mut cpu, STEP);
        let apart = |other: f64| ours / other - 1.0;
        eprintln!(
            "perplexity with a cache in {kv_format}: {ours:.4}; {:+.3} % of the same arithmetic in \
             plain loops, {:+.3} % of single floats",
            100.0 * apart(quantizing),
            100.0 * apart(oracle)
        );
        assert!(
            apart(oracle).abs() <= tolerance,
            "perplexity {ours} with a cache in {kv_format}, the reference has {oracle}"
        );
    }
}

#[test]
#[ignore = "takes minutes; prints and checks what the reference gave"]
fn real_smollm2_perplexity_of_the_reference_is_as_stored() {
    let Some(model) = Model::open() else {
        return;
    };
    let found = [
        ("oracle", Arithmetic::Oracle),
        ("quantizing", Arithmetic::Quantizing(KvFormat::F16)),
    ]
    .map(|(name, arithmetic)| {
        let program = Arc::clone(&model.program);
        let reference = Reference::load(program, &model.file, arithmetic, model.blocks());
        let perplexity = model.perplexity(&mut reference.unwrap(), STEP);
        eprintln!("{name}: {perplexity:.6} over {} tokens", model.ids.len());
        (name, perplexity)
    });
    for (name, perplexity) in found {
        let stored = stored(name);
        assert!(
            (perplexity / stored - 1.0).abs() < 1e-5,
            "{name}: stored {stored}"
        );
    }
}
