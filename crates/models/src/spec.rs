//! What a model is: its dimensions and the choices of its family, free of any file's keys.

use crate::config::Config;
use crate::error::LoadFault;
use crate::folder::head;
use crate::rope::RopeSpec;
use forthwith_core::metadata::Metadata;
use forthwith_core::program::{Activation, NormKind, Pooling};
use forthwith_core::units::Tokens;

const MAX_LAYERS: usize = 1_024;
const MAX_WIDTH: usize = 1 << 20;
const MAX_HEADS: usize = 1 << 12;
const MAX_HEAD_DIM: usize = 1 << 14;
const MAX_EXPERTS: usize = 1 << 12;
const MAX_CONTEXT: usize = 1 << 31;

/// A whole model. Architectures read it from a file's metadata and build programs from it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Dimensions that all layers share.
    pub dimensions: Dimensions,
    /// What the norms between the parts divide by.
    pub norm: NormKind,
    /// Multiplies the embedding of each token.
    pub embedding_scale: f32,
    /// Multiplies what attention and feed-forward layers add to the residual.
    pub residual_scale: f32,
    /// Multiplies the logits.
    pub logits_scale: f32,
    /// Attention and feed-forward layer read the same residual.
    pub feed_forward_beside_attention: bool,
    /// Caps the logits.
    pub logits_softcap: Option<f32>,
    /// The rotary embeddings that layers name.
    pub ropes: Vec<RopeSpec>,
    /// The attention of each layer.
    pub layers: Vec<LayerSpec>,
    /// Tokens see only what stands before them.
    pub causal: bool,
    /// How rows become vectors, if the answer is not logits.
    pub pool: Option<PoolSpec>,
    /// Experts in place of the feed-forward layers.
    pub experts: Option<ExpertSpec>,
}

/// The experts of each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertSpec {
    /// How many there are.
    pub count: usize,
    /// How many answer a token.
    pub used: usize,
    /// Width inside one.
    pub feed_forward: usize,
}

impl ExpertSpec {
    /// Reads the keys of experts; `feed_forward` is their width where no key of their own says it.
    pub(crate) fn read(
        config: &mut Config<'_>,
        feed_forward: usize,
    ) -> Result<Option<Self>, LoadFault> {
        let count = config.optional_size("expert_count", 0..=MAX_EXPERTS)?;
        let used = config.optional_size("expert_used_count", 0..=MAX_EXPERTS)?;
        let own = config.optional_size("expert_feed_forward_length", 1..=MAX_WIDTH)?;
        let (count, used) = (count.unwrap_or(0), used.unwrap_or(0));
        if count == 0 && used == 0 {
            return Ok(None);
        }
        if count < 2 || !(1..=count).contains(&used) {
            let problem = format!("{used} of {count} experts; at least 1 of at least 2 is needed");
            let key = config.key("expert_used_count");
            return Err(LoadFault::value(key, problem));
        }
        Ok(Some(Self {
            count,
            used,
            feed_forward: own.unwrap_or(feed_forward),
        }))
    }
}

/// How a model's rows become vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// Which rows count.
    pub pooling: Pooling,
    /// What the outputs of each layer of the head go through.
    pub activations: Vec<Option<Activation>>,
}

impl PoolSpec {
    /// Reads what a folder's translation wrote.
    pub(crate) fn read(metadata: &Metadata) -> Result<Option<Self>, LoadFault> {
        let Some(pooling) = metadata.text(head::POOLING)? else {
            return Ok(None);
        };
        let pooling = match pooling {
            "first" => Pooling::First,
            "last" => Pooling::Last,
            "mean" => Pooling::Mean,
            "each" => Pooling::Each,
            other => {
                let problem = format!("`{}` is no way of pooling", other.escape_debug());
                return Err(LoadFault::value(head::POOLING, problem));
            }
        };
        let names = metadata.texts(head::ACTIVATIONS)?.unwrap_or_default();
        let activation = |name: &Vec<u8>| match &name[..] {
            b"none" => Ok(None),
            b"tanh" => Ok(Some(Activation::Tanh)),
            b"relu" => Ok(Some(Activation::Relu)),
            b"gelu" => Ok(Some(Activation::Gelu)),
            other => {
                let other = String::from_utf8_lossy(other);
                let problem = format!("`{}` is not known", other.escape_debug());
                Err(LoadFault::value(head::ACTIVATIONS, problem))
            }
        };
        Ok(Some(Self {
            pooling,
            activations: names.iter().map(activation).collect::<Result<_, _>>()?,
        }))
    }
}

/// The attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Index into [`ModelSpec::ropes`]; nothing rotates without one.
    pub rope: Option<usize>,
    /// How far the layer looks back, itself included.
    pub window: Option<Tokens>,
    /// Multiplies `q · k`.
    pub attention_scale: f32,
    /// Caps the scores.
    pub attention_softcap: Option<f32>,
}

/// The sizes of a decoder with grouped-query attention and a gated feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dimensions {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the feed-forward layer.
    pub feed_forward: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Tokens that the model knows.
    pub vocab: usize,
    /// Positions that the model was trained for.
    pub context: Tokens,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
}

impl ModelSpec {
    /// A model of layers that are all alike, with root-mean-square norms and no multipliers.
    pub(crate) fn uniform(
        dimensions: Dimensions,
        rope: impl Into<Option<RopeSpec>>,
        layer: LayerSpec,
    ) -> Self {
        Self {
            dimensions,
            norm: NormKind::RootMeanSquare,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logits_scale: 1.0,
            logits_softcap: None,
            feed_forward_beside_attention: false,
            ropes: rope.into().into_iter().collect(),
            layers: vec![layer; dimensions.layers],
            causal: true,
            pool: None,
            experts: None,
        }
    }
}

impl LayerSpec {
    /// Attention to everything before, with the first rotary embedding and the usual scale.
    pub(crate) fn usual(dimensions: &Dimensions) -> Self {
        Self {
            rope: Some(0),
            window: None,
            attention_scale: inverse_root(dimensions.head_dim),
            attention_softcap: None,
        }
    }
}

impl Dimensions {
    /// Reads and checks the keys that all families share.
    pub(crate) fn read(config: &mut Config<'_>) -> Result<Self, LoadFault> {
        Self::read_with(config, "attention.layer_norm_rms_epsilon")
    }

    /// The same for families with another norm, by the key of its epsilon.
    pub(crate) fn read_with(config: &mut Config<'_>, epsilon: &str) -> Result<Self, LoadFault> {
        let hidden = config.size("embedding_length", 1..=MAX_WIDTH)?;
        let heads = config.size("attention.head_count", 1..=MAX_HEADS)?;
        let kv_heads = config
            .optional_size("attention.head_count_kv", 1..=MAX_HEADS)?
            .unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let problem = format!("{kv_heads} does not divide the {heads} query heads");
            return Err(LoadFault::value(
                config.key("attention.head_count_kv"),
                problem,
            ));
        }
        Ok(Self {
            hidden,
            feed_forward: config.size("feed_forward_length", 1..=MAX_WIDTH)?,
            layers: config.size("block_count", 1..=MAX_LAYERS)?,
            heads,
            kv_heads,
            head_dim: read_head_dim(config, hidden, heads)?,
            vocab: config.vocab()?,
            context: Tokens::new(config.size("context_length", 1..=MAX_CONTEXT)?),
            norm_eps: to_f32(config.float(epsilon)?),
        })
    }
}

fn read_head_dim(config: &mut Config<'_>, hidden: usize, heads: usize) -> Result<usize, LoadFault> {
    let key_length = config.optional_size("attention.key_length", 1..=MAX_HEAD_DIM)?;
    let value_length = config.optional_size("attention.value_length", 1..=MAX_HEAD_DIM)?;
    let head_dim = match key_length {
        Some(length) => length,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let problem = format!("{heads} heads do not divide the width {hidden}");
            return Err(LoadFault::value(
                config.key("attention.head_count"),
                problem,
            ));
        }
    };
    match value_length {
        Some(length) if length != head_dim => {
            let problem = format!("{length} differs from the key length {head_dim}, not supported");
            Err(LoadFault::value(
                config.key("attention.value_length"),
                problem,
            ))
        }
        _ if !head_dim.is_multiple_of(2) => {
            let problem = format!("{head_dim} is odd, rotary pairs need an even length");
            Err(LoadFault::value(
                config.key("attention.key_length"),
                problem,
            ))
        }
        _ => Ok(head_dim),
    }
}

/// Reads which layers look back only a window.
pub(crate) fn read_windows(
    config: &mut Config<'_>,
    layers: &mut [LayerSpec],
) -> Result<(), LoadFault> {
    let window = config.optional_size("attention.sliding_window", 0..=MAX_CONTEXT)?;
    let pattern = config.bools("attention.sliding_window_pattern", layers.len())?;
    let Some(window) = window.filter(|&window| window > 0) else {
        return Ok(());
    };
    for (index, layer) in layers.iter_mut().enumerate() {
        if pattern.as_ref().is_none_or(|pattern| pattern[index]) {
            layer.window = Some(Tokens::new(window));
        }
    }
    Ok(())
}

/// A parameter in the precision that kernels use.
#[expect(
    clippy::cast_possible_truncation,
    reason = "parameters are stored as 32-bit floats"
)]
pub(crate) fn to_f32(value: f64) -> f32 {
    value as f32
}

/// `1 / √width`, the usual scale of attention scores.
#[expect(clippy::cast_precision_loss, reason = "head sizes are far below 2^52")]
pub(crate) fn inverse_root(width: usize) -> f32 {
    to_f32(1.0 / (width as f64).sqrt())
}

/// `√width`.
#[expect(clippy::cast_precision_loss, reason = "widths are far below 2^52")]
pub(crate) fn root(width: usize) -> f32 {
    to_f32((width as f64).sqrt())
}
