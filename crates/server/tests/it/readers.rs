//! Clients that read slowly, or not at all.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use forthwith_server::ServerConfig;
use tokio::net::TcpSocket;

use crate::sockets::{Running, config, exchange, get, post, wait_for};

/// More than sockets hold of an answer, streamed or plain.
const CONTEXT: usize = 12_000;

fn server(stall_timeout: Duration) -> Running {
    let config = ServerConfig {
        stall_timeout,
        ..config()
    };
    Running::start(&config, CONTEXT)
}

/// A client for which the kernel keeps next to nothing.
fn narrow(address: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(address).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).unwrap();
    stream
}

fn long(fields: &str) -> String {
    post(&format!(
        r#"{{"prompt":"the server","ignore_eos":true,"temperature":0{fields}}}"#
    ))
}

/// What a client still gets after it was given up.
fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    // The end may be a reset.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_client_that_stops_reading_is_given_up_and_counted() {
    let server = server(Duration::from_millis(300));
    let at = server.address;
    server.gate.slow_down();

    let mut stream = narrow(at);
    stream
        .write_all(long(r#","stream":true"#).as_bytes())
        .unwrap();
    wait_for(at, "\nforthwith_requests_running 1.0");
    // Others are answered meanwhile.
    let short = r#"{"prompt":"the server","ignore_eos":true,"max_tokens":20,"stream":true}"#;
    for _ in 0..3 {
        assert!(exchange(at, &post(short)).contains("data: [DONE]"));
    }
    wait_for(
        at,
        "\nforthwith_requests_finished_total{reason=\"stalled\"} 1\n",
    );
    wait_for(at, "\nforthwith_stalled_readers_total 1\n");
    wait_for(at, "\nforthwith_kv_blocks_used 0.0");
    let told = rest(stream);
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    assert!(!told.contains("[DONE]"), "it was cancelled on its way");

    // A plain answer is complete in the engine before its client stalls.
    server.gate.open();
    let mut stream = narrow(at);
    stream
        .write_all(long(r#","logprobs":5"#).as_bytes())
        .unwrap();
    wait_for(at, "\nforthwith_stalled_readers_total 2\n");
    let metrics = get(at, "/metrics");
    assert!(
        metrics.contains("finished_total{reason=\"stalled\"} 1\n"),
        "{metrics}"
    );
    let told = rest(stream);
    assert!(told.starts_with("HTTP/1.1 200") && !told.ends_with('}'));
    server.stop();
}

#[test]
fn a_slow_reader_gets_every_byte() {
    let stall_timeout = Duration::from_millis(1500);
    let server = server(stall_timeout);
    let fields = r#","stream":true,"seed":1,"max_tokens":3000"#;
    let whole = exchange(server.address, &long(fields));
    let mut stream = narrow(server.address);
    stream.write_all(long(fields).as_bytes()).unwrap();
    let mut slowly = Vec::new();
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part).unwrap() {
            0 => break,
            count => slowly.extend_from_slice(&part[..count]),
        }
        thread::sleep(stall_timeout / 80);
    }
    let slowly = String::from_utf8(slowly).unwrap();
    let texts = |answer: &str| -> Vec<String> {
        let texts = answer.split(r#""text":""#).skip(1);
        texts
            .map(|rest| rest.split('"').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(texts(&slowly), texts(&whole));
    assert_eq!(texts(&whole).len(), 3001);
    assert!(slowly.contains("data: [DONE]"));
    let metrics = get(server.address, "/metrics");
    assert!(
        metrics.contains("\nforthwith_stalled_readers_total 0\n"),
        "{metrics}"
    );
    server.stop();
}
