//! A server in a separate process, and a raw HTTP client, because malformed requests have to be sent unchanged.

use super::support::command;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A server that is killed at the end of its test.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// The log line of the event `listening`.
    pub(crate) first: Value,
    lines: Arc<Mutex<Vec<Value>>>,
    reader: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Self {
        let server = Self::begin(folder, arguments);
        wait(|| server.get("/health").status == 200);
        server
    }

    /// Starts a server, which may still be loading.
    pub(crate) fn begin(folder: &Path, arguments: &[&str]) -> Self {
        let line = [&["serve", "m", "--port", "0", "--dtype", "f32", "--json"], arguments].concat();
        Self::by(command(folder, &line))
    }

    /// Starts a server by a command with `--json`; it may still be loading.
    pub(crate) fn by(mut command: Command) -> Self {
        command.env_remove("FIRSTLIGHT_API_KEY");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        if out.read_line(&mut first).unwrap() == 0 {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("the server did not start: {said}");
        }
        let first: Value = serde_json::from_str(&first).unwrap();
        let address = first["address"].as_str().unwrap().to_owned();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                own.lock().unwrap().push(serde_json::from_str(&line).expect(&line));
            }
        });
        Self { child, address, first, lines, reader: Some(reader) }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request and reads the whole answer.
    pub(crate) fn send(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        // A server that refuses a body closes the connection before the body is sent.
        let _ = stream.write_all(request.as_bytes());
        Answer::read(&mut stream)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
    }

    /// Sends a request with these lines of its head and no body.
    pub(crate) fn ask_with(&self, method: &str, path: &str, head: &[&str]) -> Answer {
        let head: String = head.iter().map(|line| format!("{line}\r\n")).collect();
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\n{head}connection: close\r\n\r\n"
        ))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(&posted(path, &body.to_string()))
    }

    /// Posts a body and asserts success.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{body} {}", answer.body);
        answer.json()
    }

    /// The events of a streamed answer without the final `[DONE]`, which has to be there.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        answer.events()
    }

    /// Begins a request whose answer is read by the caller, or not.
    pub(crate) fn begin_stream(&self, body: &Value) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(posted("/v1/completions", &body.to_string()).as_bytes()).unwrap();
        stream
    }

    pub(crate) fn health(&self) -> Value {
        self.get("/health").json()
    }

    /// The value of the only metric with this name and these labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Waits until no request is open and the engine is free.
    pub(crate) fn wait_until_free(&self) {
        wait(|| self.is_free() && self.get("/load").json()["server_load"] == 0);
    }

    /// Whether the engine is idle and all slots and blocks are free.
    pub(crate) fn is_free(&self) -> bool {
        let health = self.health();
        let free = health["free_slots"] == self.first["max_num_seqs"]
            && health["free_blocks"] == health["blocks"];
        free && health["running"] == 0 && health["waiting"] == 0
    }

    #[cfg(unix)]
    pub(crate) fn signal(&self, name: &str) {
        self.signals(name, 1);
    }

    /// Sends a signal several times, one directly after the other.
    #[cfg(unix)]
    pub(crate) fn signals(&self, name: &str, times: usize) {
        let ids = vec![self.child.id().to_string(); times];
        let sent = std::process::Command::new("kill").args(["-s", name]).args(ids).status();
        assert!(sent.unwrap().success());
    }

    /// The number of threads and the resident bytes of the process.
    #[cfg(target_os = "linux")]
    pub(crate) fn taken(&self) -> (u64, u64) {
        let status = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(status).unwrap();
        let of = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        (of("Threads"), of("VmRSS") * 1024)
    }

    /// Waits for the exit. Returns the exit status, the log and standard error.
    pub(crate) fn end(mut self) -> (Option<i32>, Vec<Value>, String) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        let lines = std::mem::take(&mut *self.lines.lock().unwrap());
        (status.code(), lines, said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn posted(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

pub(crate) fn wait(until: impl Fn() -> bool) {
    let start = Instant::now();
    while !until() {
        assert!(start.elapsed() < Duration::from_secs(60), "it took too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status, or 0 if the connection was closed without an answer.
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Reads to the end of the connection.
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let head = head.to_ascii_lowercase();
        let chunked = head.contains("transfer-encoding: chunked");
        let body = if chunked { joined(body) } else { body.to_owned() };
        Self { status, head, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events: Vec<&str> = self
            .body
            .split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap())
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{self:?}");
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The message of an error answer.
    pub(crate) fn error(&self) -> String {
        let error = &self.json()["error"];
        for key in ["type", "param", "code"] {
            assert!(error.as_object().unwrap().contains_key(key), "{error}");
        }
        error["message"].as_str().unwrap().to_owned()
    }
}

/// Joins the chunks of a body. The sizes count bytes, and the body is valid UTF-8.
fn joined(body: &str) -> String {
    let (mut all, mut rest) = (String::new(), body);
    while let Some((size, more)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { break };
        if size == 0 || more.len() < size {
            break;
        }
        all += &more[..size];
        rest = more[size..].trim_start_matches("\r\n");
    }
    all
}
