//! A panic in a step ends the requests of that step and nobody else's.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, header};
use forthwith_core::executor::{Executor, KvGeometry, StepError, StepInput};
use forthwith_core::program::{Phase, Program};
use forthwith_core::units::{BlockId, Blocks, Tokens};
use forthwith_cpu::{Cpu, CpuConfig, IsaChoice, KvFormat};
use forthwith_models::testing::tiny_llama;
use forthwith_text::Tokenizer;
use forthwith_weights::WeightFile;
use tokio::task::JoinHandle;

use crate::support::{Answer, Client, Gate, Shape, send, served};

/// Two requests run, others wait.
const SHAPE: Shape = Shape {
    context: crate::support::CONTEXT,
    max_running: 2,
    max_waiting: 8,
};

/// A model on a team of threads, and its twin in which one member of the team panics.
struct Faulty {
    sound: Cpu,
    broken: Cpu,
    gate: Arc<Gate>,
}

impl Executor for Faulty {
    fn vocab(&self) -> usize {
        self.sound.vocab()
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.sound.kv_geometry()
    }

    fn max_step_tokens(&self) -> Tokens {
        self.sound.max_step_tokens()
    }

    fn step(&mut self, input: &StepInput<'_>, logits: &mut Vec<f32>) -> Result<(), StepError> {
        if self.gate.breaks() {
            self.broken.step(input, logits)
        } else {
            self.sound.step(input, logits)
        }
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.sound.copy_block(from, to);
    }
}

/// The last norm multiplies by a matrix, which whoever has the first of the listed rows finds out.
fn broken(program: &Program) -> Program {
    let mut program = program.clone();
    let Some(Phase::Logits(logits)) = program.phases.last_mut() else {
        panic!("a program ends with logits");
    };
    let norm = logits.norm.as_mut().expect("a norm before the logits");
    norm.weight = logits.head.weight;
    program
}

fn on_threads(gate: &Arc<Gate>) -> Client {
    let file = WeightFile::from_bytes("tiny.gguf".as_ref(), tiny_llama(7).to_bytes()).unwrap();
    let program = forthwith_models::build(&file).unwrap();
    let config = CpuConfig {
        threads: 3,
        isa: IsaChoice::best(),
        kv_format: KvFormat::F16,
        kv_blocks: Blocks::new(64),
        max_step_tokens: Tokens::new(64),
        context: Tokens::new(256),
    };
    let load = |program| Cpu::load(Arc::new(program), &file, &config, &|_, _| {}).unwrap();
    let executor = Faulty {
        broken: load(broken(&program)),
        sound: load(program),
        gate: Arc::clone(gate),
    };
    let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
    let clock = Arc::clone(&gate.clock);
    let model = served("tiny", Box::new(executor), (tokenizer, None), SHAPE, clock);
    Client::over(model, Arc::clone(gate))
}

/// Asks, and returns once the engine knows of it.
async fn begin(client: &Client, prompt: &str, stream: bool) -> JoinHandle<Answer> {
    let known = || client.engine.snapshot().counters.accepted;
    let before = known();
    let json = format!(
        r#"{{"prompt":"{prompt}","temperature":0,"ignore_eos":true,"max_tokens":6,"stream":{stream}}}"#
    );
    let request = Request::post("/v1/completions")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(json))
        .unwrap();
    let router = client.router.clone();
    let asked = tokio::spawn(async move { send(&router, request).await });
    // The engine is in its step and counts arrivals after it; the handle counts them at once.
    while known() == before && client.engine.snapshot().waiting == 0 {
        tokio::task::yield_now().await;
    }
    asked
}

async fn a_panic_harms_its_step_alone(client: Client) {
    let before = begin(&client, "server", false)
        .await
        .await
        .unwrap()
        .completion();
    client.gate.close();
    let streamed = begin(&client, "the", true).await;
    while client.engine.snapshot().running == 0 {
        tokio::task::yield_now().await;
    }
    let plain = begin(&client, "server", false).await;
    client.gate.break_once();
    // The stream's first step breaks; whoever came during it is computed after it.
    let answer = streamed.await.unwrap();
    assert_eq!(answer.status, 200);
    let last: serde_json::Value = serde_json::from_str(answer.data().last().unwrap()).unwrap();
    assert_eq!(last["error"]["type"], "server_error");
    let message = last["error"]["message"].as_str().unwrap();
    assert!(message.contains("try again"), "{message}");
    assert_eq!(plain.await.unwrap().completion(), before);

    client.gate.close();
    let failing = begin(&client, "server", false).await;
    while client.engine.snapshot().running == 0 {
        tokio::task::yield_now().await;
    }
    client.gate.break_once();
    assert_eq!(failing.await.unwrap().error(500)["code"], "internal_error");

    let again = begin(&client, "server", false).await.await.unwrap();
    assert_eq!(again.completion(), before);
    while client.engine.snapshot().running > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.get("/health").await.status, 200);
    let metrics = client.get("/metrics").await.text;
    for line in [
        "\nforthwith_step_faults_total 2\n",
        "\nforthwith_requests_finished_total{reason=\"error\"} 2\n",
        "\nforthwith_requests_finished_total{reason=\"length\"} 3\n",
        "\nforthwith_kv_blocks_used 0.0\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
}

#[tokio::test]
async fn a_panic_on_the_engines_thread() {
    a_panic_harms_its_step_alone(Client::with(None, SHAPE)).await;
}

#[tokio::test]
async fn a_panic_in_a_member_of_the_thread_team() {
    a_panic_harms_its_step_alone(on_threads(&Arc::default())).await;
}
