//! From a form to what answers are held to.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forthwith_core::constraint::Constraint;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};

use super::cache::Cache;
use super::follow::Compiled;
use super::form::{Form, FormError};
use super::limits::{self, MAX_COMPILING, MAX_TIME, STACK};
use super::{schema, vocabulary};
use crate::tokenizer::Tokenizer;

/// Compiles forms for one model; shared by all requests.
pub struct FormCompiler {
    tokenizer: Arc<Tokenizer>,
    /// Made when the first form is asked for.
    factory: OnceLock<Result<Arc<ParserFactory>, FormError>>,
    compiled: Mutex<Cache<Arc<Compiled>>>,
    compiling: Arc<AtomicUsize>,
}

impl std::fmt::Debug for FormCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FormCompiler")
    }
}

impl FormCompiler {
    /// For answers of this tokenizer's tokens.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            factory: OnceLock::new(),
            compiled: Mutex::new(Cache::new(limits::CACHE_BYTES)),
            compiling: Arc::default(),
        }
    }

    /// The constraint that holds answers to a form. Takes milliseconds for most forms, and seconds at
    /// most; forms that were asked for lately are at hand.
    ///
    /// # Errors     [`FormError`] tells what is wrong with the form
    pub fn compile(&self, form: &Form) -> Result<Arc<dyn Constraint>, FormError> {
        let grammar = schema::grammar_of(form)?;
        let key = key_of(&grammar);
        let mut cache = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = cache.get(&key) {
            return Ok(compiled);
        }
        drop(cache);
        let factory = self.factory.get_or_init(|| factory(&self.tokenizer));
        let factory = Arc::clone(factory.as_ref().map_err(Clone::clone)?);
        let matcher = self.in_time(move || matcher(&factory, grammar))?;
        let (compiled, bytes) = matcher;
        let compiled = Arc::new(compiled);
        let mut cache = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        cache.put(key, Arc::clone(&compiled), bytes);
        Ok(compiled)
    }

    /// Runs the library on a thread of its own, which is left alone if it takes too long.
    fn in_time<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, FormError> + Send + 'static,
    ) -> Result<T, FormError> {
        let place = Place::take(&self.compiling).ok_or(FormError::Busy)?;
        let (sender, result) = channel();
        let thread = std::thread::Builder::new().name("forms".to_owned());
        let spawned = thread.stack_size(STACK).spawn(move || {
            let _place = place;
            let done = catch_unwind(AssertUnwindSafe(work));
            // Nobody listens any more if it took too long.
            let _ = sender.send(done.unwrap_or_else(|_| Err(not_compiled())));
        });
        spawned.map_err(|_| FormError::Busy)?;
        match result.recv_timeout(MAX_TIME) {
            Ok(done) => done,
            Err(RecvTimeoutError::Timeout) => Err(FormError::TooLarge(format!(
                "compiling it takes longer than {} s; make it simpler",
                MAX_TIME.as_secs()
            ))),
            Err(RecvTimeoutError::Disconnected) => Err(not_compiled()),
        }
    }
}

/// One of the few places for those who compile.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let free = |taken| (taken < MAX_COMPILING).then_some(taken + 1);
        let ordering = Ordering::Relaxed;
        taken.fetch_update(ordering, ordering, free).ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn factory(tokenizer: &Arc<Tokenizer>) -> Result<Arc<ParserFactory>, FormError> {
    let environment = vocabulary::of(tokenizer)?;
    let slices = SlicedBiasComputer::general_slices();
    let made = catch_unwind(AssertUnwindSafe(|| {
        ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
    }));
    let problem = || FormError::Vocabulary("its tokens make no prefix tree".to_owned());
    let mut factory = made.map_err(|_| problem())?.map_err(|_| problem())?;
    factory.quiet();
    *factory.limits_mut() = limits::of_parser();
    Ok(Arc::new(factory))
}

/// Compiles a grammar, and tells how many bytes the result takes.
fn matcher(
    factory: &ParserFactory,
    grammar: TopLevelGrammar,
) -> Result<(Compiled, usize), FormError> {
    let parser = factory
        .create_parser(grammar)
        .map_err(|error| explain(&error.to_string()))?;
    let bytes = parser.parser.lexer_stats().num_bytes;
    let matcher = Matcher::new(Ok(parser));
    if let Some(error) = matcher.get_error() {
        return Err(explain(&error));
    }
    Ok((Compiled::new(matcher), bytes))
}

/// The library's reason in one line.
fn explain(error: &str) -> FormError {
    const LONGEST: usize = 200;
    if error.starts_with("panic") {
        return not_compiled();
    }
    let lines = error.lines().map(str::trim);
    let lines: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('<'))
        .collect();
    let line: String = lines.join("; ").chars().take(LONGEST).collect();
    let budget = [
        "fuel",
        "too large",
        "too many",
        "too complex",
        "limit",
        "too big",
    ];
    if budget.iter().any(|word| line.contains(word)) {
        return FormError::TooLarge(format!("it is more than the budget allows ({line})"));
    }
    FormError::Wrong(line)
}

fn not_compiled() -> FormError {
    FormError::wrong("it could not be compiled; make it simpler")
}

/// What tells grammars apart.
fn key_of(grammar: &TopLevelGrammar) -> String {
    serde_json::to_string(grammar).expect("grammars have string keys only")
}
