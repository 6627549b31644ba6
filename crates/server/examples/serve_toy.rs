//! The toy model behind the API: `cargo run -p forthwith-server --example serve_toy`, then
//! `curl localhost:8080/v1/completions -H 'content-type: application/json' -d '{"prompt":"the server"}'`.

use std::error::Error;
use std::sync::Arc;

use forthwith_core::clock::SystemClock;
use forthwith_core::request::SamplingParams;
use forthwith_core::units::{Blocks, Tokens};
use forthwith_engine::{Engine, EngineConfig, EngineHandle};
use forthwith_models::toy::Toy;
use forthwith_server::{Identity, Loader, Purpose, ServedModel, ServerConfig, serve};
use forthwith_text::{ChatTemplate, FormCompiler, FormLimits, Tokenizer, ToolFormat};

struct ToyLoader;

impl Loader for ToyLoader {
    fn load(self: Box<Self>) -> Result<Vec<ServedModel>, String> {
        let toy = Arc::new(Toy::embedded());
        let tokenizer =
            Tokenizer::words(toy.words(), toy.unknown(), toy.end_tokens(), toy.hidden())
                .map_err(|error| error.to_string())?;
        let template = "{% for m in messages %}{{ m.content }} {% endfor %}";
        let template =
            ChatTemplate::new(template, &tokenizer).map_err(|error| error.to_string())?;
        let config = EngineConfig {
            max_running: 8,
            max_step_tokens: Tokens::new(64),
            context: Tokens::new(1024),
            max_waiting: 64,
            ..EngineConfig::default()
        };
        let tokenizer = Arc::new(tokenizer);
        let executor = Box::new(toy.executor(Blocks::new(512)));
        let clock = Arc::new(SystemClock::start());
        let engine = EngineHandle::spawn(Engine::new(executor, config, clock));
        Ok(vec![ServedModel {
            id: "toy".to_owned(),
            created: 0,
            tool_format: ToolFormat::of(""),
            reasoning: None,
            forms: FormCompiler::new(Arc::clone(&tokenizer), FormLimits::default()),
            tokenizer,
            template: Some(template),
            limits: engine.limits(),
            engine,
            defaults: SamplingParams::default(),
            identity: Identity {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                weights: "embedded".to_owned(),
                kv_format: "none".to_owned(),
                template: None,
                sampling: None,
            },
            purpose: Purpose::Generate,
            warnings: Vec::new(),
        }])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    serve(&ServerConfig::default(), Box::new(ToyLoader), |address| {
        eprintln!("ready on http://{address}");
    })?;
    Ok(())
}
