//! A toy model behind the router, a client without a network, and gates to stop the model with.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use forthwith_core::clock::{Clock, ManualClock};
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::request::SamplingParams;
use forthwith_core::units::{BlockId, Blocks, Tokens};
use forthwith_engine::{Engine, EngineConfig, EngineHandle};
use forthwith_models::toy::Toy;
use forthwith_server::{AppState, Identity, Purpose, ServedModel, ServerConfig, Stamps, router};
use forthwith_text::{
    ChatTemplate, FormCompiler, FormLimits, ReasoningMarks, Tokenizer, ToolFormat,
};
use serde_json::Value;
use tower::ServiceExt;

/// The context of the toy in these tests.
pub(crate) const CONTEXT: usize = 64;

/// Every id, seed and time is the same.
pub(crate) struct FixedStamps;

impl Stamps for FixedStamps {
    fn id(&self) -> u128 {
        0xF0
    }

    fn seed(&self) -> u64 {
        7
    }

    fn unix_time(&self) -> u64 {
        1_700_000_000
    }
}

/// Stops an executor, lets it go on, slows it down, or lets it fail or panic.
#[derive(Default)]
pub(crate) struct Gate {
    mode: Mutex<Mode>,
    changed: Condvar,
    /// The engine's.
    pub(crate) clock: Arc<ManualClock>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Open,
    Closed,
    Slow,
    Failing,
    Breaking,
}

impl Gate {
    pub(crate) fn close(&self) {
        self.set(Mode::Closed);
    }

    pub(crate) fn open(&self) {
        self.set(Mode::Open);
    }

    /// Its next step panics, further ones do not.
    pub(crate) fn break_once(&self) {
        self.set(Mode::Breaking);
    }

    /// From now on a step takes a millisecond by the engine's clock, and no less by any other.
    pub(crate) fn slow_down(&self) {
        self.set(Mode::Slow);
    }

    pub(crate) fn fail(&self) {
        self.set(Mode::Failing);
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
        self.changed.notify_all();
    }

    /// Waits while it is closed; tells whether this is the step that breaks.
    pub(crate) fn breaks(&self) -> bool {
        self.wait() == Mode::Breaking
    }

    fn wait(&self) -> Mode {
        let mode = self.mode.lock().unwrap();
        let mut mode = self
            .changed
            .wait_while(mode, |mode| *mode == Mode::Closed)
            .unwrap();
        let now = *mode;
        if now == Mode::Breaking {
            *mode = Mode::Open;
        }
        now
    }

    fn pass(&self) -> Result<(), StepError> {
        match self.wait() {
            Mode::Breaking => panic!("the gate breaks"),
            Mode::Failing => Err(StepError::Device("the gate says no".to_owned())),
            Mode::Slow => {
                std::thread::sleep(Duration::from_millis(1));
                self.clock.advance(Duration::from_millis(1));
                Ok(())
            }
            Mode::Open | Mode::Closed => Ok(()),
        }
    }
}

/// An executor behind a gate.
struct Gated<E> {
    inner: E,
    gate: Arc<Gate>,
}

impl<E: Executor> Executor for Gated<E> {
    fn vocab(&self) -> usize {
        self.inner.vocab()
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.inner.kv_geometry()
    }

    fn max_step_tokens(&self) -> Tokens {
        self.inner.max_step_tokens()
    }

    fn step(&mut self, input: &StepInput<'_>, logits: &mut Vec<f32>) -> Result<(), StepError> {
        self.gate.pass()?;
        self.inner.step(input, logits)
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.inner.copy_block(from, to);
    }
}

/// How the toy's engine is set up.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) context: usize,
    pub(crate) max_running: usize,
    pub(crate) max_waiting: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            context: CONTEXT,
            max_running: 8,
            max_waiting: 64,
        }
    }
}

/// A template that takes turns, as strict ones do.
pub(crate) const STRICT: &str = "{% for m in messages %}\
    {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}\
    {{ m.content }} {% endfor %}";
/// A template that takes anything.
pub(crate) const PLAIN: &str = "{% for m in messages %}{{ m.content }} {% endfor %}";

/// The toy as a served model.
pub(crate) fn toy(id: &str, template: Option<&str>, shape: Shape, gate: Arc<Gate>) -> ServedModel {
    let toy = Arc::new(Toy::embedded());
    let tokenizer = Tokenizer::words(toy.words(), toy.unknown(), toy.end_tokens(), toy.hidden());
    let clock = Arc::clone(&gate.clock);
    let executor = Gated {
        inner: toy.executor(Blocks::new(512)),
        gate,
    };
    let model = (tokenizer.unwrap(), template);
    served(id, Box::new(executor), model, shape, clock)
}

/// A model behind an engine of its own.
pub(crate) fn served(
    id: &str,
    executor: Box<dyn Executor>,
    (tokenizer, template): (Tokenizer, Option<&str>),
    shape: Shape,
    clock: Arc<dyn Clock>,
) -> ServedModel {
    let config = EngineConfig {
        max_running: shape.max_running,
        max_step_tokens: Tokens::new(64),
        context: Tokens::new(shape.context),
        max_waiting: shape.max_waiting,
        ..EngineConfig::default()
    };
    let engine = Engine::new(executor, config, clock);
    let engine = EngineHandle::spawn(engine);
    let tokenizer = Arc::new(tokenizer);
    ServedModel {
        id: id.to_owned(),
        created: 1_600_000_000,
        template: template.map(|source| ChatTemplate::new(source, &tokenizer).unwrap()),
        tool_format: ToolFormat::of(template.unwrap_or_default()),
        reasoning: template.and_then(ReasoningMarks::of),
        forms: FormCompiler::new(Arc::clone(&tokenizer), FormLimits::default()),
        tokenizer,
        limits: engine.limits(),
        engine,
        defaults: SamplingParams::default(),
        identity: Identity {
            version: "1.0.0".to_owned(),
            weights: "sha256:0123456789abcdef".to_owned(),
            kv_format: "f16".to_owned(),
            template: None,
            sampling: None,
        },
        purpose: Purpose::Generate,
        warnings: Vec::new(),
    }
}

/// A client whose server is in the same process.
pub(crate) struct Client {
    pub(crate) router: Router,
    pub(crate) state: AppState,
    pub(crate) engine: EngineHandle,
    pub(crate) gate: Arc<Gate>,
}

/// A complete answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Client {
    /// Over one toy named `toy`.
    pub(crate) fn new() -> Self {
        Self::with(Some(PLAIN), Shape::default())
    }

    pub(crate) fn with(template: Option<&str>, shape: Shape) -> Self {
        let gate = Arc::new(Gate::default());
        let model = toy("toy", template, shape, Arc::clone(&gate));
        Self::over(model, gate)
    }

    /// One toy behind another configuration.
    pub(crate) fn configured(config: &ServerConfig) -> Self {
        let gate = Arc::new(Gate::default());
        let model = toy("toy", Some(PLAIN), Shape::default(), Arc::clone(&gate));
        Self::behind(state_with(config), model, gate)
    }

    pub(crate) fn over(model: ServedModel, gate: Arc<Gate>) -> Self {
        Self::behind(loading(), model, gate)
    }

    fn behind(state: AppState, model: ServedModel, gate: Arc<Gate>) -> Self {
        let engine = model.engine.clone();
        state.open(vec![model]);
        Self {
            router: router(state.clone()),
            state,
            engine,
            gate,
        }
    }

    /// A POST of this JSON text.
    pub(crate) async fn post(&self, path: &str, json: &str) -> Answer {
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(json.to_owned()))
            .unwrap();
        self.send(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap())
            .await
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        send(&self.router, request).await
    }

    /// A greedy completion of `prompt` with these further fields.
    pub(crate) async fn complete(&self, fields: &str) -> Answer {
        let json = format!(r#"{{"temperature":0,{fields}}}"#);
        self.post("/v1/completions", &json).await
    }

    /// A greedy chat with these further fields.
    pub(crate) async fn chat(&self, fields: &str) -> Answer {
        let json = format!(r#"{{"temperature":0,{fields}}}"#);
        self.post("/v1/chat/completions", &json).await
    }

    /// The server still answers, as it did at first.
    pub(crate) async fn check_alive(&self) {
        let answer = self
            .complete(r#""prompt":"the server","max_tokens":4"#)
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(
            answer.json()["choices"][0]["text"],
            " streams the gpu reads"
        );
    }
}

/// A state whose models are still to come.
pub(crate) fn loading() -> AppState {
    state_with(&ServerConfig {
        body_timeout: Duration::from_secs(5),
        ..ServerConfig::default()
    })
}

/// The same with another configuration.
pub(crate) fn state_with(config: &ServerConfig) -> AppState {
    AppState::new(
        config,
        Arc::new(ManualClock::default()),
        Box::new(FixedStamps),
    )
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    Answer {
        status: parts.status,
        headers: parts.headers,
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {:?}", self.text))
    }

    /// The text of the only choice.
    pub(crate) fn completion(&self) -> String {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()["choices"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// The JSON of every event before `[DONE]`, which must be the last.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let mut data = self.data();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.text);
        let parsed = data.into_iter().map(serde_json::from_str);
        parsed.collect::<Result<_, _>>().unwrap()
    }

    /// The texts of a completion stream's only choice, one per event.
    pub(crate) fn deltas(&self) -> Vec<String> {
        let events = self.events();
        let texts = events.iter().map(|event| &event["choices"][0]["text"]);
        texts
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    }

    /// The data of every event.
    pub(crate) fn data(&self) -> Vec<&str> {
        let events = self.text.split_terminator("\n\n");
        events
            .map(|event| event.strip_prefix("data: ").unwrap())
            .collect()
    }

    /// The answer is an error in the protocol's form; returns its inner object.
    pub(crate) fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/json");
        let body = self.json();
        let error = &body["error"];
        assert!(error["message"].as_str().unwrap().chars().count() < 300);
        assert!(error["type"].is_string());
        for field in ["param", "code"] {
            assert!(
                error[field].is_string() || error[field].is_null(),
                "{error}"
            );
        }
        assert_eq!(error.as_object().unwrap().len(), 4);
        error.clone()
    }
}

/// The same value with its fractions cut to what no mathematics library disputes.
pub(crate) fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let rounded = (number.as_f64().unwrap() * 1e4).round() / 1e4;
            // A rounded zero may be negative.
            Value::from(rounded + 0.0)
        }
        Value::Array(list) => list.into_iter().map(rounded).collect(),
        Value::Object(map) => {
            let entries = map.into_iter().map(|(key, value)| (key, rounded(value)));
            Value::Object(entries.collect())
        }
        other => other,
    }
}
