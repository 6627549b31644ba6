//! The tokenizer: text to token ids, token ids to bytes.
//!
//! Four kinds share one face: byte-level byte-pair merges (GGUF `gpt2`), score-ordered merges
//! (GGUF `llama`), the library's own (model folders) and plain words. Text is cut at special tokens first; only what lies between is
//! merged. Control tokens are left out of the merging, so that text cannot turn into one.

mod byte_level;
mod end_tokens;
mod error;
pub(crate) mod from_folder;
mod from_gguf;
mod library;
mod pre_tokenizer;
mod scored_merges;
mod special;
mod vocabulary;
mod word_pieces;
mod words;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forthwith_core::metadata::Metadata;
use forthwith_core::units::TokenId;

use crate::detokenizer;
use crate::template::RenderedPrompt;

pub use error::{TokenizeError, TokenizerError};
use library::Around;
pub(crate) use special::ControlGuard;
pub(crate) use special::Fragment;
use special::SpecialTokens;
use vocabulary::{MAX_TOKENS, TokenBytes};

/// What the text of a control token in the input means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlText {
    /// It is text like any other: input that a user wrote.
    AsText,
    /// It becomes the control token: input that is trusted.
    Parse,
}

/// Text to token ids and back; shared by all requests.
#[derive(Debug)]
pub struct Tokenizer {
    model: Model,
    kind: String,
    bytes: TokenBytes,
    hidden: Vec<bool>,
    end_tokens: Vec<TokenId>,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    adds_bos: bool,
    adds_space: bool,
    user_defined: SpecialTokens,
    all_special: SpecialTokens,
    guard: Arc<ControlGuard>,
    around: Around,
}

/// A text or a pair of texts as a model computes it as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedText {
    /// Its tokens, with those that the model wants around it.
    pub tokens: Vec<TokenId>,
    /// Where in them the text's own tokens lie, of a pair those of its second text.
    pub inner: Range<usize>,
    /// Where tokens of the second type begin, for models that tell the texts of a pair apart.
    pub second_from: Option<usize>,
    /// How many tokens of the text itself, of a pair its second text, were left out.
    pub truncated: usize,
}

#[derive(Debug)]
enum Model {
    ByteLevel(Box<byte_level::ByteLevel>),
    Scored(scored_merges::ScoredMerges),
    Words(words::Words),
    Library(Box<library::Library>),
}

impl Tokenizer {
    /// Builds the tokenizer of a model folder from its `tokenizer.json` and the files beside it.
    ///
    /// # Errors    [`TokenizerError`] names the file and the field that is wrong
    pub fn from_folder(folder: &Path) -> Result<Self, TokenizerError> {
        from_folder::build(folder)
    }

    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// # Errors    [`TokenizerError`] names the key, token or merge rule that is wrong
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        from_gguf::build(metadata)
    }

    /// A tokenizer of whole words split at white space; decoding joins them with single spaces.
    ///
    /// The text of a `hidden` word in a prompt is an unknown word.
    pub fn words(
        words: &[String],
        unknown: TokenId,
        end_tokens: Vec<TokenId>,
        hidden: Vec<TokenId>,
    ) -> Result<Self, TokenizerError> {
        if words.is_empty() || words.len() > MAX_TOKENS {
            return Err(TokenizerError::VocabularySize(words.len()));
        }
        for (key, ids) in [
            ("unknown", &[unknown][..]),
            ("end_tokens", &end_tokens),
            ("hidden", &hidden),
        ] {
            if let Some(id) = ids.iter().find(|id| id.index() >= words.len()) {
                return Err(TokenizerError::SpecialId {
                    key,
                    id: u64::from(id.get()),
                    tokens: words.len(),
                });
            }
        }
        let mut bytes = TokenBytes::default();
        for word in words {
            bytes.push(word.bytes());
        }
        let model = Model::Words(words::Words::new(words, unknown, &hidden));
        let mut is_hidden = vec![false; words.len()];
        for id in hidden {
            is_hidden[id.index()] = true;
        }
        Ok(Self {
            model,
            kind: format!("words split at white space ({} words)", words.len()),
            bytes,
            hidden: is_hidden,
            end_tokens,
            bos: None,
            eos: None,
            adds_bos: false,
            adds_space: false,
            user_defined: SpecialTokens::new([])?,
            all_special: SpecialTokens::new([])?,
            guard: Arc::new(ControlGuard::new([])?),
            around: Around::default(),
        })
    }

    /// A text as encoders and their kin compute it: with the tokens around it that the model wants,
    /// and of at most `most` tokens if it may be truncated.
    pub fn encode_text(
        &self,
        text: &str,
        most: Option<usize>,
    ) -> Result<EncodedText, TokenizeError> {
        let Around { before, after, .. } = &self.around;
        let mut inner = self.encode(text, ControlText::AsText)?;
        let truncated = truncate(&mut inner, most, before.len() + after.len());
        Ok(EncodedText {
            inner: before.len()..before.len() + inner.len(),
            tokens: [before, &inner, after]
                .into_iter()
                .flatten()
                .copied()
                .collect(),
            second_from: None,
            truncated,
        })
    }

    /// Two texts that are computed together; the second one is truncated if that is allowed and
    /// needed.
    ///
    /// # Errors     [`TokenizeError::NoPairs`] if the model has no way to write pairs
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        most: Option<usize>,
    ) -> Result<EncodedText, TokenizeError> {
        let around = &self.around;
        let between = around.between.as_ref().ok_or(TokenizeError::NoPairs)?;
        let mut tokens = around.before.clone();
        tokens.extend(self.encode(first, ControlText::AsText)?);
        tokens.extend(between);
        let mut inner = self.encode(second, ControlText::AsText)?;
        let truncated = truncate(&mut inner, most, tokens.len() + around.after_pair.len());
        let second_from = around.two_types.then_some(tokens.len());
        let first = tokens.len();
        tokens.extend(inner);
        let inner = first..tokens.len();
        tokens.extend(&around.after_pair);
        Ok(EncodedText {
            tokens,
            inner,
            second_from,
            truncated,
        })
    }

    /// Whether the model has a way to write pairs.
    pub fn has_pairs(&self) -> bool {
        self.around.between.is_some()
    }

    /// The tokens of a text; adds no beginning-of-sequence token.
    ///
    /// Bytes that the vocabulary has no token for are dropped if it is byte-level.
    pub fn encode(&self, text: &str, control: ControlText) -> Result<Vec<TokenId>, TokenizeError> {
        let special = match control {
            ControlText::AsText => &self.user_defined,
            ControlText::Parse => &self.all_special,
        };
        let mut out = Output::default();
        if let Model::Library(library) = &self.model {
            let trusted = control == ControlText::Parse;
            library.encode(text, trusted, &mut out.tokens)?;
            return Ok(out.tokens);
        }
        self.encode_into(text, special, &mut out)?;
        Ok(out.tokens)
    }

    /// The tokens of a text that follows other text.
    pub(crate) fn encode_within(&self, text: &str) -> Result<Vec<TokenId>, TokenizeError> {
        let mut out = Output {
            in_text: true,
            ..Output::default()
        };
        self.encode_into(text, &self.user_defined, &mut out)?;
        Ok(out.tokens)
    }

    /// The tokens of a raw prompt, after the beginning-of-sequence token if the model wants one.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<TokenId>, TokenizeError> {
        self.encode_prompt_with(text, ControlText::AsText)
    }

    /// The same, control-token text as the caller says.
    pub fn encode_prompt_with(
        &self,
        text: &str,
        control: ControlText,
    ) -> Result<Vec<TokenId>, TokenizeError> {
        let special = match control {
            ControlText::AsText => &self.user_defined,
            ControlText::Parse => &self.all_special,
        };
        let mut out = Output::default();
        out.tokens.extend(self.bos.filter(|_| self.adds_bos));
        self.encode_into(text, special, &mut out)?;
        Ok(out.tokens)
    }

    /// The tokens of a rendered conversation; control tokens come from the template alone.
    ///
    /// Begins with the beginning-of-sequence token if the model wants one, once.
    pub fn encode_rendered(
        &self,
        rendered: &RenderedPrompt,
    ) -> Result<Vec<TokenId>, TokenizeError> {
        let mut out = Output::default();
        let parts = match &self.model {
            // Without text that looks like a control token the library sees the prompt as a whole.
            Model::Library(library) if !rendered.is_guarded() => {
                library.encode(rendered.guarded_text(), true, &mut out.tokens)?;
                Vec::new()
            }
            _ => self.all_special.split(rendered.guarded_text()),
        };
        for fragment in parts {
            match fragment {
                Fragment::Token(id) => out.push_special(id),
                Fragment::Text(text) => {
                    let text = rendered.unguard(text);
                    self.encode_into(&text, &self.user_defined, &mut out)?;
                }
            }
        }
        let mut tokens = out.tokens;
        match self.bos {
            Some(bos) if self.adds_bos && tokens.first() != Some(&bos) => tokens.insert(0, bos),
            _ => {}
        }
        Ok(tokens)
    }

    /// The text of a whole token sequence: lossy where bytes are not UTF-8, without hidden tokens,
    /// and without the space that encoding put before the first word.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        self.without_added_space(detokenizer::decode(self, tokens))
    }

    /// The same with hidden tokens as they are spelled: what a prompt of these tokens looks like.
    pub fn spell(&self, tokens: &[TokenId]) -> String {
        self.without_added_space(detokenizer::spell(self, tokens))
    }

    fn without_added_space(&self, text: String) -> String {
        match text.strip_prefix(' ') {
            Some(rest) if self.adds_space => rest.to_owned(),
            _ => text,
        }
    }

    /// The special token that is spelled so.
    pub fn special(&self, text: &str) -> Option<TokenId> {
        match self.all_special.split(text)[..] {
            [Fragment::Token(id)] => Some(id),
            _ => None,
        }
    }

    /// A text as its special tokens and what lies between them.
    pub(crate) fn split_special<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        self.all_special.split(text)
    }

    /// How many tokens the vocabulary has.
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that ends a sequence, as the file names it; see also [`Self::end_tokens`].
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// Whether prompts begin with [`Self::bos`].
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// The tokens that end an answer.
    pub fn end_tokens(&self) -> &[TokenId] {
        &self.end_tokens
    }

    /// Whether a token is never shown in returned text.
    pub fn is_hidden(&self, id: TokenId) -> bool {
        self.hidden.get(id.index()).copied().unwrap_or(true)
    }

    /// The bytes that a token stands for; none for an id outside the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.bytes.get(id)
    }

    /// The tokenizer in words, for people.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// What stands between the texts of two tokens.
    pub(crate) fn separator(&self) -> &'static str {
        match self.model {
            Model::Words(_) => " ",
            Model::ByteLevel(_) | Model::Scored(_) | Model::Library(_) => "",
        }
    }

    pub(crate) fn guard(&self) -> Arc<ControlGuard> {
        Arc::clone(&self.guard)
    }

    fn encode_into(
        &self,
        text: &str,
        special: &SpecialTokens,
        out: &mut Output,
    ) -> Result<(), TokenizeError> {
        for fragment in special.split(text) {
            match fragment {
                Fragment::Token(id) => out.push_special(id),
                Fragment::Text(text) => self.merge(text, out)?,
            }
        }
        Ok(())
    }

    fn merge(&self, text: &str, out: &mut Output) -> Result<(), TokenizeError> {
        let starts_word = self.adds_space && !out.in_text;
        out.in_text = true;
        match &self.model {
            Model::ByteLevel(model) => model.encode(text, &mut out.tokens),
            Model::Scored(model) if starts_word => {
                model.encode(&format!(" {text}"), &mut out.tokens)
            }
            Model::Scored(model) => model.encode(text, &mut out.tokens),
            Model::Library(model) => model.encode(text, false, &mut out.tokens),
            Model::Words(model) => {
                model.encode(text, &mut out.tokens);
                Ok(())
            }
        }
    }
}

/// Leaves as many tokens as there may be beside `others`; returns how many are left out.
fn truncate(tokens: &mut Vec<TokenId>, most: Option<usize>, others: usize) -> usize {
    let before = tokens.len();
    if let Some(most) = most {
        tokens.truncate(most.saturating_sub(others));
    }
    before - tokens.len()
}

/// Tokens so far, and whether the last of them came from text.
#[derive(Default)]
struct Output {
    tokens: Vec<TokenId>,
    in_text: bool,
}

impl Output {
    fn push_special(&mut self, id: TokenId) {
        self.tokens.push(id);
        self.in_text = false;
    }
}

#[cfg(test)]
mod folder_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
