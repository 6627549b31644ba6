//! From a form to what answers are held to.

use std::collections::BTreeMap;
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
use super::limits::{self, FormLimits, MAX_COMPILING, STACK};
use super::marker::Marker;
use super::parts::{After, Either};
use super::{schema, vocabulary};
use crate::tokenizer::Tokenizer;
use crate::tools::{ReasoningMarks, ToolFormat, ToolSpec};

/// Compiles forms for one model; shared by all requests.
pub struct FormCompiler {
    tokenizer: Arc<Tokenizer>,
    limits: FormLimits,
    /// Made when the first form is asked for.
    factory: OnceLock<Result<Arc<ParserFactory>, FormError>>,
    compiled: Mutex<Cache<Arc<Compiled>>>,
    compiling: Arc<AtomicUsize>,
    /// Those of the model's formats, by text.
    markers: Mutex<BTreeMap<String, Arc<Marker>>>,
}

impl std::fmt::Debug for FormCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FormCompiler")
    }
}

impl FormCompiler {
    /// For answers of this tokenizer's tokens.
    pub fn new(tokenizer: Arc<Tokenizer>, limits: FormLimits) -> Self {
        Self {
            tokenizer,
            limits,
            factory: OnceLock::new(),
            compiled: Mutex::new(Cache::new(limits::CACHE_BYTES)),
            compiling: Arc::default(),
            markers: Mutex::default(),
        }
    }

    /// The same within other limits.
    #[must_use]
    pub fn limited(self, limits: FormLimits) -> Self {
        Self { limits, ..self }
    }

    /// The constraint that holds answers to a form. Takes milliseconds for most forms, and seconds at
    /// most; forms that were asked for lately are at hand.
    ///
    /// # Errors     [`FormError`] tells what is wrong with the form
    pub fn compile(&self, form: &Form) -> Result<Arc<dyn Constraint>, FormError> {
        self.grammar(schema::grammar_of(form, self.limits)?)
    }

    /// The constraint that holds answers to calls of these tools: at least one if there `must` be, else
    /// any number after free text; `several` allows more than one.
    ///
    /// # Errors     [`FormError`] tells what is wrong with a tool's schema
    pub fn calls(
        &self,
        format: &ToolFormat,
        tools: &[ToolSpec],
        (must, several): (bool, bool),
    ) -> Result<Arc<dyn Constraint>, FormError> {
        let written = if must { "" } else { format.trigger() };
        let grammar = format.grammar(tools, (several, written), &self.tokenizer, self.limits)?;
        let (length, most) = (grammar.len(), self.limits.schema_bytes);
        if length > most {
            return Err(FormError::TooLarge(format!(
                "the tools have {length} bytes together, allowed are {most}"
            )));
        }
        let calls = self.grammar(TopLevelGrammar::from_lark(grammar))?;
        if must {
            return Ok(calls);
        }
        Ok(Arc::new(After {
            tokenizer: Arc::clone(&self.tokenizer),
            marker: self.marker(format.trigger()),
            at_start: format.at_start(),
            budget: None,
            leads: false,
            then: Some(calls),
        }))
    }

    /// The constraint on answers that reason before they follow another one. Reasoning may take so many
    /// tokens.
    pub fn reasoning(
        &self,
        marks: ReasoningMarks,
        begun: bool,
        budget: Option<usize>,
        then: Option<Arc<dyn Constraint>>,
    ) -> Option<Arc<dyn Constraint>> {
        if budget.is_none() && then.is_none() {
            return None;
        }
        let reasoned: Arc<dyn Constraint> = Arc::new(After {
            tokenizer: Arc::clone(&self.tokenizer),
            marker: self.marker(marks.close),
            at_start: false,
            budget,
            leads: then.is_some(),
            then: then.clone(),
        });
        if begun {
            return Some(reasoned);
        }
        // Reasoning that begins with several tokens cannot be told from an answer in time.
        match self.tokenizer.special(marks.open) {
            Some(token) => Some(Arc::new(Either {
                token,
                begun: reasoned,
                otherwise: then,
            })),
            None => then,
        }
    }

    fn marker(&self, text: &str) -> Arc<Marker> {
        let mut markers = self.markers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(marker) = markers.get(text) {
            return Arc::clone(marker);
        }
        let marker = Arc::new(Marker::new(text, &self.tokenizer));
        markers.insert(text.to_owned(), Arc::clone(&marker));
        marker
    }

    fn grammar(&self, grammar: TopLevelGrammar) -> Result<Arc<dyn Constraint>, FormError> {
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
        let time = self.limits.time;
        match result.recv_timeout(time) {
            Ok(done) => done,
            Err(RecvTimeoutError::Timeout) => Err(FormError::TooLarge(format!(
                "compiling it takes longer than {} s; make it simpler",
                time.as_secs_f64()
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
