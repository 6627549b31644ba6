//! From a model's name to an engine that answers.

use crate::error::Failure;
use crate::pages::HugePages;
use crate::progress::Reporter;
use crate::schedule::Schedule;
use crate::select::{Compute, available_memory};
use forthwith_core::clock::SystemClock;
use forthwith_core::executor::{Executor, KvGeometry};
use forthwith_core::program::Program;
use forthwith_core::units::{Blocks, Bytes, TokenId, Tokens};
use forthwith_cpu::{
    BLOCK_SIZE, Cpu, CpuConfig, expansions, kv_block_bytes, weight_bytes, workspace_bytes,
};
use forthwith_engine::budget::{KvMemory, Ledger, MemoryNeeds, sampling_bytes};
use forthwith_engine::{Engine, EngineHandle};
use forthwith_hub::{Hub, Located, Progress as _};
use forthwith_models::toy::Toy;
use forthwith_text::{ChatTemplate, Tokenizer};
use forthwith_weights::WeightFile;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

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
    /// Whether model files are hashed, for answers that say what repeats them.
    pub(crate) identify: bool,
}

/// A model that answers.
pub(crate) struct LoadedModel {
    pub(crate) id: String,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) engine: EngineHandle,
    /// The SHA-256 of the model's file, if it has one and was hashed.
    pub(crate) digest: Option<String>,
    /// What a user should know.
    pub(crate) warnings: Vec<String>,
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
    let engine = spawn(executor, context, settings);
    let mut warnings = settings.schedule.warnings();
    warnings.extend(context_warnings(context, &engine));
    Ok(LoadedModel {
        warnings,
        id: "toy".to_owned(),
        tokenizer: Arc::new(tokenizer),
        template,
        engine,
        digest: None,
    })
}

fn load_file(
    path: &Path,
    id: String,
    settings: &LoadSettings,
    reporter: &Reporter,
) -> Result<LoadedModel, Failure> {
    let file = forthwith_weights::open(path)?;
    let digest = settings.identify.then(|| Hashing::begin(path));
    let program = Arc::new(forthwith_models::build(&file)?);
    let tokenizer = Tokenizer::from_gguf(file.metadata())?;
    check_vocabulary(&program, &tokenizer)?;
    let template = chat_template(settings, Some(&file), &tokenizer)?;
    let mut warnings = settings.compute.warnings();
    warnings.extend(settings.schedule.warnings());
    let trained = program.context;
    let context = settings.context.map_or(trained, Tokens::new);
    if context > trained {
        warnings.push(format!(
            "the context of {context} tokens is longer than the {trained} that the model was \
             trained for"
        ));
    }
    let ledger = ledger(&program, context, settings)?;
    if ledger.total() > ledger.available {
        warnings.push(format!(
            "this needs {} of memory, {} are free: the machine may swap or stop the process; \
             give less with --kv-memory",
            ledger.total(),
            ledger.available
        ));
    }
    reporter.note(&format!("{id}: {}", settings.compute));
    reporter.note(&format!("{id}: memory: {ledger}"));
    for expansion in expansions(&program) {
        reporter.note(&format!("{id}: {expansion}"));
    }
    let config = CpuConfig {
        threads: settings.compute.threads,
        isa: settings.compute.isa,
        kv_format: settings.compute.kv_format,
        kv_blocks: ledger.blocks,
        max_step_tokens: settings.schedule.step_tokens(),
        context,
    };
    let total = program.weight_bytes().get();
    reporter.begin(&format!("loading {id}"), Some(total));
    let loaded = Cpu::load(Arc::clone(&program), &file, &config, &|done, _| {
        reporter.advance(program.weights[done - 1].bytes().get());
    });
    reporter.end();
    let executor = Box::new(loaded.map_err(Failure::failed)?);
    if let Some(pages) = HugePages::now() {
        reporter.note(&format!("{id}: memory: {pages}"));
        warnings.extend(pages.warning());
    }
    let engine = spawn(executor, context, settings);
    warnings.extend(context_warnings(context, &engine));
    Ok(LoadedModel {
        id,
        tokenizer: Arc::new(tokenizer),
        template,
        engine,
        digest: digest.map(Hashing::end).transpose()?,
        warnings,
    })
}

/// A file's SHA-256, computed while the file is loaded.
struct Hashing(JoinHandle<std::io::Result<String>>);

impl Hashing {
    fn begin(path: &Path) -> Self {
        let path = path.to_owned();
        Self(thread::spawn(move || forthwith_hub::sha256(&path)))
    }

    fn end(self) -> Result<String, Failure> {
        let digest = self.0.join().expect("hashing does not panic");
        digest.map_err(|error| Failure::failed(format_args!("cannot hash the model file: {error}")))
    }
}

/// Every token that the tokenizer writes has a row in the model.
fn check_vocabulary(program: &Program, tokenizer: &Tokenizer) -> Result<(), Failure> {
    if tokenizer.vocab_size() > program.vocab {
        return Err(Failure::bad_input(format_args!(
            "the tokenizer has {} tokens, the model's embedding only {}",
            tokenizer.vocab_size(),
            program.vocab
        )));
    }
    Ok(())
}

fn ledger(program: &Program, context: Tokens, settings: &LoadSettings) -> Result<Ledger, Failure> {
    let threads = settings.compute.threads;
    let step_tokens = settings.schedule.step_tokens();
    let max_running = settings.schedule.max_running().min(step_tokens.get());
    let needs = MemoryNeeds {
        available: available_memory()?,
        weights: weight_bytes(program),
        workspace: workspace_bytes(program, step_tokens, context, threads)
            + sampling_bytes(program.vocab, max_running, threads),
        reserve: RESERVE,
        block_bytes: kv_block_bytes(program, settings.compute.kv_format),
        block_size: BLOCK_SIZE,
        context,
        max_running: settings.schedule.max_running(),
        kv: kv_memory(settings),
    };
    Ok(Ledger::new(&needs)?)
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

fn spawn(executor: Box<dyn Executor>, context: Tokens, settings: &LoadSettings) -> EngineHandle {
    let config = settings.schedule.config(context);
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
    match file {
        Some(file) => Ok(ChatTemplate::from_gguf(file.metadata(), tokenizer)?),
        None => Ok(None),
    }
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
