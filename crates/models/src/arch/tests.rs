use crate::testing::{HIDDEN, VOCAB, tiny_gemma3, tiny_llama};
use crate::{LoadFault, build};
use forthwith_core::format::Format;
use forthwith_core::metadata::Value;
use forthwith_core::program::{Activation, Attention, NormKind, Pairing, Phase, Program};
use forthwith_core::units::{Bytes, Tokens};
use forthwith_weights::testing::GgufWriter;
use forthwith_weights::{WeightFile, open};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn load(writer: &GgufWriter) -> Result<Program, LoadFault> {
    let file = WeightFile::from_bytes(Path::new("tiny.gguf"), writer.to_bytes()).unwrap();
    build(&file).map_err(|error| error.fault)
}

fn attentions(program: &Program) -> Vec<&Attention> {
    let phases = program.phases.iter();
    phases
        .filter_map(|phase| match phase {
            Phase::Attention(attention) => Some(attention),
            _ => None,
        })
        .collect()
}

fn replace(writer: GgufWriter, key: &str, value: Value) -> GgufWriter {
    writer.without_key(key).key(key, value)
}

fn zeros(count: u64) -> Vec<f32> {
    (0..count).map(|_| 0.0).collect()
}

#[test]
fn llama_is_written_as_five_phases_a_layer() {
    let program = load(&tiny_llama(1)).unwrap();
    let names: Vec<&str> = program.phases.iter().map(Phase::name).collect();
    let layer = [
        "norm + qkv",
        "attention",
        "output + residual",
        "norm + gate, up",
        "down + residual",
    ];
    assert_eq!(names[0], "embed");
    assert_eq!(names[1..6], layer);
    assert_eq!(names[6..11], layer);
    assert_eq!(names[11..], ["norm + logits"]);
    assert_eq!(program.ropes.len(), 1);
    assert_eq!(program.ropes[0].pairing, Pairing::Adjacent);
    assert_eq!(program.kv_elements_per_token(), 2 * 2 * 2 * 16);
    let attention = attentions(&program)[1];
    assert_eq!(
        (attention.layer, attention.heads, attention.rope),
        (1, 4, Some(0))
    );
    assert_eq!(attention.scale.to_bits(), 0.25_f32.to_bits());
    assert_eq!((attention.query_norm, attention.softcap), (None, None));
}

#[test]
fn a_missing_output_matrix_ties_the_head_to_the_embedding() {
    let head = |program: &Program| match program.phases.last() {
        Some(Phase::Logits(logits)) => logits.head,
        other => panic!("{other:?}"),
    };
    let tied = load(&tiny_llama(1)).unwrap();
    assert_eq!(tied.weight(head(&tied).weight).name, "token_embd.weight");
    let values = zeros(VOCAB * HIDDEN);
    let own = tiny_llama(1).tensor("output.weight", Format::F16, &[HIDDEN, VOCAB], &values);
    let own = load(&own).unwrap();
    assert_eq!(own.weight(head(&own).weight).name, "output.weight");
    assert_eq!(own.weights.len(), tied.weights.len() + 1);
}

#[test]
fn frequency_factors_divide_and_are_no_weight() {
    let plain = load(&tiny_llama(1)).unwrap();
    let factors = [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0];
    let scaled = tiny_llama(1).tensor("rope_freqs.weight", Format::F32, &[8], &factors);
    let scaled = load(&scaled).unwrap();
    for (index, factor) in factors.into_iter().enumerate() {
        let expected = plain.ropes[0].inverse_frequencies[index] / f64::from(factor);
        assert!((scaled.ropes[0].inverse_frequencies[index] - expected).abs() < 1e-15);
    }
    assert_eq!(scaled.weights, plain.weights);
    let zero = tiny_llama(1).tensor("rope_freqs.weight", Format::F32, &[8], &[0.0; 8]);
    let message = load(&zero).unwrap_err().to_string();
    assert!(
        message.contains("`rope_freqs.weight`: element 0 is 0"),
        "{message}"
    );
}

#[test]
fn gemma3_alternates_local_and_global_layers() {
    let program = load(&tiny_gemma3(1)).unwrap();
    let window = Some(Tokens::new(8));
    let windows: Vec<_> = program.kv_layers.iter().map(|layer| layer.window).collect();
    assert_eq!(
        windows,
        [window, window, window, window, window, None, window]
    );
    let ropes: Vec<_> = attentions(&program)
        .iter()
        .map(|attention| attention.rope)
        .collect();
    let (global, local) = (Some(0), Some(1));
    assert_eq!(ropes, [local, local, local, local, local, global, local]);
    let second = |rope: usize| program.ropes[rope].inverse_frequencies[1];
    assert!((second(0) - 1e6_f64.powf(-1.0 / 16.0)).abs() < 1e-12);
    assert!((second(1) - 1e4_f64.powf(-1.0 / 16.0)).abs() < 1e-12);
    assert_eq!(program.ropes[0].pairing, Pairing::Halves);
}

#[test]
fn gemma3_norms_and_scales_follow_the_family() {
    let program = load(&tiny_gemma3(1)).unwrap();
    let Phase::Embed(embed) = &program.phases[0] else {
        panic!("starts with the embedding")
    };
    assert_eq!(embed.scale.to_bits(), 8.0_f32.to_bits());
    let attention = attentions(&program)[0];
    assert!((attention.scale - 1.0 / 32.0_f32.sqrt()).abs() < 1e-7);
    let name = |id| program.weight(id).name.as_str();
    assert_eq!(
        name(attention.query_norm.unwrap().weight),
        "blk.0.attn_q_norm.weight"
    );
    assert_eq!(
        name(attention.key_norm.unwrap().weight),
        "blk.0.attn_k_norm.weight"
    );
    for (index, post) in [(3, "post_attention_norm"), (5, "post_ffw_norm")] {
        let norms = program.phases[index].norms();
        assert_eq!(name(norms[0].weight), format!("blk.0.{post}.weight"));
    }
    let Phase::GateUp(gate_up) = &program.phases[4] else {
        panic!("the feed-forward layer follows attention")
    };
    assert_eq!(gate_up.activation, Activation::GeluTanh);
}

#[test]
fn gemma3_reads_its_optional_keys() {
    let writer = tiny_gemma3(1)
        .key("gemma3.final_logit_softcapping", Value::Float(30.0))
        .key("gemma3.attn_logit_softcapping", Value::Float(0.0))
        .key("gemma3.rope.scaling.type", Value::Text(b"linear".to_vec()))
        .key("gemma3.rope.scaling.factor", Value::Float(8.0))
        .key("gemma3.rope.freq_base_swa", Value::Float(5000.0))
        .key(
            "gemma3.attention.sliding_window_pattern",
            Value::Unsigned(2),
        );
    let program = load(&writer).unwrap();
    let Some(Phase::Logits(logits)) = program.phases.last() else {
        panic!("ends with the logits")
    };
    assert_eq!(logits.softcap, Some(30.0));
    assert_eq!(attentions(&program)[0].softcap, None);
    assert_eq!(
        program.ropes[0].inverse_frequencies[0].to_bits(),
        0.125_f64.to_bits()
    );
    assert_eq!(
        program.ropes[1].inverse_frequencies[0].to_bits(),
        1.0_f64.to_bits()
    );
    assert!((program.ropes[1].inverse_frequencies[8] - 5000_f64.powf(-0.5)).abs() < 1e-12);
    let local = |index: usize| program.kv_layers[index].window.is_some();
    assert_eq!(
        [local(0), local(1), local(2), local(3)],
        [true, false, true, false]
    );

    let no_window = tiny_gemma3(1).without_key("gemma3.attention.sliding_window");
    let program = load(&no_window).unwrap();
    assert!(program.kv_layers.iter().all(|layer| layer.window.is_none()));
    assert!(
        attentions(&program)
            .iter()
            .all(|attention| attention.rope == Some(0))
    );

    let pattern = Value::Bools(vec![false, false, true, false, false, false, true]);
    let listed = tiny_gemma3(1).key("gemma3.attention.sliding_window_pattern", pattern);
    let program = load(&listed).unwrap();
    let local: Vec<bool> = program
        .kv_layers
        .iter()
        .map(|layer| layer.window.is_some())
        .collect();
    assert_eq!(local, [false, false, true, false, false, false, true]);
}

#[test]
fn long_rope_without_its_factors_is_refused_by_tensor() {
    let kind = Value::Text(b"longrope".to_vec());
    let file = replace(tiny_llama(1), "llama.rope.scaling.type", kind);
    let message = load(&file).unwrap_err().to_string();
    assert!(
        message.contains("`rope_factors_short.weight` is missing"),
        "{message}"
    );
}

#[test]
fn impossible_metadata_is_refused_by_key() {
    let unsigned = Value::Unsigned;
    let cases: Vec<(&str, Value)> = vec![
        ("llama.block_count", unsigned(0)),
        ("llama.block_count", unsigned(u64::MAX)),
        ("llama.block_count", Value::Signed(-1)),
        ("llama.embedding_length", unsigned(0)),
        ("llama.embedding_length", unsigned(1 << 40)),
        ("llama.feed_forward_length", Value::Text(b"128".to_vec())),
        ("llama.attention.head_count", unsigned(0)),
        ("llama.attention.head_count", unsigned(6)),
        ("llama.attention.head_count_kv", unsigned(0)),
        ("llama.attention.head_count_kv", unsigned(3)),
        ("llama.attention.head_count_kv", Value::Integers(vec![2, 1])),
        ("llama.attention.key_length", unsigned(15)),
        ("llama.attention.value_length", unsigned(8)),
        (
            "llama.attention.layer_norm_rms_epsilon",
            Value::Float(f64::NAN),
        ),
        ("llama.attention.layer_norm_rms_epsilon", Value::Float(-1.0)),
        ("llama.attention.layer_norm_rms_epsilon", Value::Float(0.0)),
        ("llama.attention.causal", Value::Bool(false)),
        ("llama.context_length", unsigned(0)),
        ("llama.rope.freq_base", Value::Float(f64::INFINITY)),
        ("llama.rope.freq_base", Value::Float(1e300)),
        ("llama.rope.freq_base", Value::Float(0.5)),
        ("llama.rope.dimension_count", unsigned(7)),
        ("llama.rope.dimension_count", unsigned(18)),
        ("llama.rope.scaling.type", Value::Text(b"other".to_vec())),
        ("llama.expert_used_count", unsigned(9)),
        ("llama.logit_scale", Value::Float(2.0)),
        ("tokenizer.ggml.tokens", Value::Texts(vec![])),
        ("general.architecture", Value::Text(b"mamba\n".to_vec())),
    ];
    for (key, value) in cases {
        let message = load(&replace(tiny_llama(1), key, value.clone()))
            .unwrap_err()
            .to_string();
        let names_key = message.contains(&format!("`{key}`")) || message.contains("`mamba\\n`");
        assert!(names_key, "{key} = {value:?}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
    ] {
        let message = load(&tiny_llama(1).without_key(key))
            .unwrap_err()
            .to_string();
        assert_eq!(message, format!("metadata key `{key}` is missing"));
    }
}

#[test]
fn tensors_must_have_the_shape_of_the_metadata() {
    let name = "blk.1.ffn_down.weight";
    let missing = load(&tiny_llama(1).without_tensor(name)).unwrap_err();
    assert_eq!(
        missing.to_string(),
        format!("tensor `{name}` is missing: expected [64, 128]")
    );
    let turned =
        tiny_llama(1)
            .without_tensor(name)
            .tensor(name, Format::F32, &[64, 128], &zeros(64 * 128));
    let message = load(&turned).unwrap_err().to_string();
    assert_eq!(
        message,
        format!("tensor `{name}`: expected [64, 128], found [128, 64]")
    );
    let fewer = Value::Texts(vec![b"a".to_vec(); 300]);
    let message = load(&replace(tiny_llama(1), "tokenizer.ggml.tokens", fewer))
        .unwrap_err()
        .to_string();
    assert_eq!(
        message,
        "tensor `token_embd.weight`: expected [300, 64], found [311, 64]"
    );
}

#[test]
fn biases_are_taken_where_a_file_has_them() {
    let values = zeros(HIDDEN);
    let writer = tiny_llama(1).tensor("blk.0.attn_q.bias", Format::F32, &[HIDDEN], &values);
    let program = load(&writer).unwrap();
    let products = program.phases[1].products();
    let bias = products[0].bias.map(|id| program.weight(id).name.as_str());
    assert_eq!(bias, Some("blk.0.attn_q.bias"));
    assert_eq!((products[1].bias, products[2].bias), (None, None));
}

#[test]
fn a_layer_norm_has_a_bias_and_positions_a_row_each() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/gpt2");
    let program = build(&crate::open(&folder).unwrap()).unwrap();
    let Phase::Embed(embed) = &program.phases[0] else {
        panic!("starts with the embedding")
    };
    assert_eq!(program.weight(embed.positions.unwrap()).rows, 64);
    let norm = program.phases[1].norms()[0];
    assert_eq!(norm.kind, NormKind::Layer);
    assert_eq!(
        program.weight(norm.bias.unwrap()).name,
        "blk.0.attn_norm.bias"
    );
    let names: Vec<&str> = program.phases[1..6].iter().map(Phase::name).collect();
    assert_eq!(names[3..], ["norm + up", "down + residual"]);
    // Queries, keys and values are thirds of one tensor.
    let products = program.phases[1].products();
    let firsts = products
        .iter()
        .map(|product| program.weight(product.weight).first);
    assert_eq!(firsts.collect::<Vec<_>>(), [0, 32, 64]);
}

#[test]
fn a_feed_forward_layer_beside_attention_reads_the_same_residual() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/models/gptneox-parallel");
    let program = build(&crate::open(&folder).unwrap()).unwrap();
    let names: Vec<&str> = program.phases[1..6].iter().map(Phase::name).collect();
    let beside = [
        "norm + qkv",
        "norm + up",
        "attention",
        "output + residual",
        "down + residual",
    ];
    assert_eq!(names, beside);
}

#[test]
fn norms_must_be_finite() {
    let name = "blk.0.attn_norm.weight";
    let mut values = zeros(HIDDEN);
    values[7] = f32::NAN;
    let writer = tiny_llama(1)
        .without_tensor(name)
        .tensor(name, Format::F32, &[HIDDEN], &values);
    let message = load(&writer).unwrap_err().to_string();
    assert_eq!(
        message,
        format!("tensor `{name}`: element 7 is NaN, must be finite")
    );
}

#[test]
fn weights_that_no_phase_uses_are_refused() {
    let scale = "blk.0.attn_q.scale";
    let writer = tiny_llama(1).tensor(scale, Format::F32, &[64], &zeros(64));
    let fault = load(&writer).unwrap_err();
    assert!(
        fault
            .to_string()
            .contains("1 tensors of the file are not used"),
        "{fault}"
    );
    let LoadFault::Unused { tensors, .. } = fault else {
        panic!("{fault}")
    };
    assert_eq!(tensors, [scale]);
    let norms = tiny_gemma3(1).key("gemma3.unheard_of", Value::Bool(true));
    let message = load(&norms).unwrap_err().to_string();
    assert!(message.contains("`gemma3.unheard_of`"), "{message}");
}

#[test]
fn errors_name_the_file() {
    let writer = tiny_llama(1).without_key("llama.block_count");
    let file = WeightFile::from_bytes(Path::new("tiny.gguf"), writer.to_bytes()).unwrap();
    let message = build(&file).unwrap_err().to_string();
    assert_eq!(
        message,
        "`tiny.gguf`: metadata key `llama.block_count` is missing"
    );
}

proptest! {
    #[test]
    fn strange_metadata_never_panics(
        key in prop::sample::select(vec![
            "block_count", "embedding_length", "feed_forward_length", "context_length",
            "attention.head_count", "attention.head_count_kv", "attention.key_length",
            "attention.value_length", "attention.sliding_window",
            "attention.sliding_window_pattern", "rope.freq_base", "rope.scaling.factor",
            "rope.dimension_count", "final_logit_softcapping", "vocab_size",
        ]),
        value in prop_oneof![
            any::<u64>().prop_map(Value::Unsigned),
            (0_u64..600).prop_map(Value::Unsigned),
            any::<i64>().prop_map(Value::Signed),
            any::<f64>().prop_map(Value::Float),
            Just(Value::Bools(vec![true])),
        ],
        gemma in any::<bool>(),
    ) {
        let (writer, family) =
            if gemma { (tiny_gemma3(1), "gemma3") } else { (tiny_llama(1), "llama") };
        if let Err(fault) = load(&replace(writer, &format!("{family}.{key}"), value)) {
            prop_assert!(!fault.to_string().contains('\n'));
        }
    }
}

/// The folder of real models, or a loud line that says what was left out.
fn real_model(file: &str) -> Option<WeightFile> {
    let folder = std::env::var_os("FORTHWITH_TEST_MODELS").map(PathBuf::from);
    let path = folder.map(|folder| folder.join(file));
    let Some(path) = path.filter(|path| path.exists()) else {
        eprintln!("SKIPPED: set FORTHWITH_TEST_MODELS to a folder with {file}");
        return None;
    };
    Some(open(&path).unwrap())
}

#[test]
fn smollm2_becomes_a_program() {
    let Some(file) = real_model("smollm2.gguf") else {
        return;
    };
    let program = build(&file).unwrap();
    assert_eq!((program.hidden, program.vocab), (576, 49_152));
    assert_eq!(program.context, Tokens::new(8192));
    assert_eq!(program.phases.len(), 2 + 30 * 5);
    assert_eq!(program.weights.len(), 272);
    assert_eq!(program.kv_elements_per_token(), 30 * 2 * 3 * 64);
    assert_eq!(program.parameters(), 134_515_008);
    assert_eq!(program.ropes[0].pairing, Pairing::Adjacent);
    let second = program.ropes[0].inverse_frequencies[1];
    assert!((second - 100_000_f64.powf(-1.0 / 32.0)).abs() < 1e-12);
    assert_eq!(attentions(&program)[0].scale.to_bits(), 0.125_f32.to_bits());
    assert!(program.weight_bytes() > Bytes::new(96_000_000));
    assert!(program.weight_bytes() < file.file_bytes());
}

#[test]
fn gemma3_270m_becomes_a_program() {
    let Some(file) = real_model("gemma3-270m.gguf") else {
        return;
    };
    let program = build(&file).unwrap();
    assert_eq!((program.hidden, program.vocab), (640, 262_144));
    assert_eq!(program.context, Tokens::new(32_768));
    assert_eq!(program.phases.len(), 2 + 18 * 5);
    assert_eq!(program.weights.len(), 236);
    assert_eq!(program.kv_elements_per_token(), 18 * 2 * 256);
    let global: Vec<usize> = (0..18)
        .filter(|&l| program.kv_layers[l].window.is_none())
        .collect();
    assert_eq!(global, [5, 11, 17]);
    assert_eq!(program.kv_layers[0].window, Some(Tokens::new(512)));
    let second = |rope: usize| program.ropes[rope].inverse_frequencies[1];
    assert!((second(0) - 1e6_f64.powf(-1.0 / 128.0)).abs() < 1e-12);
    assert!((second(1) - 1e4_f64.powf(-1.0 / 128.0)).abs() < 1e-12);
    assert_eq!(
        attentions(&program)[0].scale.to_bits(),
        0.0625_f32.to_bits()
    );
    let Phase::Embed(embed) = &program.phases[0] else {
        panic!("starts with the embedding")
    };
    assert_eq!(embed.scale.to_bits(), 640_f32.sqrt().to_bits());
}
