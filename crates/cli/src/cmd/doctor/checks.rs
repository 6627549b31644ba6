//! The checks, one after the other.

use super::{Finding, Outcome};
use crate::load;
use crate::round_trip::{SAMPLES, round_trips};
use crate::select::{Compute, available_memory};
use crate::self_check::{answer, apart, trial};
use forthwith_core::program::{Output, Program};
use forthwith_core::units::{TokenId, Tokens};
use forthwith_cpu::{Arithmetic, BLOCK_SIZE, Cpu, CpuConfig, IsaChoice, Reference, weight_bytes};
use forthwith_models::{Suggestion, TextModel};
use forthwith_text::{ChatMessage, RenderOptions, Tokenizer};
use forthwith_weights::WeightFile;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tokens that the kernels are tried on.
const TRIAL_TOKENS: usize = 16;
/// How much further from a reference that rounds nothing kernels may be than twice what rounding like
/// theirs costs in plain loops, as a share of the largest number.
const TOLERANCE: f32 = 1e-3;

/// A model and how it would be computed.
pub(super) struct Subject<'a> {
    pub(super) file: &'a WeightFile,
    pub(super) program: Arc<Program>,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) compute: Compute,
}

impl Subject<'_> {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let finding = |what, outcome| Finding { what, outcome };
        vec![
            finding("model", self.model()),
            finding("purpose", self.purpose()),
            finding("weights", self.weights()),
            finding("tokenizer", self.round_trip()),
            finding("tokens", self.special_tokens()),
            finding("template", self.template()),
            finding("defaults", self.defaults()),
            finding("kernels", self.kernels()),
        ]
    }

    fn model(&self) -> Outcome {
        let program = &self.program;
        let mut lines = vec![format!(
            "{}: {} parameters, {}, width {}, {} phases, {} tokens of vocabulary, trained for {} tokens",
            program.architecture,
            program.parameters(),
            program.weight_bytes(),
            program.hidden,
            program.phases.len(),
            program.vocab,
            program.context
        )];
        for path in self.file.paths() {
            lines.push(path.display().to_string());
        }
        match forthwith_models::ignored_keys(self.file) {
            Ok(keys) if keys.is_empty() => {}
            Ok(keys) => lines.push(format!(
                "config.json: keys not known here: {}",
                keys.join(", ")
            )),
            Err(error) => return Outcome::Wrong(error.to_string()),
        }
        Outcome::Told(lines)
    }

    fn purpose(&self) -> Outcome {
        match TextModel::of(self.file) {
            Ok(None) => Outcome::Told(vec!["generates text".to_owned()]),
            Ok(Some(model)) => {
                let mut lines = model.sources.clone();
                if !model.labels.is_empty() {
                    lines.push(format!("labels: {}", model.labels.join(", ")));
                }
                Outcome::Told(lines)
            }
            Err(error) => Outcome::Wrong(error.to_string()),
        }
    }

    /// Every number of every tensor is a number.
    fn weights(&self) -> Outcome {
        let mut formats: BTreeMap<String, usize> = BTreeMap::new();
        for tensor in self.file.tensors() {
            *formats.entry(tensor.format.to_string()).or_default() += 1;
            let rows = tensor.rows.max(1);
            let size = tensor.bytes.len() / rows;
            let mut values = vec![0.0; tensor.cols];
            for (row, bytes) in tensor
                .bytes
                .chunks_exact(size.max(1))
                .take(rows)
                .enumerate()
            {
                tensor.format.dequantize(bytes, &mut values);
                if let Some(col) = values.iter().position(|value| !value.is_finite()) {
                    let value = values[col];
                    return Outcome::Wrong(format!(
                        "tensor `{}`, row {row}, column {col}: {value} is not a number",
                        tensor.name
                    ));
                }
            }
        }
        let formats = formats
            .iter()
            .map(|(format, count)| format!("{count} in {format}"));
        let formats: Vec<String> = formats.collect();
        Outcome::Fine(vec![format!(
            "all numbers are finite; tensors: {}",
            formats.join(", ")
        )])
    }

    fn round_trip(&self) -> Outcome {
        let mut changed = match round_trips(self.tokenizer) {
            Ok(changed) => changed,
            Err(error) => return Outcome::Wrong(error),
        };
        let mut lines = vec![self.tokenizer.kind().to_owned()];
        if changed.is_empty() {
            lines.push(format!("{} samples come back as they were", SAMPLES.len()));
            return Outcome::Fine(lines);
        }
        // Text that becomes lower case or loses spaces is how encoders are trained.
        if self.program.output() == Output::Logits {
            return Outcome::Wrong(changed.remove(0));
        }
        lines.push(format!(
            "{} samples change, as in many encoders: {}",
            changed.len(),
            changed[0]
        ));
        Outcome::Told(lines)
    }

    fn special_tokens(&self) -> Outcome {
        let tokenizer = self.tokenizer;
        let show = |id: TokenId| {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
            format!("{id} {text:?}")
        };
        let one = |id: Option<TokenId>| id.map_or_else(|| "none".to_owned(), show);
        let ends: Vec<String> = tokenizer.end_tokens().iter().map(|&id| show(id)).collect();
        let begins = if tokenizer.adds_bos() {
            "prompts begin with it"
        } else {
            "not added to prompts"
        };
        let mut lines = Vec::new();
        if self.program.output() == Output::Logits {
            lines.push(format!("begin: {} ({begins})", one(tokenizer.bos())));
            lines.push(format!("end: {}", one(tokenizer.eos())));
            lines.push(format!("answers end with: {}", ends.join(", ")));
        }
        if let Ok(text) = tokenizer.encode_text("a", None) {
            let ids: Vec<String> = text.tokens.iter().map(|&id| show(id)).collect();
            lines.push(format!("the text `a` as a whole: {}", ids.join(", ")));
        }
        Outcome::Told(lines)
    }

    fn template(&self) -> Outcome {
        let template = match load::file_template(self.file, self.tokenizer) {
            Ok(Some(template)) => template,
            Ok(None) => return Outcome::Told(vec!["none: no chat, only continuation".to_owned()]),
            Err(error) => return Outcome::Wrong(error.to_string()),
        };
        let messages = [ChatMessage {
            role: "user".to_owned(),
            content: "Hello".to_owned(),
            ..ChatMessage::default()
        }];
        let options = RenderOptions::for_answer();
        let rendered = match template.render(&messages, &options) {
            Ok(rendered) => rendered,
            Err(error) => return Outcome::Wrong(error.to_string()),
        };
        match self.tokenizer.encode_rendered(&rendered) {
            Ok(tokens) => Outcome::Fine(vec![
                format!("a user's `Hello` becomes {:?}", rendered.text()),
                format!("which is {} tokens", tokens.len()),
            ]),
            Err(error) => Outcome::Wrong(error.to_string()),
        }
    }

    fn defaults(&self) -> Outcome {
        if self.program.output() != Output::Logits {
            return Outcome::Told(vec!["none: nothing is drawn".to_owned()]);
        }
        let suggestion = Suggestion::of(self.file);
        let mut lines = vec![
            "where nothing is suggested or asked for: temperature 1 and top_p 1 (serve), 0.2 and 0.95 (run)"
                .to_owned(),
        ];
        if !suggestion.is_empty() {
            lines.push(format!("suggested by the model: {suggestion}"));
        }
        let refused = suggestion.refused.iter();
        lines.extend(refused.map(|problem| format!("not followed: {problem}")));
        Outcome::Told(lines)
    }

    /// The first answer on the kernels, beside the reference in plain loops.
    fn kernels(&self) -> Outcome {
        let needed = weight_bytes(&self.program);
        match available_memory() {
            Ok(free) if free >= needed => {}
            Ok(free) => {
                return Outcome::Skipped(format!("the weights need {needed}, {free} are free"));
            }
            Err(error) => return Outcome::Skipped(error.to_string()),
        }
        match self.compare() {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Wrong(error),
        }
    }

    fn compare(&self) -> Result<Outcome, String> {
        let tokens = trial(self.tokenizer, TRIAL_TOKENS)?;
        let context = Tokens::new(tokens.len());
        let blocks = context.blocks_needed(BLOCK_SIZE);
        let config = CpuConfig {
            threads: self.compute.threads,
            isa: self.compute.isa,
            kv_format: self.compute.kv_format,
            kv_blocks: blocks,
            max_step_tokens: context,
            context,
        };
        let on = |isa| {
            let config = CpuConfig { isa, ..config };
            let cpu = Cpu::load(Arc::clone(&self.program), self.file, &config, &|_, _| {});
            let mut cpu = cpu.map_err(|error| error.to_string())?;
            answer(&mut cpu, &tokens, blocks)
        };
        let by_loops = |arithmetic| {
            let program = Arc::clone(&self.program);
            let reference = Reference::streamed(program, self.file, arithmetic, blocks);
            let mut reference = reference.map_err(|error| error.to_string())?;
            answer(&mut reference, &tokens, blocks)
        };
        let ours = on(self.compute.isa)?;
        let scalar = IsaChoice::named("scalar").map_err(|error| error.to_string())?;
        let bits = |values: &[f32]| {
            values
                .iter()
                .map(|value| value.to_bits())
                .collect::<Vec<_>>()
        };
        if bits(&ours) != bits(&on(scalar)?) {
            return Ok(Outcome::Wrong(format!(
                "{}: other numbers than on plain instructions; please report it, and use --isa scalar",
                self.compute
            )));
        }
        let same = by_loops(Arithmetic::Quantizing(self.compute.kv_format))?;
        let plain = by_loops(Arithmetic::Oracle)?;
        let (kernels, loops) = (apart(&ours, &plain), apart(&same, &plain));
        let lines = vec![
            format!("{}: the same bits as on plain instructions", self.compute),
            format!(
                "{kernels:.1e} from a reference that rounds nothing, as a share of the largest number; \
                 plain loops that round as the kernels do, {loops:.1e}"
            ),
        ];
        if kernels <= 2.0 * loops + TOLERANCE {
            return Ok(Outcome::Fine(lines));
        }
        Ok(Outcome::Wrong(lines.join("; ")))
    }
}
