//! The first answer of a loaded model, beside the reference in plain loops.

use forthwith_core::executor::{Executor, Segment, StepInput};
use forthwith_core::program::Program;
use forthwith_core::units::{BlockId, Blocks, TokenId, Tokens};
use forthwith_cpu::{Arithmetic, BLOCK_SIZE, Cpu, KvFormat, Reference};
use forthwith_text::Tokenizer;
use forthwith_weights::WeightFile;
use std::sync::Arc;

/// What a model is tried on.
const TRIAL: &str = "The answer is";
/// Tokens of it at a start: several, so that attention has something to choose from, and few, because
/// the reference is slow.
const AT_START: usize = 3;
/// How far kernels may be from plain loops that round as they do: the length of the difference as a
/// share of the answer's length.
///
/// Sums that are taken in another order move single activations to a neighbouring byte, which real
/// models amplify: 0.023 for `SmolLM2`, 0.017 for `Gemma` 3 270M, 0.00003 for float weights. Kernels that
/// compute something else are about 1 apart.
const TOLERANCE: f32 = 0.15;

/// A check that found something.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The model's file holds what is not a number, or can no longer be read.
    File(String),
    /// The kernels compute something else than the reference.
    Kernels(String),
}

/// The first tokens of the trial, with those that the model puts around a text.
pub(crate) fn trial(tokenizer: &Tokenizer, most: usize) -> Result<Vec<TokenId>, String> {
    let encoded = tokenizer.encode_text(TRIAL, Some(most));
    Ok(encoded.map_err(|error| error.to_string())?.tokens)
}

/// Compares a loaded model's first answer with that of the reference, which reads every matrix of the
/// file and finds what is not a number; says how far they are apart.
///
/// # Cost     each matrix is read and expanded once; some floats of memory
pub(crate) fn at_start(
    cpu: &mut Cpu,
    program: &Arc<Program>,
    file: &WeightFile,
    tokenizer: &Tokenizer,
    kv_format: KvFormat,
) -> Result<f32, Fault> {
    let tokens = trial(tokenizer, AT_START).map_err(Fault::File)?;
    let blocks = Tokens::new(tokens.len()).blocks_needed(BLOCK_SIZE);
    let arithmetic = Arithmetic::Quantizing(kv_format);
    let reference = Reference::streamed(Arc::clone(program), file, arithmetic, blocks);
    let mut reference = reference.map_err(|error| Fault::File(error.to_string()))?;
    let theirs = answer(&mut reference, &tokens, blocks).map_err(Fault::File)?;
    let ours = answer(cpu, &tokens, blocks).map_err(Fault::Kernels)?;
    let apart = distance(&ours, &theirs);
    if apart <= TOLERANCE {
        return Ok(apart);
    }
    Err(Fault::Kernels(format!(
        "the kernels' first answer is {apart:.1e} of its length from that of the reference, allowed is \
         {TOLERANCE}"
    )))
}

/// What the model answers to the last of some tokens, or to their text.
pub(crate) fn answer(
    executor: &mut dyn Executor,
    tokens: &[TokenId],
    blocks: Blocks,
) -> Result<Vec<f32>, String> {
    let blocks: Vec<BlockId> = (0..blocks.get())
        .map(|index| BlockId::new(u32::try_from(index).unwrap_or(u32::MAX)))
        .collect();
    let segments = [Segment {
        tokens: tokens.len(),
        position: 0,
        blocks: &blocks,
        second_from: None,
    }];
    let input = StepInput {
        tokens,
        segments: &segments,
        output_rows: &[tokens.len() - 1],
    };
    let mut output = Vec::new();
    let outcome = executor.step(&input, &mut output);
    outcome.map_err(|error| error.to_string())?;
    match output.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(format!("the model answers with {value}")),
        None => Ok(output),
    }
}

/// The length of the difference, as a share of the reference's length.
#[expect(clippy::cast_possible_truncation, reason = "a share")]
fn distance(ours: &[f32], theirs: &[f32]) -> f32 {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let length: f64 = theirs.iter().map(|&value| square(value)).sum();
    let pairs = ours.iter().zip(theirs);
    let difference: f64 = pairs.map(|(ours, theirs)| square(ours - theirs)).sum();
    (difference / length.max(f64::from(f32::MIN_POSITIVE))).sqrt() as f32
}

/// The largest difference, as a share of the largest number.
pub(crate) fn apart(ours: &[f32], theirs: &[f32]) -> f32 {
    let size = theirs
        .iter()
        .fold(f32::MIN_POSITIVE, |size, value| size.max(value.abs()));
    let pairs = ours.iter().zip(theirs);
    pairs.fold(0.0_f32, |most, (ours, theirs)| {
        most.max((ours - theirs).abs())
    }) / size
}

#[cfg(test)]
mod tests {
    use super::*;
    use forthwith_core::format::Format;
    use forthwith_cpu::{CpuConfig, IsaChoice};
    use forthwith_models::testing::{HIDDEN, tiny_llama};
    use forthwith_weights::testing::GgufWriter;

    fn written(writer: &GgufWriter) -> (tempfile::TempDir, WeightFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        writer.write(&path).unwrap();
        let file = forthwith_models::open(&path).unwrap();
        (folder, file)
    }

    /// Checks kernels that hold the weights of one file against the reference with those of another.
    fn check(kernels: &GgufWriter, reference: &GgufWriter) -> Result<f32, Fault> {
        let ((_one, kernels), (_other, reference)) = (written(kernels), written(reference));
        let program = Arc::new(forthwith_models::build(&reference).unwrap());
        let config = CpuConfig {
            threads: 1,
            isa: IsaChoice::named("scalar").unwrap(),
            kv_format: KvFormat::F16,
            kv_blocks: Blocks::new(1),
            max_step_tokens: Tokens::new(16),
            context: Tokens::new(16),
        };
        let mut cpu = Cpu::load(Arc::clone(&program), &kernels, &config, &|_, _| {}).unwrap();
        let tokenizer = Tokenizer::from_gguf(reference.metadata()).unwrap();
        at_start(&mut cpu, &program, &reference, &tokenizer, KvFormat::F16)
    }

    #[test]
    fn kernels_that_compute_something_else_are_found() {
        let apart = check(&tiny_llama(1), &tiny_llama(1)).unwrap();
        assert!(apart < 0.01, "{apart}");
        let name = "blk.1.ffn_down.weight";
        let values = vec![0.1; 128 * usize::try_from(HIDDEN).unwrap()];
        let other = tiny_llama(1).without_tensor(name);
        let other = other.tensor(name, Format::Q8_0, &[128, HIDDEN], &values);
        let fault = check(&other, &tiny_llama(1)).unwrap_err();
        assert!(matches!(fault, Fault::Kernels(_)), "{fault:?}");
    }

    #[test]
    fn what_is_not_a_number_is_named() {
        let name = "blk.1.ffn_up.weight";
        let mut bytes = vec![0; usize::try_from(HIDDEN).unwrap() / 32 * 34 * 128];
        // The scale of a block in row 100.
        bytes[100 * 68..100 * 68 + 2].copy_from_slice(&0x7E00_u16.to_le_bytes());
        let damaged = tiny_llama(1).without_tensor(name);
        let damaged = damaged.raw_tensor(name, 8, &[HIDDEN, 128], bytes);
        let Fault::File(problem) = check(&damaged, &damaged).unwrap_err() else {
            panic!("a fault of the file");
        };
        let row = "tensor `blk.1.ffn_up.weight`, from row 64: NaN is not a number";
        assert!(problem.contains(row), "{problem}");
    }
}
