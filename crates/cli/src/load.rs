//! From a model's name to an engine that answers.

mod sizing;

use crate::error::Failure;
use crate::pages::HugePages;
use crate::progress::Reporter;
use crate::round_trip;
use crate::schedule::Schedule;
use crate::select::{Compute, available_memory};
use crate::self_check::{self, Fault};
use crate::stopwatch::Stopwatch;
use forthwith_core::clock::SystemClock;
use forthwith_core::executor::{Executor, KvGeometry};
use forthwith_core::program::{Output, Program};
use forthwith_core::units::{Blocks, Bytes, TokenId, Tokens};
use forthwith_cpu::{Cpu, CpuConfig, KvFormat, expansions};
use forthwith_engine::budget::{KvMemory, Ledger, MemoryNeeds};
use forthwith_engine::{Engine, EngineConfig, EngineHandle};
use forthwith_hub::{Hub, Located, Progress as _};
use forthwith_models::toy::Toy;
use forthwith_models::{Overrides, RopeScaling, Scoring, Suggestion, TextModel};
use forthwith_server::Purpose;
use forthwith_text::{ChatTemplate, Tokenizer};
use forthwith_weights::{Requantized, WeightFile};
use sizing::Sizing;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Left for everything that is not weights, cache or workspace.
const RESERVE: Bytes = Bytes::new(256 << 20);
/// Share of the free memory that the KV cache gets where nothing else is said, in percent.
const KV_SHARE: u8 = 50;
/// Blocks of the toy's cache.
const TOY_BLOCKS: Blocks = Blocks::new(1024);
/// The longest chat template that is read from a file.
const MAX_TEMPLATE: u64 = 256 << 10;

/// How models are loaded; the same for all models of a command.
#[derive(Clone, Debug)]
pub(crate) struct LoadSettings {
    pub(crate) compute: Compute,
    /// Prompt and answer together; `None` is what the model was trained for.
    pub(crate) context: Option<usize>,
    /// Memory of the KV cache; `None` is a share of what is free.
    pub(crate) kv_memory: Option<Bytes>,
    /// Models among which that share is divided; a cache fills up long after the next has loaded.
    pub(crate) models: u8,
    pub(crate) schedule: Schedule,
    /// A file with a chat template that replaces the models' own.
    pub(crate) chat_template: Option<PathBuf>,
    /// What a user decides about vectors, whatever the model's files say.
    pub(crate) overrides: Overrides,
    /// Whether the first answer is compared with that of the reference.
    pub(crate) self_check: bool,
    /// Whether model files are hashed, for answers that say what repeats them.
    pub(crate) identify: bool,
}

/// A model that answers.
pub(crate) struct LoadedModel {
    pub(crate) id: String,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) engine: EngineHandle,
    pub(crate) purpose: Purpose,
    /// How its makers would have tokens chosen.
    pub(crate) suggestion: Suggestion,
    pub(crate) kv_format: KvFormat,
    /// The SHA-256 of the model's file, if it has one and was hashed.
    pub(crate) digest: Option<String>,
    /// What a user should know.
    pub(crate) warnings: Vec<String>,
    /// From its name to an engine that takes requests.
    pub(crate) load_time: Duration,
}

/// Finds, reads and loads a model, telling `reporter` what it does.
pub(crate) fn load(
    name: &str,
    hub: &Hub,
    settings: &LoadSettings,
    reporter: &Reporter,
) -> Result<LoadedModel, Failure> {
    match hub.locate(name, reporter)? {
        Located::Toy => load_toy(settings, reporter),
        Located::File { path, name, source } => {
            reporter.note(&format!("{name}: {} ({source})", path.display()));
            load_file(&path, name, settings, reporter)
        }
    }
}

fn load_toy(settings: &LoadSettings, reporter: &Reporter) -> Result<LoadedModel, Failure> {
    let toy = Arc::new(Toy::embedded());
    let tokenizer = Tokenizer::words(toy.words(), toy.unknown(), toy.end_tokens(), toy.hidden())?;
    let template = chat_template(settings, None, &tokenizer)?;
    reporter.note(&format!(
        "toy: trained on {} words, nothing to load",
        toy.words().len()
    ));
    let geometry = Arc::clone(&toy).executor(TOY_BLOCKS).kv_geometry();
    let capacity = TOY_BLOCKS.tokens(geometry.block_size);
    let context = settings.context.map_or(capacity, Tokens::new);
    let blocks = match settings.kv_memory {
        Some(_) => toy_ledger(geometry, context, settings)?.blocks,
        None => TOY_BLOCKS,
    };
    let executor = Box::new(toy.executor(blocks));
    let step_tokens = settings.schedule.step_tokens();
    let engine = spawn(executor, (context, step_tokens), settings);
    let mut warnings = settings.schedule.warnings();
    warnings.extend(context_warnings(context, &engine));
    Ok(LoadedModel {
        warnings,
        id: "toy".to_owned(),
        tokenizer: Arc::new(tokenizer),
        template,
        engine,
        purpose: Purpose::Generate,
        suggestion: Suggestion::default(),
        kv_format: settings.compute.kv_format,
        digest: None,
        load_time: Duration::ZERO,
    })
}

fn load_file(
    path: &Path,
    id: String,
    settings: &LoadSettings,
    reporter: &Reporter,
) -> Result<LoadedModel, Failure> {
    let mut watch = Stopwatch::start();
    let file = open(path, settings.overrides, &settings.compute, reporter)?;
    let digest = settings.identify.then(|| Hashing::begin(file.paths()));
    let trained = forthwith_models::build(&file)?;
    let sizing = Sizing::new(&trained, settings);
    let (compute, context) = (sizing.compute, sizing.context);
    let program = if context == trained.context {
        Arc::new(trained)
    } else {
        Arc::new(forthwith_models::build_for(&file, context)?)
    };
    watch.lap("open");
    let tokenizer = tokenizer(&file, &program)?;
    let template = chat_template(settings, Some(&file), &tokenizer)?;
    watch.lap("tokenizer");
    let mut warnings = compute.warnings();
    warnings.extend(settings.schedule.warnings());
    warnings.extend(sizing.warnings(&program));
    warnings.extend(ignored_keys(&file)?);
    if program.output() == Output::Logits {
        warnings.extend(round_trip::warning(&tokenizer));
    }
    let ledger = sizing.ledger(&program, settings)?;
    warnings.extend(memory_warning(&ledger));
    let suggestion = Suggestion::of(&file);
    warnings.extend(refused(&suggestion));
    reporter.note(&format!("{id}: {compute}"));
    let purpose = purpose(&file, &program, (&id, reporter))?;
    let mut notes = rope_notes(&file, context)?;
    notes.push(format!("memory: {ledger}"));
    notes.extend(expansions(&program).iter().map(ToString::to_string));
    for note in notes {
        reporter.note(&format!("{id}: {note}"));
    }
    let config = CpuConfig {
        threads: compute.threads,
        isa: compute.isa,
        kv_format: compute.kv_format,
        kv_blocks: ledger.blocks,
        max_step_tokens: sizing.step_tokens,
        context,
    };
    let mut executor = Box::new(load_weights(&program, &file, &config, (&id, reporter))?);
    watch.lap("weights");
    if settings.self_check {
        let told = check(&mut executor, &program, &file, &tokenizer, &compute)?;
        reporter.note(&format!("{id}: self-check: {told}"));
        watch.lap("self-check");
    }
    if let Some(pages) = HugePages::now() {
        reporter.note(&format!("{id}: memory: {pages}"));
        warnings.extend(pages.warning());
    }
    let engine = spawn(executor, (context, sizing.step_tokens), settings);
    warnings.extend(context_warnings(context, &engine));
    let digest = digest.map(Hashing::end).transpose()?;
    watch.lap("hash and engine");
    reporter.note(&format!("{id}: {watch}"));
    Ok(LoadedModel {
        id,
        load_time: watch.total(),
        tokenizer: Arc::new(tokenizer),
        template,
        engine,
        purpose,
        suggestion,
        kv_format: compute.kv_format,
        digest,
        warnings,
    })
}

fn refused(suggestion: &Suggestion) -> impl Iterator<Item = String> {
    let source = suggestion.source;
    let problems = suggestion.refused.iter();
    problems.map(move |problem| format!("{source} is not followed: {problem}"))
}

fn memory_warning(ledger: &Ledger) -> Option<String> {
    (ledger.total() > ledger.available).then(|| {
        format!(
            "this needs {} of memory, {} are free: the machine may swap or stop the process; \
             give less with --kv-memory",
            ledger.total(),
            ledger.available
        )
    })
}

/// Packs the weights for the kernels, on all threads, with progress.
fn load_weights(
    program: &Arc<Program>,
    file: &WeightFile,
    config: &CpuConfig,
    (id, reporter): (&str, &Reporter),
) -> Result<Cpu, Failure> {
    let total = program.weight_bytes().get();
    reporter.begin(&format!("loading {id}"), Some(total));
    let loaded = Cpu::load(Arc::clone(program), file, config, &|done, _| {
        reporter.advance(program.weights[done - 1].bytes().get());
    });
    reporter.end();
    loaded.map_err(Failure::failed)
}

/// Compares the first answer with that of the reference.
fn check(
    cpu: &mut Cpu,
    program: &Arc<Program>,
    file: &WeightFile,
    tokenizer: &Tokenizer,
    compute: &Compute,
) -> Result<String, Failure> {
    let found = self_check::at_start(cpu, program, file, tokenizer, compute.kv_format);
    let told =
        |apart| format!("the first answer is {apart:.1e} of its length from that of the reference");
    found.map(told).map_err(|fault| match fault {
        Fault::File(problem) => {
            Failure::bad_input(format_args!("`{}`: {problem}", file.path().display()))
        }
        Fault::Kernels(problem) => Failure::failed(format_args!(
            "`{}`, {compute}: {problem}; use --isa scalar, or --self-check off to go on with it, and \
             please report it",
            file.path().display()
        )),
    })
}

/// Opens a model's file or folder, and puts its float weights into a smaller format if that was asked
/// for.
pub(crate) fn open(
    path: &Path,
    overrides: Overrides,
    compute: &Compute,
    reporter: &Reporter,
) -> Result<WeightFile, Failure> {
    let file = forthwith_models::open_with(path, overrides)?;
    let Some(format) = compute.quantize else {
        return Ok(file);
    };
    let (file, told) = file.requantized(format, compute.threads);
    let Requantized {
        matrices,
        kept,
        bytes,
    } = told;
    if matrices == 0 {
        return Err(Failure::bad_input(format_args!(
            "--quantize {format}: the model has no float matrices whose width is a multiple of {}; leave \
             it out",
            format.info().elements
        )));
    }
    reporter.note(&format!(
        "quantized {matrices} matrices to {format}: {} instead of {}; {kept} stay as they are (given)",
        bytes.1, bytes.0
    ));
    Ok(file)
}

/// A file's SHA-256, computed while the file is loaded.
struct Hashing(JoinHandle<std::io::Result<String>>);

impl Hashing {
    fn begin(paths: Vec<PathBuf>) -> Self {
        Self(thread::spawn(move || match &paths[..] {
            [folder] if folder.is_dir() => forthwith_hub::sha256_of_folder(folder),
            files => forthwith_hub::sha256_of_files(files),
        }))
    }

    fn end(self) -> Result<String, Failure> {
        let digest = self.0.join().expect("hashing does not panic");
        digest.map_err(|error| Failure::failed(format_args!("cannot hash the model file: {error}")))
    }
}

/// The tokenizer of a file or folder; every token that it writes has a row in the model.
pub(crate) fn tokenizer(file: &WeightFile, program: &Program) -> Result<Tokenizer, Failure> {
    let tokenizer = if file.path().is_dir() {
        Tokenizer::from_folder(file.path())?
    } else {
        Tokenizer::from_gguf(file.metadata())?
    };
    if tokenizer.vocab_size() > program.vocab {
        return Err(Failure::bad_input(format_args!(
            "the tokenizer has {} tokens, the model's embedding only {}",
            tokenizer.vocab_size(),
            program.vocab
        )));
    }
    Ok(tokenizer)
}

/// What the model is made for; says what was decided about vectors, and by which file.
fn purpose(
    file: &WeightFile,
    program: &Program,
    (id, reporter): (&str, &Reporter),
) -> Result<Purpose, Failure> {
    let Some(model) = TextModel::of(file)? else {
        return Ok(Purpose::Generate);
    };
    reporter.note(&format!(
        "{id}: made for texts: {}",
        model.sources.join(", ")
    ));
    if let Output::Vectors { width, .. } = program.output()
        && ![0, width].contains(&model.labels.len())
    {
        return Err(Failure::bad_input(format_args!(
            "config.json names {} labels in id2label, the head has {width} outputs",
            model.labels.len()
        )));
    }
    let each_token = model.each_token();
    if model.labels.is_empty() {
        let normalize = model.normalize;
        return Ok(Purpose::Embed { normalize });
    }
    Ok(Purpose::Classify {
        labels: model.labels,
        scoring: match model.scoring {
            Scoring::Softmax => forthwith_server::Scoring::Softmax,
            Scoring::Sigmoid => forthwith_server::Scoring::Sigmoid,
            Scoring::Raw => forthwith_server::Scoring::Raw,
        },
        each_token,
    })
}

/// Which of two sets of rotary frequencies the context decided for.
fn rope_notes(file: &WeightFile, context: Tokens) -> Result<Vec<String>, Failure> {
    let spec = forthwith_models::read_spec(file)?;
    let notes = spec.ropes.iter().filter_map(|rope| match &rope.scaling {
        RopeScaling::Long(long) if context.get() > long.original_context => Some(format!(
            "LongRoPE: factors for long contexts, because {context} tokens are served and not at most \
             {}; short texts are computed with them too",
            long.original_context
        )),
        RopeScaling::Long(long) => Some(format!(
            "LongRoPE: factors for contexts of up to {}",
            long.original_context
        )),
        _ => None,
    });
    Ok(notes.collect())
}

/// What a folder's configuration says that nobody understands.
fn ignored_keys(file: &WeightFile) -> Result<Option<String>, Failure> {
    let ignored = forthwith_models::ignored_keys(file)?;
    Ok((!ignored.is_empty()).then(|| {
        format!(
            "config.json has keys that are not known here: {}",
            ignored.join(", ")
        )
    }))
}

/// The toy has neither weights nor buffers that count.
fn toy_ledger(
    geometry: KvGeometry,
    context: Tokens,
    settings: &LoadSettings,
) -> Result<Ledger, Failure> {
    let needs = MemoryNeeds {
        available: available_memory()?,
        weights: Bytes::ZERO,
        workspace: Bytes::ZERO,
        reserve: Bytes::ZERO,
        block_bytes: geometry.block_bytes,
        block_size: geometry.block_size,
        context,
        max_running: settings.schedule.max_running(),
        kv: kv_memory(settings),
    };
    Ok(Ledger::new(&needs)?)
}

fn kv_memory(settings: &LoadSettings) -> KvMemory {
    let share = KV_SHARE / settings.models.max(1);
    let share = KvMemory::Share(share.max(1));
    settings.kv_memory.map_or(share, KvMemory::Exact)
}

/// What the engine had to cut from the asked-for context, said rather than done silently.
fn context_warnings(context: Tokens, engine: &EngineHandle) -> Vec<String> {
    let possible = engine.limits().context;
    let cut = (possible < context).then(|| {
        format!(
            "the KV cache holds {possible} tokens, so requests are limited to that instead of \
             {context}; more memory (--kv-memory) lifts the limit"
        )
    });
    cut.into_iter().collect()
}

fn spawn(
    executor: Box<dyn Executor>,
    (context, max_step_tokens): (Tokens, Tokens),
    settings: &LoadSettings,
) -> EngineHandle {
    let config = EngineConfig {
        max_step_tokens,
        ..settings.schedule.config(context)
    };
    EngineHandle::spawn(Engine::new(
        executor,
        config,
        Arc::new(SystemClock::start()),
    ))
}

fn chat_template(
    settings: &LoadSettings,
    file: Option<&WeightFile>,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>, Failure> {
    if let Some(path) = &settings.chat_template {
        let source = read_template(path).map_err(|error| {
            Failure::bad_input(format_args!("chat template `{}`: {error}", path.display()))
        })?;
        return Ok(Some(ChatTemplate::new(&source, tokenizer)?));
    }
    file.map_or(Ok(None), |file| file_template(file, tokenizer))
}

/// The chat template that a file or folder brings.
pub(crate) fn file_template(
    file: &WeightFile,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>, Failure> {
    if file.path().is_dir() {
        return Ok(ChatTemplate::from_folder(file.path(), tokenizer)?);
    }
    Ok(ChatTemplate::from_gguf(file.metadata(), tokenizer)?)
}

fn read_template(path: &Path) -> Result<String, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !size.is_file() || size.len() > MAX_TEMPLATE {
        return Err(format!(
            "expected a file of at most {}",
            Bytes::new(MAX_TEMPLATE)
        ));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

/// Whether the prompt's last token is one that the model does not know.
pub(crate) fn ends_unknown(tokens: &[TokenId], tokenizer: &Tokenizer) -> bool {
    tokens.last().is_some_and(|&id| tokenizer.is_hidden(id))
}
