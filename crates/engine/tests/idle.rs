//! Idleness costs nothing: between requests every thread of the engine sleeps and none wakes.
//!
//! The processor time is that of the whole process, so this binary holds one test.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use forthwith_core::clock::SystemClock;
use forthwith_core::request::{GenerationRequest, RequestParts};
use forthwith_core::units::{Blocks, TokenId, Tokens};
use forthwith_cpu::{Cpu, CpuConfig, IsaChoice, KvFormat};
use forthwith_engine::{Engine, EngineConfig, EngineHandle, Event};
use forthwith_models::testing::tiny_llama;
use forthwith_weights::WeightFile;

const THREADS: usize = 3;

fn handle() -> EngineHandle {
    let file = WeightFile::from_bytes("tiny.gguf".as_ref(), tiny_llama(1).to_bytes()).unwrap();
    let program = Arc::new(forthwith_models::build(&file).unwrap());
    let config = CpuConfig {
        threads: THREADS,
        isa: IsaChoice::best(),
        kv_format: KvFormat::F16,
        kv_blocks: Blocks::new(8),
        max_step_tokens: Tokens::new(32),
        context: Tokens::new(256),
    };
    let executor = Cpu::load(program, &file, &config, &|_, _| {}).unwrap();
    let clock = Arc::new(SystemClock::start());
    EngineHandle::spawn(Engine::new(
        Box::new(executor),
        EngineConfig::default(),
        clock,
    ))
}

/// Waits for the end of a whole answer.
fn answer(handle: &EngineHandle) {
    let parts = RequestParts::new(vec![TokenId::new(5); 20]);
    let request = GenerationRequest::new(parts, handle.limits()).unwrap();
    let (sender, events) = channel();
    let sink = Box::new(move |event| drop(sender.send(event)));
    let _request = handle.submit(request, sink).unwrap();
    assert!(matches!(events.iter().last(), Some(Event::Finished(_))));
}

/// What the system says of one thread of the engine.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    name: String,
    sleeps: bool,
    /// How often it gave up a processor or was taken from one.
    switches: Vec<String>,
}

/// The engine's own thread and those of its executor but the caller.
fn threads() -> Vec<Thread> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status"));
    let mut threads: Vec<Thread> = tasks
        .map(|task| thread(&status(task.unwrap()).unwrap()))
        .filter(|thread| thread.name.starts_with("forthwith-"))
        .collect();
    threads.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    threads
}

fn thread(status: &str) -> Thread {
    let values = |key: &str| -> Vec<String> {
        let lines = status.lines().filter_map(|line| line.split_once(':'));
        let of_key = lines.filter(|(name, _)| name.ends_with(key));
        of_key.map(|(_, value)| value.trim().to_owned()).collect()
    };
    Thread {
        name: values("Name").concat(),
        sleeps: values("State").concat().starts_with('S'),
        switches: values("ctxt_switches"),
    }
}

/// Processor time of the process, in hundredths of a second.
fn ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // The name before the parenthesis may hold spaces; user and system time come twelfth behind it.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let times = fields.split_whitespace().skip(11).take(2);
    times.map(|time| time.parse::<u64>().unwrap()).sum()
}

#[test]
fn idleness_costs_nothing() {
    if !cfg!(target_os = "linux") {
        eprintln!("SKIPPED: what threads do is read from /proc, which only Linux has");
        return;
    }
    let handle = handle();
    while ticks() < 20 {
        answer(&handle);
    }
    for _ in 0..1000 {
        if threads().iter().all(|thread| thread.sleeps) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let (before, threads_before) = (ticks(), threads());
    assert_eq!(threads_before.len(), THREADS, "{threads_before:?}");
    assert!(threads_before.iter().all(|thread| thread.sleeps));
    assert_eq!(threads_before[0].switches.len(), 2);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(
        threads(),
        threads_before,
        "a thread woke with nothing to do"
    );
    let spent = ticks() - before;
    assert!(
        spent <= 2,
        "{spent} hundredths of a second of processor time"
    );
    answer(&handle);
    assert_ne!(threads(), threads_before, "threads that work are seen to");
}
