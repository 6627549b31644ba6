//! The suite that every backend passes: small random models, phase by phase, against a reference.
//!
//! A backend calls [`check`] with a function that loads a program. The suite compares logits with
//! those of the reference executor within the case's tolerance, and holds the backend to the
//! promise that company, chunking, block order and forks change no bit.

mod cases;
mod model;

pub use cases::{Case, cases};
pub use model::TinyModel;

use crate::executor::{Executor, Segment, StepInput};
use crate::format::{Encoder, Format};
use crate::program::{Output, Program};
use crate::shape::WeightSource;
use crate::units::{BlockId, TokenId};
use std::sync::Arc;

/// Loads a program into an executor with at least 24 blocks.
pub type Load<'a> = dyn Fn(Arc<Program>, &dyn WeightSource) -> Box<dyn Executor> + 'a;

/// Runs every case; panics with the case's name where the backend fails it. `coarseness` is how
/// many times coarser than half floats the backend's KV cache rounds; it widens the tolerances.
///
/// # Panics
/// If the backend breaks the contract or leaves a tolerance.
pub fn check(candidate: &Load<'_>, reference: &Load<'_>, coarseness: f32) {
    for mut case in cases() {
        case.tolerance *= coarseness.max(1.0);
        let model = TinyModel::new(&case);
        let load = |load: &Load<'_>| load(Arc::clone(&model.program), &model);
        let tokens = model.tokens(70);
        if case.vectors.is_some() {
            let runs = [load(candidate), load(reference)].map(Run::new);
            check_texts(&case, runs, &tokens);
            continue;
        }
        let want = Run::new(load(reference)).whole(&tokens, 0);
        let mut run = Run::new(load(candidate));
        let got = run.whole(&tokens, 0);
        compare(&case, &got, &want);
        assert_bits(
            &case,
            "chunked",
            &got,
            &run.chunked(&tokens, &[1, 31, 7, 1, 1, 29], 5),
        );
        assert_bits(&case, "in company", &got, &run.in_company(&tokens));
        assert_bits(&case, "forked", &got, &run.forked(&tokens));
    }
}

/// Texts of several lengths, one of them a pair: each like the reference's, and in company to the
/// bit as alone.
fn check_texts(case: &Case, [mut candidate, mut reference]: [Run; 2], tokens: &[TokenId]) {
    let texts: [(&[TokenId], Option<usize>); 4] = [
        (&tokens[..41], Some(20)),
        (&tokens[41..], None),
        (&tokens[7..8], None),
        (&tokens[3..30], Some(0)),
    ];
    let mut alone = Vec::new();
    for text in texts {
        let got = candidate.texts(&[text]);
        compare(case, &got, &reference.texts(&[text]));
        alone.extend(got);
    }
    assert_bits(case, "in company", &alone, &candidate.texts(&texts));
}

/// Blocks for tests: `values` encoded, or noise of about their size in a format that is only read.
///
/// # Panics
/// Never for whole blocks of finite values.
#[expect(clippy::cast_possible_truncation, reason = "bytes of noise, a scale")]
pub fn encode(format: Format, values: &[f32]) -> Vec<u8> {
    let info = format.info();
    let Encoder::Absent { rescale } = info.encoder else {
        return format.quantize(values);
    };
    let size = |values: &[f32]| {
        let squares: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
        squares.sqrt()
    };
    let mut random = 0x5eed;
    let mut out = Vec::new();
    for values in values.chunks_exact(info.elements) {
        for value in values {
            random ^= u64::from(value.to_bits());
            model::noise(&mut random);
        }
        let mut noise = || {
            model::noise(&mut random);
            (random >> 32) as u8
        };
        let mut block: Vec<u8> = (0..info.bytes).map(|_| noise()).collect();
        let mut plain = vec![0.0; info.elements];
        rescale(&mut block, 1.0);
        (info.dequantize)(&block, &mut plain);
        rescale(&mut block, (size(values) / size(&plain)) as f32);
        out.extend(block);
    }
    out
}

fn compare(case: &Case, got: &[Vec<f32>], want: &[Vec<f32>]) {
    for (position, (got, want)) in got.iter().zip(want).enumerate() {
        let size = want
            .iter()
            .fold(0.0_f32, |size, value| size.max(value.abs()));
        for (id, (got, want)) in got.iter().zip(want).enumerate() {
            let error = (got - want).abs() / size;
            assert!(
                error <= case.tolerance,
                "{}: position {position}, token {id}: {got} is not {want} within {} of {size}",
                case.name,
                case.tolerance
            );
        }
    }
}

fn assert_bits(case: &Case, how: &str, a: &[Vec<f32>], b: &[Vec<f32>]) {
    let bits = |rows: &[Vec<f32>]| -> Vec<u32> {
        rows.iter().flatten().map(|value| value.to_bits()).collect()
    };
    assert!(
        bits(a) == bits(b),
        "{}: the answer differs when {how}",
        case.name
    );
}

struct Run {
    executor: Box<dyn Executor>,
    block_size: usize,
}

/// `count` block ids in a scattered order that depends on `salt`; disjoint for salts 8 apart.
fn blocks(count: usize, salt: u32) -> Vec<BlockId> {
    (0..count)
        .rev()
        .map(|i| BlockId::new(salt + u32::try_from(i).expect("few blocks")))
        .collect()
}

impl Run {
    fn new(executor: Box<dyn Executor>) -> Self {
        let block_size = executor.kv_geometry().block_size.get();
        Self {
            executor,
            block_size,
        }
    }

    fn needed(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// Runs segments of `(tokens, position, blocks)` and returns the logits of every token.
    fn step(&mut self, runs: &[(&[TokenId], usize, &[BlockId])]) -> Vec<Vec<f32>> {
        let tokens: Vec<TokenId> = runs.iter().flat_map(|run| run.0).copied().collect();
        let segments: Vec<Segment<'_>> = runs
            .iter()
            .map(|&(tokens, position, blocks)| Segment {
                tokens: tokens.len(),
                position,
                blocks,
                second_from: None,
            })
            .collect();
        let rows: Vec<usize> = (0..tokens.len()).collect();
        let input = StepInput {
            tokens: &tokens,
            segments: &segments,
            output_rows: &rows,
        };
        let mut logits = Vec::new();
        self.executor
            .step(&input, &mut logits)
            .expect("the suite keeps the contract");
        assert_eq!(
            logits.len(),
            tokens.len() * self.executor.vocab(),
            "a row for each token"
        );
        logits
            .chunks(self.executor.vocab())
            .map(<[f32]>::to_vec)
            .collect()
    }

    /// Runs texts in one step and returns their vectors.
    fn texts(&mut self, texts: &[(&[TokenId], Option<usize>)]) -> Vec<Vec<f32>> {
        let Output::Vectors { each_token, .. } = self.executor.output() else {
            panic!("the program answers with vectors");
        };
        let tokens: Vec<TokenId> = texts.iter().flat_map(|text| text.0).copied().collect();
        let (mut own, mut first_block, mut ends) = (Vec::new(), 0, Vec::new());
        for (text, _) in texts {
            let count = self.needed(text.len());
            own.push(blocks(count, first_block));
            first_block += u32::try_from(count).expect("few blocks");
            ends.push(ends.last().copied().unwrap_or(0) + text.len());
        }
        let segments: Vec<Segment<'_>> = texts
            .iter()
            .zip(&own)
            .map(|(&(text, second_from), blocks)| Segment {
                tokens: text.len(),
                position: 0,
                blocks,
                second_from,
            })
            .collect();
        let output_rows: Vec<usize> = if each_token {
            (0..tokens.len()).collect()
        } else {
            ends.iter().map(|end| end - 1).collect()
        };
        let input = StepInput {
            tokens: &tokens,
            segments: &segments,
            output_rows: &output_rows,
        };
        let mut output = Vec::new();
        let outcome = self.executor.step(&input, &mut output);
        outcome.expect("the suite keeps the contract");
        let width = self.executor.output_width();
        assert_eq!(output.len(), output_rows.len() * width, "a row for each");
        output.chunks(width).map(<[f32]>::to_vec).collect()
    }

    fn whole(&mut self, tokens: &[TokenId], salt: u32) -> Vec<Vec<f32>> {
        let blocks = blocks(self.needed(tokens.len()), salt);
        self.step(&[(tokens, 0, &blocks)])
    }

    fn chunked(&mut self, tokens: &[TokenId], sizes: &[usize], salt: u32) -> Vec<Vec<f32>> {
        let blocks = blocks(self.needed(tokens.len()), salt);
        let mut sizes = sizes.iter().cycle();
        let (mut at, mut rows) = (0, Vec::new());
        while at < tokens.len() {
            let end = (at + sizes.next().expect("a cycle")).min(tokens.len());
            rows.extend(self.step(&[(&tokens[at..end], at, &blocks)]));
            at = end;
        }
        rows
    }

    /// Another sequence rides in front and a third behind, at other positions.
    fn in_company(&mut self, tokens: &[TokenId]) -> Vec<Vec<f32>> {
        let (own, first) = (blocks(self.needed(tokens.len()), 0), blocks(1, 8));
        let second = blocks(self.needed(40), 16);
        let others: Vec<TokenId> = tokens.iter().rev().copied().collect();
        let mut rows = Vec::new();
        self.step(&[(&others[..39], 0, &second)]);
        let half = tokens.len() / 2;
        let step = self.step(&[(&others[..9], 0, &first), (&tokens[..half], 0, &own)]);
        rows.extend_from_slice(&step[9..]);
        let step = self.step(&[(&tokens[half..], half, &own), (&others[..1], 39, &second)]);
        rows.extend_from_slice(&step[..tokens.len() - half]);
        rows
    }

    /// The second half runs on copies of the first half's blocks, after the originals changed.
    fn forked(&mut self, tokens: &[TokenId]) -> Vec<Vec<f32>> {
        let count = self.needed(tokens.len());
        let (original, copy) = (blocks(count, 0), blocks(count, 12));
        let half = tokens.len() / 2;
        let mut rows = self.step(&[(&tokens[..half], 0, &original)]);
        for (&from, &to) in original.iter().zip(&copy).take(self.needed(half)) {
            self.executor.copy_block(from, to);
        }
        self.step(&[(&tokens[half..], 0, &original)]);
        rows.extend(self.step(&[(&tokens[half..], half, &copy)]));
        rows
    }
}
