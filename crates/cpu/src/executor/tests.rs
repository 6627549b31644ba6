use super::*;
use crate::quant::matrix::stored_bytes;
use crate::{Arithmetic, Reference};
use forthwith_core::conformance::{Load, TinyModel, cases, check};
use forthwith_core::executor::Segment;
use forthwith_core::format::Format;
use forthwith_core::program::WeightSpec;
use forthwith_core::units::{Blocks, TokenId};

fn config(threads: usize, isa: IsaChoice) -> CpuConfig {
    CpuConfig {
        threads,
        isa,
        kv_format: KvFormat::F16,
        kv_blocks: Blocks::new(24),
        max_step_tokens: Tokens::new(128),
        context: Tokens::new(760),
    }
}

fn conforms(config: CpuConfig) {
    let candidate: &Load<'_> =
        &|program, source| Box::new(Cpu::load(program, source, &config, &|_, _| {}).unwrap());
    let reference: &Load<'_> = &|program, source| {
        let blocks = Blocks::new(24);
        Box::new(
            Reference::load(
                program,
                source,
                Arithmetic::Quantizing(config.kv_format),
                blocks,
            )
            .unwrap(),
        )
    };
    let coarseness = match config.kv_format {
        KvFormat::F16 | KvFormat::F32 => 1.0,
        // 8 bits of precision instead of 11.
        KvFormat::BF16 => 8.0,
        // Steps of 1/127 of the largest element of a group.
        KvFormat::Q8_0 => 16.0,
    };
    check(candidate, reference, coarseness);
}

#[test]
fn best_isa_conforms_on_one_thread() {
    conforms(config(1, IsaChoice::best()));
}

#[test]
fn best_isa_conforms_on_three_threads() {
    conforms(config(3, IsaChoice::best()));
}

#[test]
fn every_format_of_the_cache_conforms() {
    for kv_format in KvFormat::ALL {
        conforms(CpuConfig {
            kv_format,
            ..config(2, IsaChoice::best())
        });
    }
}

#[test]
fn what_no_kernel_reads_is_said_with_its_size() {
    for case in cases() {
        let program = TinyModel::new(&case).program;
        let size = |format| {
            let of_format = |spec: &&WeightSpec| spec.rows > 1 && spec.format == format;
            let specs = program.weights.iter().filter(of_format);
            specs.fold((0, 0), |(file, memory), spec| {
                (
                    file + spec.bytes().get(),
                    memory + stored_bytes(spec) as u64,
                )
            })
        };
        let said = expansions(&program);
        for expansion in &said {
            let sizes = (expansion.stored.get(), expansion.memory.get());
            assert_eq!(sizes, size(expansion.format), "{expansion}");
        }
        for &format in Format::ALL {
            let (file, memory) = size(format);
            let silent = said.iter().all(|expansion| expansion.format != format);
            // Padding to sixteen rows and wider scales are no expansion.
            assert!(
                !silent || memory <= 5 * file / 2,
                "{}: {file} became {memory}",
                case.name
            );
        }
    }
    let names = ["weights in IQ2_XS", "weights in F64", "weights in Q4_K"];
    let texts = names.map(|name| {
        let case = cases().into_iter().find(|case| case.name == name).unwrap();
        let said = expansions(&TinyModel::new(&case).program);
        said.iter().map(ToString::to_string).collect::<String>()
    });
    assert!(
        texts[0].starts_with("no kernel reads IQ2_XS as stored; kept as signed bytes"),
        "{texts:?}"
    );
    assert!(texts[1].contains("kept as F32, rounded"), "{texts:?}");
    assert_eq!(texts[2], "");
}

fn run(model: &TinyModel, config: CpuConfig) -> Vec<u32> {
    let program = Arc::clone(&model.program);
    let mut cpu = Cpu::load(program, model, &config, &|_, _| {}).unwrap();
    let tokens = model.tokens(60);
    let blocks = [BlockId::new(3), BlockId::new(1)];
    let rows: Vec<usize> = match cpu.output() {
        Output::Vectors {
            each_token: false, ..
        } => vec![59],
        _ => (0..60).collect(),
    };
    let segments = [Segment {
        tokens: 60,
        position: 0,
        blocks: &blocks,
        second_from: None,
    }];
    let mut logits = Vec::new();
    let input = StepInput {
        tokens: &tokens,
        segments: &segments,
        output_rows: &rows,
    };
    cpu.step(&input, &mut logits).unwrap();
    logits.into_iter().map(f32::to_bits).collect()
}

#[test]
fn neither_threads_nor_isa_change_a_bit() {
    for case in cases() {
        let model = TinyModel::new(&case);
        let one = run(&model, config(1, IsaChoice::best()));
        assert!(
            one == run(&model, config(0, IsaChoice::best())),
            "{}: no threads asked for",
            case.name
        );
        assert!(
            one == run(&model, config(2, IsaChoice::best())),
            "{}: two threads",
            case.name
        );
        assert!(
            one == run(&model, config(5, IsaChoice::best())),
            "{}: five threads",
            case.name
        );
        let scalar = IsaChoice::named("scalar").unwrap();
        assert!(
            one == run(&model, config(2, scalar)),
            "{}: scalar",
            case.name
        );
    }
}

#[test]
fn broken_input_is_an_error_not_a_panic() {
    let model = TinyModel::new(&cases()[0]);
    let config = config(2, IsaChoice::best());
    let mut cpu = Cpu::load(Arc::clone(&model.program), &model, &config, &|_, _| {}).unwrap();
    let blocks = [BlockId::new(0)];
    let far = [BlockId::new(24)];
    let token = [TokenId::new(5)];
    let segment = |tokens, position, blocks| Segment {
        tokens,
        position,
        blocks,
        second_from: None,
    };
    let many: Vec<BlockId> = (0..24).map(BlockId::new).collect();
    let cases: [(&[TokenId], Segment<'_>, &[usize]); 8] = [
        (&token, segment(1, 760, &many), &[0]),
        (&[], segment(0, 0, &blocks), &[]),
        (&[TokenId::new(77)], segment(1, 0, &blocks), &[0]),
        (&token, segment(2, 0, &blocks), &[0]),
        (&token, segment(1, 32, &blocks), &[0]),
        (&token, segment(1, 0, &far), &[0]),
        (&token, segment(1, 0, &blocks), &[1]),
        (&[TokenId::new(1); 129], segment(129, 0, &blocks), &[]),
    ];
    let mut logits = Vec::new();
    for (tokens, segment, rows) in cases {
        let input = StepInput {
            tokens,
            segments: &[segment],
            output_rows: rows,
        };
        let error = cpu.step(&input, &mut logits).unwrap_err();
        assert!(matches!(error, StepError::Input(_)), "{error}");
    }
    let input = StepInput {
        tokens: &token,
        segments: &[segment(1, 0, &blocks)],
        output_rows: &[0],
    };
    assert_eq!(cpu.step(&input, &mut logits), Ok(()));
}

#[test]
fn threads_are_lent_once_each_and_survive_a_panic() {
    let model = TinyModel::new(&cases()[0]);
    let config = config(3, IsaChoice::best());
    let mut cpu = Cpu::load(Arc::clone(&model.program), &model, &config, &|_, _| {}).unwrap();
    let calls: [AtomicUsize; 3] = Default::default();
    let count = |index: usize| {
        calls[index].fetch_add(1, Ordering::Relaxed);
        assert!(
            index != 1 || calls[1].load(Ordering::Relaxed) != 2,
            "on purpose"
        );
    };
    assert_eq!(cpu.threads(), 3);
    assert_eq!(cpu.lend_threads(&count), Ok(()));
    let error = cpu.lend_threads(&count).unwrap_err();
    assert!(error.to_string().contains("on purpose"), "{error}");
    assert_eq!(cpu.lend_threads(&count), Ok(()));
    assert_eq!(calls.map(AtomicUsize::into_inner), [3, 3, 3]);
}

/// The logits of the last of 700 tokens, when the last `tail` come as a step of their own.
fn last_logits(model: &TinyModel, program: &Program, tail: usize) -> Vec<u32> {
    let config = config(2, IsaChoice::best());
    let mut cpu = Cpu::load(Arc::new(program.clone()), model, &config, &|_, _| {}).unwrap();
    let tokens = model.tokens(700);
    let blocks: Vec<BlockId> = (0..24).map(BlockId::new).collect();
    let mut logits = Vec::new();
    let (head, rest) = tokens.split_at(700 - tail);
    let mut position = 0;
    for piece in head.chunks(128).chain([rest]) {
        let input = StepInput {
            tokens: piece,
            segments: &[Segment {
                tokens: piece.len(),
                position,
                blocks: &blocks,
                second_from: None,
            }],
            output_rows: &[piece.len() - 1],
        };
        cpu.step(&input, &mut logits).unwrap();
        position += piece.len();
    }
    logits.into_iter().map(f32::to_bits).collect()
}

/// A longer context than the trained one is allowed, and nothing of it may be left out.
#[test]
fn beyond_the_trained_context_few_tokens_see_as_much_as_many() {
    for case in &cases() {
        let model = TinyModel::new(case);
        if model.program.output() != Output::Logits {
            continue;
        }
        let program = Program {
            context: Tokens::new(64),
            ..(*model.program).clone()
        };
        let many = last_logits(&model, &program, 60);
        assert_eq!(many, last_logits(&model, &program, 1), "{}", case.name);
        assert_eq!(many, last_logits(&model, &program, 7), "{}", case.name);
    }
}
