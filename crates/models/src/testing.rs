//! Tiny models with seeded weights, for tests that need a real file but no language.

use crate::hash_model::mix;
use forthwith_core::format::Format;
use forthwith_core::metadata::Value;
use forthwith_weights::testing::GgufWriter;

/// Width of the residual stream of the tiny models.
pub const HIDDEN: u64 = 64;
/// Tokens of the tiny models: three control tokens, all bytes, letters with and without a space.
pub const VOCAB: u64 = 3 + 256 + 52;
const FEED_FORWARD: u64 = 128;
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;

/// A two-layer llama with heads of 16 and a tied head.
pub fn tiny_llama(seed: u64) -> GgufWriter {
    let tiny = Tiny {
        architecture: "llama",
        layers: 2,
        head_dim: HIDDEN / HEADS,
        seed,
    };
    let mut writer = tiny
        .keys()
        .key("llama.rope.dimension_count", number(tiny.head_dim));
    for layer in 0..tiny.layers {
        writer = tiny.layer(writer, layer);
    }
    writer
}

/// A seven-layer gemma3 with heads of 32, five local layers, one global and one local again.
pub fn tiny_gemma3(seed: u64) -> GgufWriter {
    let tiny = Tiny {
        architecture: "gemma3",
        layers: 7,
        head_dim: 32,
        seed,
    };
    let mut writer = tiny
        .keys()
        .key("gemma3.attention.key_length", number(tiny.head_dim))
        .key("gemma3.attention.value_length", number(tiny.head_dim))
        .key("gemma3.attention.sliding_window", number(8));
    for layer in 0..tiny.layers {
        writer = tiny.layer(writer, layer);
        for (part, width) in [
            ("attn_q_norm", tiny.head_dim),
            ("attn_k_norm", tiny.head_dim),
            ("post_attention_norm", HIDDEN),
            ("post_ffw_norm", HIDDEN),
        ] {
            writer = tiny.norm(writer, &format!("blk.{layer}.{part}.weight"), width);
        }
    }
    writer
}

struct Tiny {
    architecture: &'static str,
    layers: u64,
    head_dim: u64,
    seed: u64,
}

impl Tiny {
    fn keys(&self) -> GgufWriter {
        let family = self.architecture;
        let writer = GgufWriter::new()
            .key("general.architecture", Value::Text(family.into()))
            .key("general.name", Value::Text(format!("tiny {family}").into()))
            .key(&format!("{family}.context_length"), number(256))
            .key(&format!("{family}.embedding_length"), number(HIDDEN))
            .key(&format!("{family}.block_count"), number(self.layers))
            .key(
                &format!("{family}.feed_forward_length"),
                number(FEED_FORWARD),
            )
            .key(&format!("{family}.attention.head_count"), number(HEADS))
            .key(
                &format!("{family}.attention.head_count_kv"),
                number(KV_HEADS),
            )
            .key(
                &format!("{family}.attention.layer_norm_rms_epsilon"),
                Value::Float(1e-5),
            );
        let writer = self.matrix(add_tokenizer(writer), "token_embd.weight", VOCAB, HIDDEN);
        self.norm(writer, "output_norm.weight", HIDDEN)
    }

    fn layer(&self, writer: GgufWriter, layer: u64) -> GgufWriter {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (queries, keys) = (HEADS * self.head_dim, KV_HEADS * self.head_dim);
        let mut writer = self.norm(writer, &name("attn_norm"), HIDDEN);
        writer = self.norm(writer, &name("ffn_norm"), HIDDEN);
        for (part, rows, cols) in [
            ("attn_q", queries, HIDDEN),
            ("attn_k", keys, HIDDEN),
            ("attn_v", keys, HIDDEN),
            ("attn_output", HIDDEN, queries),
            ("ffn_gate", FEED_FORWARD, HIDDEN),
            ("ffn_up", FEED_FORWARD, HIDDEN),
            ("ffn_down", HIDDEN, FEED_FORWARD),
        ] {
            writer = self.matrix(writer, &name(part), rows, cols);
        }
        writer
    }

    fn matrix(&self, writer: GgufWriter, name: &str, rows: u64, cols: u64) -> GgufWriter {
        let values = self.values(name, rows * cols, 0.0);
        writer.tensor(name, Format::Q8_0, &[cols, rows], &values)
    }

    fn norm(&self, writer: GgufWriter, name: &str, width: u64) -> GgufWriter {
        writer.tensor(name, Format::F32, &[width], &self.values(name, width, 1.0))
    }

    /// Values within a quarter of `center` that depend on the seed and the tensor's name.
    fn values(&self, name: &str, count: u64, center: f32) -> Vec<f32> {
        let start = name
            .bytes()
            .fold(mix(self.seed), |state, byte| mix(state ^ u64::from(byte)));
        let value = |index: u64| {
            let bits = u16::try_from(mix(start ^ index) >> 48).expect("16 bits are left");
            center + (f32::from(bits) / 65_536.0 - 0.5) * 0.5
        };
        (0..count).map(value).collect()
    }
}

/// A score-ordered tokenizer: control tokens, byte tokens, then letters that win over bytes.
fn add_tokenizer(writer: GgufWriter) -> GgufWriter {
    const CONTROL: i64 = 3;
    const UNKNOWN: i64 = 2;
    const BYTE: i64 = 6;
    const NORMAL: i64 = 1;
    let mut tokens: Vec<(String, i64)> = vec![
        ("<unk>".to_owned(), UNKNOWN),
        ("<s>".to_owned(), CONTROL),
        ("</s>".to_owned(), CONTROL),
    ];
    tokens.extend((0..=255_u8).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    tokens.extend(('a'..='z').map(|letter| (letter.to_string(), NORMAL)));
    tokens.extend(('a'..='z').map(|letter| (format!("\u{2581}{letter}"), NORMAL)));
    let scores = tokens.iter().map(|(text, _)| {
        if text.chars().count() == 2 {
            -1.0
        } else {
            -2.0
        }
    });
    writer
        .key("tokenizer.ggml.model", Value::Text(b"llama".to_vec()))
        .key("tokenizer.ggml.scores", Value::Floats(scores.collect()))
        .key(
            "tokenizer.ggml.token_type",
            Value::Integers(tokens.iter().map(|(_, kind)| *kind).collect()),
        )
        .key(
            "tokenizer.ggml.tokens",
            Value::Texts(
                tokens
                    .into_iter()
                    .map(|(text, _)| text.into_bytes())
                    .collect(),
            ),
        )
        .key("tokenizer.ggml.bos_token_id", number(1))
        .key("tokenizer.ggml.eos_token_id", number(2))
        .key("tokenizer.ggml.unknown_token_id", number(0))
        .key("tokenizer.ggml.add_bos_token", Value::Bool(true))
}

fn number(value: u64) -> Value {
    Value::Unsigned(value)
}
