//! A server whose model is still loading, or fails to load.

#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

use api::{ApiSettings, CorsSettings, Record, SamplingDefaults, ServerExit, TextProcessor, serve};
use models::Tokenizer;
use serving::{EngineBuilder, EngineError, MetricLabels, Service, ServiceLimits};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A tokenizer of single bytes, as a model's file has it.
fn texts() -> TextProcessor {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |bits: u8| char::from(LETTERS[usize::from(bits)]);
    let line = |byte: u8| format!("{}{}== {byte}\n", letter(byte >> 2), letter((byte & 3) << 4));
    let folder = tempfile::tempdir().unwrap();
    let ranks: String = (0..=255).map(line).collect();
    std::fs::write(folder.path().join("tiktoken.model"), ranks).unwrap();
    let tokenizer = Tokenizer::read(folder.path()).unwrap();
    TextProcessor {
        tokenizer,
        template: Err("there is none".to_owned()),
        stop_ids: Vec::new(),
        pooler: Ok(models::Pooler::default()),
    }
}

fn settings(records: &Arc<Mutex<Vec<Record>>>) -> ApiSettings {
    let own = Arc::clone(records);
    ApiSettings {
        names: vec!["mini".to_owned()],
        root: "mini".to_owned(),
        version: "0".to_owned(),
        keys: Vec::new(),
        cors: CorsSettings::local(),
        defaults: SamplingDefaults::default(),
        drain: Duration::from_secs(30),
        body_bytes: 1000,
        choices: 4,
        tool_call_parser: None,
        reasoning_parser: None,
        log: Arc::new(move |record| own.lock().unwrap().push(record)),
    }
}

fn service(build: EngineBuilder) -> (Service, std::thread::JoinHandle<Result<(), EngineError>>) {
    let limits =
        ServiceLimits { sequences: 1, queued: 0, tokens: 64, vocabulary: 512, logprobs: 5 };
    let labels = MetricLabels { model: "mini".to_owned(), engine: "0".to_owned() };
    let settings = serving::ServiceSettings {
        limits,
        step_tokens: None,
        snapshots: 0,
        swap_space: 0,
        verify_cache: 0.0,
        labels,
        process_start: Instant::now(),
    };
    Service::start(settings, build).unwrap()
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
}

fn socket() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[test]
fn a_server_that_loads_says_so_and_may_be_stopped() {
    let (go, gate) = channel::<()>();
    let build: EngineBuilder = Box::new(move || {
        let _ = gate.recv();
        Err("it was not needed any more".into())
    });
    let (service, engine) = service(build);
    let (socket, address) = socket();
    let stop = Arc::new(AtomicBool::new(false));
    let records = Arc::new(Mutex::new(Vec::new()));
    let (own, settings) = (Arc::clone(&stop), settings(&records));
    let server = std::thread::spawn(move || serve(socket, service, (texts(), settings), &own));
    let health = get(address, "/health");
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("\"loading\""), "{health}");
    let post = |body: &str| {
        let length = body.len();
        let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close";
        ask(address, &format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}"))
    };
    let refused = post(r#"{"prompt": "x"}"#);
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: 1") && refused.contains("model_loading"), "{refused}");
    // An invalid request is refused at once.
    let wrong = post(r#"{"prompt": "x", "prampt": 1}"#);
    assert!(wrong.starts_with("HTTP/1.1 400") && wrong.contains("`prampt`"), "{wrong}");
    assert!(get(address, "/v1/models").contains("\"mini\""));
    assert!(get(address, "/metrics").ends_with("# EOF\n"));
    stop.store(true, Ordering::Relaxed);
    assert_eq!(server.join().unwrap().unwrap(), ServerExit::WhileLoading);
    let said = records.lock().unwrap();
    assert!(
        said.iter().any(|record| matches!(record, Record::Draining { open: 0, .. })),
        "{said:?}"
    );
    assert!(!said.iter().any(|record| matches!(record, Record::Ready { .. })), "{said:?}");
    drop(go);
    assert!(engine.join().unwrap().is_err());
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server() {
    let (service, engine) = service(Box::new(|| Err("the file is damaged".into())));
    let (socket, _) = socket();
    let records = Arc::new(Mutex::new(Vec::new()));
    let stop = Arc::new(AtomicBool::new(false));
    let ended = serve(socket, service, (texts(), settings(&records)), &stop).unwrap();
    assert_eq!(ended, ServerExit::Over);
    assert_eq!(engine.join().unwrap().unwrap_err().to_string(), "the file is damaged");
    assert!(records.lock().unwrap().is_empty());
}
