//! The server on a real socket: from loading to the signal that ends it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use forthwith_server::{Loader, ServeError, ServedModel, ServerConfig, bind};

use crate::sockets::{
    Slow, config, connect, exchange, get, only_server, post, terminate, wait_for,
};
use crate::support::{Gate, Shape, toy};

#[test]
fn loads_answers_limits_and_drains() {
    let _turn = only_server();
    let (go, gone) = mpsc::channel();
    let gate = Arc::new(Gate::default());
    let server = bind(&config()).unwrap();
    let address = server.address();
    let loader = Box::new(Slow {
        go: gone,
        gate: Arc::clone(&gate),
        context: 2048,
    });
    let (ready, is_ready) = mpsc::channel();
    let serving = thread::spawn(move || server.run(loader, move |at| ready.send(at).unwrap()));

    assert!(get(address, "/health").starts_with("HTTP/1.1 503"));
    go.send(Ok(())).unwrap();
    assert_eq!(
        is_ready.recv_timeout(Duration::from_secs(20)).unwrap(),
        address
    );
    assert!(get(address, "/health").starts_with("HTTP/1.1 200"));

    let many = "x: y\r\n".repeat(101);
    let long = "y".repeat(70_000);
    for headers in [many, format!("x: {long}\r\n")] {
        let answer = exchange(
            address,
            &format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"),
        );
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }

    a_client_that_leaves_cancels(address, &gate);

    // A stream is under way when the signal comes; it is finished, new clients are not taken.
    gate.close();
    let mut stream = connect(address);
    let body = r#"{"prompt":"the server","max_tokens":50,"ignore_eos":true,"stream":true,"temperature":0}"#;
    stream.write_all(post(body).as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    terminate();
    while TcpStream::connect(address).is_ok() {
        thread::sleep(Duration::from_millis(5));
    }
    gate.open();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(rest.matches(r#""text":""#).count(), 51);
    serving.join().unwrap().unwrap();
}

/// A closed connection ends the request behind it, streamed or not, before its first token.
fn a_client_that_leaves_cancels(address: SocketAddr, gate: &Gate) {
    for stream in [true, false] {
        gate.close();
        let mut connection = connect(address);
        let body = format!(r#"{{"prompt":"the server","ignore_eos":true,"stream":{stream}}}"#);
        connection.write_all(post(&body).as_bytes()).unwrap();
        let count = if stream { 1 } else { 2 };
        wait_for(address, "\nforthwith_requests_running 1.0");
        drop(connection);
        let cancelled = format!("finished_total{{reason=\"cancelled\"}} {count}\n");
        wait_for(address, &cancelled);
        gate.open();
        wait_for(address, "\nforthwith_requests_running 0.0");
        wait_for(address, "\nforthwith_kv_blocks_used 0.0");
    }
}

#[test]
fn a_model_that_does_not_load_ends_the_server() {
    let _turn = only_server();
    let (go, gone) = mpsc::channel();
    go.send(Err("model.gguf: no magic".to_owned())).unwrap();
    let loader = Box::new(Slow {
        go: gone,
        gate: Arc::default(),
        context: 2048,
    });
    let ended = bind(&config())
        .unwrap()
        .run(loader, |_| panic!("never ready"));
    assert_eq!(ended.unwrap_err().to_string(), "model.gguf: no magic");
}

#[test]
fn models_that_cannot_be_told_apart_end_the_server() {
    struct Names(&'static [&'static str]);
    impl Loader for Names {
        fn load(self: Box<Self>) -> Result<Vec<ServedModel>, String> {
            let model = |name: &&str| toy(name, None, Shape::default(), Arc::default());
            Ok(self.0.iter().map(model).collect())
        }
    }
    let _turn = only_server();
    for (names, part) in [(&[][..], "no model"), (&["a", "b", "a"], "named `a`")] {
        let ended = bind(&config())
            .unwrap()
            .run(Box::new(Names(names)), |_| panic!("never ready"));
        let message = ended.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_model_that_does_not_generate_ends_the_server() {
    let _turn = only_server();
    let (go, gone) = mpsc::channel();
    go.send(Ok(())).unwrap();
    let gate = Arc::new(Gate::default());
    gate.fail();
    let loader = Slow {
        go: gone,
        gate,
        context: 2048,
    };
    let ended = bind(&config())
        .unwrap()
        .run(Box::new(loader), |_| panic!("never ready"));
    assert!(matches!(ended, Err(ServeError::WarmUp { .. })));
}

#[test]
fn an_address_in_use_is_named() {
    let taken = bind(&config()).unwrap();
    let port = taken.address().port();
    let error = bind(&ServerConfig { port, ..config() }).unwrap_err();
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );
}
