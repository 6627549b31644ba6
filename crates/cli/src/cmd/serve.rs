//! The `serve` subcommand.

use crate::args::{AccessArgs, LimitArgs, SamplingDefaults, ServeArgs, SharedArgs};
use crate::error::Failure;
use crate::load::{LoadSettings, LoadedModel, load};
use crate::printable::say;
use crate::progress::Reporter;
use crate::schedule::Schedule;
use crate::select::Compute;
use forthwith_core::request::SamplingParams;
use forthwith_hub::{Hub, Progress as _};
use forthwith_server::{
    AccessRules, ApiKeys, Identity, Loader, Purpose, ServeError, ServedModel, ServerConfig, bind,
};
use forthwith_text::{ChatTemplate, FormCompiler, FormLimits, ReasoningMarks, ToolFormat};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs the subcommand; returns after the server was told to stop.
pub(crate) fn run(args: &ServeArgs, shared: &SharedArgs) -> Result<(), Failure> {
    let schedule = Schedule::new(&args.schedule);
    let config = ServerConfig {
        host: args.host,
        port: args.port,
        access: access(&args.access)?,
        stall_timeout: schedule.stall_timeout(),
        ..args.limits.config()
    };
    let settings = LoadSettings {
        compute: Compute::new(&args.compute),
        context: args.context,
        kv_memory: args.kv_memory,
        models: u8::try_from(args.model.len()).unwrap_or(u8::MAX),
        schedule,
        chat_template: args.chat_template.clone(),
        identify: true,
        self_check: args.check.or(true),
        overrides: args.vectors.overrides(),
    };
    let requests = settings.schedule.to_string();
    let failed = Arc::new(OnceLock::new());
    let loader = ModelLoader {
        names: args.model.clone(),
        sampling: args.sampling_defaults,
        limits: args.limits.clone(),
        hub: shared.hub(),
        settings,
        failed: Arc::clone(&failed),
    };
    let server = bind(&config).map_err(Failure::failed)?;
    say(format_args!(
        "listening on http://{}, loading",
        server.address()
    ));
    say(format_args!("requests: {requests}"));
    say_who_may_ask(args, &config.access.keys);
    let ready = |address| say(format_args!("ready on http://{address}"));
    let failure = |error| match (error, failed.get()) {
        (ServeError::Load(_), Some(failure)) => Failure::clone(failure),
        (ServeError::Load(message), None) => Failure::bad_input(message),
        (other, _) => Failure::failed(other),
    };
    server.run(Box::new(loader), ready).map_err(failure)
}

fn access(args: &AccessArgs) -> Result<AccessRules, Failure> {
    let keys = args.api_key_file.as_deref().map(ApiKeys::read);
    Ok(AccessRules {
        keys: keys
            .transpose()
            .map_err(Failure::bad_input)?
            .unwrap_or_default(),
        hosts: args.allowed_host.clone(),
        origins: args.allowed_origin.clone(),
    })
}

fn say_who_may_ask(args: &ServeArgs, keys: &ApiKeys) {
    if let Some(file) = &args.access.api_key_file {
        let (count, file) = (keys.len(), file.display());
        say(format_args!("access: {count} API keys from {file}"));
    } else if !args.host.is_loopback() {
        say(format_args!(
            "access: warning: whoever reaches {} may ask; --api-key-file FILE limits that",
            args.host
        ));
    }
}

/// Loads the models of the command line while the server already answers `/health`.
struct ModelLoader {
    names: Vec<String>,
    sampling: SamplingDefaults,
    limits: LimitArgs,
    hub: Hub,
    settings: LoadSettings,
    /// Why loading failed, with its exit code, which the server's own error does not carry.
    failed: Arc<OnceLock<Failure>>,
}

impl Loader for ModelLoader {
    fn load(self: Box<Self>) -> Result<Vec<ServedModel>, String> {
        let reporter = Reporter::new();
        let served = |name: &String| {
            let model = load(name, &self.hub, &self.settings, &reporter);
            model
                .and_then(|model| {
                    let sampling = sampling(&model, self.sampling, &reporter);
                    let mut served = serve(model, &self.settings, sampling, &reporter)?;
                    served.forms = served.forms.limited(self.limits.form());
                    let limited = |template: ChatTemplate| template.limited(self.limits.template());
                    served.template = served.template.map(limited).transpose()?;
                    Ok(served)
                })
                .map_err(|failure| self.failed.get_or_init(|| failure).to_string())
        };
        self.names.iter().map(served).collect()
    }
}

pub(crate) fn serve(
    model: LoadedModel,
    settings: &LoadSettings,
    sampling: Sampling,
    reporter: &Reporter,
) -> Result<ServedModel, Failure> {
    let identity = identity(&model, settings, sampling.other)?;
    let LoadedModel {
        id,
        tokenizer,
        template,
        engine,
        digest: _,
        purpose,
        kv_format: _,
        load_time: _,
        suggestion: _,
        mut warnings,
    } = model;
    if template.is_none() && purpose == Purpose::Generate {
        warnings.push(
            "the model has no chat template: /v1/chat/completions refuses, /v1/completions works; \
             give one with --chat-template"
                .to_owned(),
        );
    }
    for warning in &warnings {
        reporter.note(&format!("{id}: warning: {warning}"));
    }
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let limits = engine.limits();
    let source = template.as_ref().map_or("", ChatTemplate::source);
    Ok(ServedModel {
        id,
        identity,
        created,
        tool_format: ToolFormat::of(source),
        reasoning: ReasoningMarks::of(source),
        forms: FormCompiler::new(Arc::clone(&tokenizer), FormLimits::default()),
        tokenizer,
        template,
        engine,
        limits,
        defaults: sampling.params,
        purpose,
        warnings,
    })
}

/// How tokens are drawn where a request says nothing.
#[derive(Default)]
pub(crate) struct Sampling {
    params: SamplingParams,
    /// Whose parameters these are, if not those that the model's files suggest.
    other: Option<&'static str>,
}

/// Decides and says how tokens are drawn, where the model's files suggest something.
fn sampling(model: &LoadedModel, whose: SamplingDefaults, reporter: &Reporter) -> Sampling {
    let suggestion = &model.suggestion;
    let plain = Sampling::default();
    if model.purpose != Purpose::Generate || suggestion.is_empty() {
        return plain;
    }
    let id = &model.id;
    match whose {
        SamplingDefaults::Model => {
            reporter.note(&format!(
                "{id}: sampling where a request says nothing: {suggestion}; \
                 --sampling-defaults openai for temperature 1"
            ));
            Sampling {
                params: suggestion.applied_to(plain.params),
                ..plain
            }
        }
        SamplingDefaults::Openai => {
            reporter.note(&format!(
                "{id}: sampling where a request says nothing: temperature {}, top_p {} (given), not \
                 {suggestion}",
                plain.params.temperature, plain.params.top_p
            ));
            Sampling {
                other: Some("sampling:openai"),
                ..plain
            }
        }
    }
}

fn identity(
    model: &LoadedModel,
    settings: &LoadSettings,
    sampling: Option<&str>,
) -> Result<Identity, Failure> {
    let template = settings.chat_template.as_deref();
    let template = template.map(forthwith_hub::sha256).transpose();
    let template = template.map_err(|error| {
        Failure::bad_input(format_args!("cannot hash the chat template: {error}"))
    })?;
    let mut weights = model
        .digest
        .as_deref()
        .map_or_else(|| "embedded".to_owned(), short);
    if let Some(format) = settings.compute.quantize {
        weights.push('+');
        weights.push_str(&format.to_string());
    }
    Ok(Identity {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        weights,
        kv_format: model.kv_format.to_string(),
        template: template.as_deref().map(short),
        sampling: sampling.map(str::to_owned),
    })
}

/// Enough of a SHA-256 to tell files apart.
fn short(digest: &str) -> String {
    format!("sha256:{}", &digest[..16])
}
