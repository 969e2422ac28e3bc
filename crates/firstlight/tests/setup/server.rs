//! An HTTP server on the loopback interface that serves pages of files as indexes and release pages do, and misbehaves
//! where it is told to.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

use crate::wheel::File;
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One byte is another one: the hash does not fit.
    OtherByte,
    /// The connection ends after so many bytes of the content.
    Drop(usize),
    /// 404.
    NotFound,
    /// The answer comes so much later.
    Slow(Duration),
    /// A page of HTML with status 200, as a proxy's sign-in page is.
    Garbage,
}

/// A request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReceivedRequest {
    pub(crate) path: String,
    /// Whether it was asked for no more than the head of the answer.
    pub(crate) head: bool,
    /// The first byte that was asked for, where a part of the file was.
    pub(crate) from: Option<usize>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Files by their path, with the hash that their page shows; a release page shows none.
    files: Mutex<BTreeMap<String, (File, bool)>>,
    faults: Mutex<HashMap<String, Vec<Fault>>>,
    asked: Mutex<Vec<ReceivedRequest>>,
    /// Bytes a second of each connection; 0 for as fast as it goes.
    pace: AtomicU64,
}

/// The server; it ends with the process of the tests.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::<Shared>::default());
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&theirs);
                // A client that goes away in the middle is no failure of the server.
                std::thread::spawn(move || shared.answer(stream));
            }
        });
        Self { address, shared }
    }

    /// The address of a page or a file: `url("cu128")`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Adds a file to a simple index, `cu128`, with its hash (PEP 503).
    pub(crate) fn index(&self, index: &str, file: &File) {
        self.add(&format!("{index}/{}", file.project()), file, true);
    }

    /// Adds a file to a plain page of links, `releases/v2.8.3`, which shows no hashes.
    pub(crate) fn release(&self, page: &str, file: &File) {
        self.add(page, file, false);
    }

    fn add(&self, page: &str, file: &File, hash: bool) {
        let path = format!("/{page}/{}", file.name);
        self.shared.files.lock().unwrap().insert(path, (file.clone(), hash));
    }

    /// What goes wrong with the next requests for files or pages whose path ends so, one fault each.
    pub(crate) fn fault(&self, ending: &str, faults: &[Fault]) {
        self.shared.faults.lock().unwrap().insert(ending.to_owned(), faults.to_vec());
    }

    /// From now on each connection brings so many bytes a second, as networks do.
    pub(crate) fn pace(&self, bytes_per_second: u64) {
        self.shared.pace.store(bytes_per_second, Ordering::Relaxed);
    }

    /// The requests so far whose path ends so.
    pub(crate) fn asked(&self, ending: &str) -> Vec<ReceivedRequest> {
        let asked = self.shared.asked.lock().unwrap();
        asked.iter().filter(|asked| asked.path.ends_with(ending)).cloned().collect()
    }
}

/// A request's first line and the two headers that matter.
struct Request {
    head: bool,
    path: String,
    range: Option<String>,
    json: bool,
}

impl Request {
    fn read(stream: &TcpStream) -> Option<Self> {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let first = lines.next()?;
        let mut words = first.split(' ');
        let (method, path) = (words.next()?, words.next()?);
        let path = path.split(['?', '#']).next()?.replace("%2B", "+");
        let mut request = Self { head: method == "HEAD", path, range: None, json: false };
        for line in lines.take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            match name.to_ascii_lowercase().as_str() {
                "range" => request.range = value.trim().strip_prefix("bytes=").map(str::to_owned),
                "accept" => request.json = value.contains("application/vnd.pypi.simple.v1+json"),
                _ => {}
            }
        }
        Some(request)
    }

    /// The first byte and the byte after the last that are asked for.
    fn part(&self, length: usize) -> Option<(usize, usize)> {
        let (from, to) = self.range.as_deref()?.split_once('-')?;
        let to_end = |to: &str| to.parse().map_or(length, |last: usize| (last + 1).min(length));
        match from.parse::<usize>() {
            Ok(from) => Some((from.min(length), to_end(to))),
            // `-500`: the last 500 bytes.
            Err(_) => Some((length.saturating_sub(to.parse().ok()?), length)),
        }
    }
}

impl Shared {
    fn answer(&self, stream: TcpStream) -> Option<()> {
        let request = Request::read(&stream)?;
        let fault = self.next_fault(&request.path);
        if let Some(Fault::Slow(time)) = fault {
            std::thread::sleep(time);
        }
        let found = match fault {
            Some(Fault::NotFound) => None,
            Some(Fault::Garbage) => {
                let page = "<!DOCTYPE html><html><body>Please sign in &amp; try again <a>";
                Some(("text/html", page.as_bytes().to_vec()))
            }
            _ => self.content(&request),
        };
        let (kind, mut content) = found.clone().unwrap_or(("text/plain", b"not here".to_vec()));
        if fault == Some(Fault::OtherByte) {
            let middle = content.len() / 2;
            content[middle] ^= 1;
        }
        let part = request.part(content.len()).filter(|_| found.is_some());
        let from = part.map(|(from, _)| from);
        let asked = ReceivedRequest { path: request.path.clone(), head: request.head, from };
        self.asked.lock().unwrap().push(asked);
        let (from, to) = part.unwrap_or((0, content.len()));
        let status = match (&found, part) {
            (None, _) => "404 Not Found",
            (_, Some(_)) => "206 Partial Content",
            _ => "200 OK",
        };
        let mut head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\nConnection: close\r\n",
            to - from
        );
        if part.is_some() {
            let last = to.saturating_sub(1);
            head += &format!("Content-Range: bytes {from}-{last}/{}\r\n", content.len());
        }
        let mut stream = stream;
        stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
        if request.head {
            return Some(());
        }
        let to = match fault {
            Some(Fault::Drop(after)) => to.min(from + after),
            _ => to,
        };
        self.write(&mut stream, &content[from..to]).ok()
    }

    fn write(&self, stream: &mut TcpStream, content: &[u8]) -> std::io::Result<()> {
        let pace = self.pace.load(Ordering::Relaxed);
        if pace == 0 {
            return stream.write_all(content);
        }
        let (began, mut sent) = (Instant::now(), 0);
        for chunk in content.chunks(1 << 14) {
            stream.write_all(chunk)?;
            sent += chunk.len();
            let due = Duration::from_secs_f64(sent as f64 / pace as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        Ok(())
    }

    fn next_fault(&self, path: &str) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let of_path = faults
            .iter_mut()
            .find(|(ending, left)| path.ends_with(ending.as_str()) && !left.is_empty());
        of_path.map(|(_, left)| left.remove(0))
    }

    /// A file, or the page of a folder that has files.
    fn content(&self, request: &Request) -> Option<(&'static str, Vec<u8>)> {
        let files = self.files.lock().unwrap();
        if let Some((file, _)) = files.get(&request.path) {
            return Some(("application/octet-stream", file.bytes.clone()));
        }
        let folder = format!("{}/", request.path.trim_end_matches('/'));
        let below = |path: &String| {
            path.rsplit_once('/').is_some_and(|(page, _)| format!("{page}/") == folder)
        };
        let here: Vec<&(File, bool)> =
            files.iter().filter(|(path, _)| below(path)).map(|(_, file)| file).collect();
        if here.is_empty() {
            return None;
        }
        Some(match request.json {
            true => ("application/vnd.pypi.simple.v1+json", json_page(&folder, &here).into_bytes()),
            false => ("text/html", html_page(&here).into_bytes()),
        })
    }
}

/// PEP 503.
fn html_page(files: &[&(File, bool)]) -> String {
    let link = |(file, hash): &&(File, bool)| {
        let hash = if *hash { format!("#sha256={}", file.sha256) } else { String::new() };
        let address = file.name.replace('+', "%2B");
        format!("<a href=\"{address}{hash}\">{}</a><br>\n", file.name)
    };
    let links: String = files.iter().map(link).collect();
    format!("<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n")
}

/// PEP 691.
fn json_page(folder: &str, files: &[&(File, bool)]) -> String {
    let name = folder.trim_matches('/').rsplit('/').next().unwrap_or_default();
    let file = |(file, hash): &&(File, bool)| {
        let hashes = match hash {
            true => serde_json::json!({ "sha256": file.sha256 }),
            false => serde_json::json!({}),
        };
        serde_json::json!({ "filename": file.name, "url": file.name.replace('+', "%2B"), "hashes": hashes })
    };
    let files: Vec<serde_json::Value> = files.iter().map(file).collect();
    serde_json::json!({ "meta": { "api-version": "1.0" }, "name": name, "files": files })
        .to_string()
}
