//! `--download`: a model is downloaded from a stand-in hub into the cache completely or not at all.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.
#![cfg(unix)] // The cache contains symbolic links.

mod support;

use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{command, expect};
use tempfile::{TempDir, tempdir};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NAME: &str = "org/name";
/// A content and its git object id (`git hash-object`).
const SMALL: (&str, &str) = ("{}\n", "0967ef424bce6791893e9a57bb952f80fd536e93");

/// The server's fault on the next request for a file.
#[derive(Clone, Copy)]
enum Fault {
    /// The connection closes after this number of bytes.
    Drop(usize),
    /// The server sends this number of bytes and then pauses.
    Stall(usize),
    /// One byte is wrong.
    OtherByte,
}

/// GGUF files of the model: one single file, and one split into two parts. Their content is arbitrary.
const GGUF: [&str; 3] =
    ["m-Q8_0.gguf", "big/m-Q4_0-00001-of-00002.gguf", "big/m-Q4_0-00002-of-00002.gguf"];
/// A gated model, which needs a token.
const SECRET: &str = "/api/models/org/secret/revision/main";

#[derive(Default)]
struct Hub {
    files: HashMap<String, Vec<u8>>,
    faults: Mutex<HashMap<String, Fault>>,
    /// Path, first byte, and authorization header.
    asked: Mutex<Vec<(String, usize, Option<String>)>>,
}

impl Hub {
    fn answer(&self, stream: TcpStream) -> Option<()> {
        let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let first = lines.next()?;
        let path = first.split(' ').nth(1)?.split('?').next()?.to_owned();
        let headers: HashMap<String, String> = lines
            .take_while(|line| !line.is_empty())
            .filter_map(|line| {
                Some((
                    line.split_once(':')?.0.to_lowercase(),
                    line.split_once(':')?.1.trim().to_owned(),
                ))
            })
            .collect();
        let range =
            headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let from: usize = range.map_or(0, |from| from.parse().unwrap());
        self.asked.lock().unwrap().push((
            path.clone(),
            from,
            headers.get("authorization").cloned(),
        ));
        let mut stream = &stream;
        if path == SECRET && !headers.contains_key("authorization") {
            return write!(
                stream,
                "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            .ok();
        }
        let Some(content) = self.files.get(&path) else {
            return write!(
                stream,
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            .ok();
        };
        let mut content = content[from.min(content.len())..].to_vec();
        let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            content.len()
        )
        .ok()?;
        match self.faults.lock().unwrap().remove(&path) {
            Some(Fault::Drop(after)) => content.truncate(after),
            Some(Fault::OtherByte) => content[0] ^= 1,
            Some(Fault::Stall(after)) => {
                stream.write_all(&content[..after]).ok()?;
                stream.flush().ok()?;
                std::thread::sleep(Duration::from_secs(3));
                return None;
            }
            None => {}
        }
        stream.write_all(&content).ok()
    }
}

/// A hub with one model, and an empty cache.
struct World {
    folder: TempDir,
    hub: Arc<Hub>,
    endpoint: String,
}

fn world() -> World {
    let folder = tempdir().unwrap();
    expect(folder.path(), &["synth", "granite-hybrid-mini", "m"], 0);
    let model = folder.path().join("m");
    fs::write(model.join("generation_config.json"), SMALL.0).unwrap();
    fs::write(model.join("pytorch_model.bin"), "another format").unwrap();
    let mut hub = Hub::default();
    let mut siblings = Vec::new();
    for entry in fs::read_dir(&model).unwrap() {
        let entry = entry.unwrap();
        let (name, bytes) =
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
        let sha256: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        siblings.push(match bytes == SMALL.0.as_bytes() {
            true => json!({ "rfilename": name, "size": bytes.len(), "blobId": SMALL.1 }),
            false => json!({ "rfilename": name, "size": bytes.len(), "blobId": COMMIT, "lfs": { "sha256": sha256 } }),
        });
        hub.files.insert(format!("/{NAME}/resolve/{COMMIT}/{name}"), bytes);
    }
    for name in GGUF {
        let bytes = format!("what is in {name}").repeat(9000).into_bytes();
        let sha256: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        siblings.push(json!({ "rfilename": name, "size": bytes.len(), "blobId": COMMIT, "lfs": { "sha256": sha256 } }));
        hub.files.insert(format!("/{NAME}/resolve/{COMMIT}/{name}"), bytes);
    }
    let listed = json!({ "id": NAME, "sha": COMMIT, "siblings": siblings });
    for revision in ["main", "refs%2Fpr%2F3", COMMIT] {
        let path = format!("/api/models/{NAME}/revision/{revision}");
        hub.files.insert(path, listed.to_string().into_bytes());
    }
    // A file larger than any disk, without content.
    siblings.retain(|file| file["rfilename"] == GGUF[0]);
    siblings[0]["size"] = json!(1u64 << 60);
    let huge = json!({ "id": "org/huge", "sha": COMMIT, "siblings": siblings }).to_string();
    hub.files.insert("/api/models/org/huge/revision/main".to_owned(), huge.into_bytes());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let hub = Arc::new(hub);
    let theirs = Arc::clone(&hub);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let hub = Arc::clone(&theirs);
            std::thread::spawn(move || hub.answer(stream));
        }
    });
    World { folder, hub, endpoint }
}

impl World {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn fault(&self, name: &str, fault: Fault) {
        let path = format!("/{NAME}/resolve/{COMMIT}/{name}");
        self.hub.faults.lock().unwrap().insert(path, fault);
    }

    fn asked(&self) -> Vec<(String, usize, Option<String>)> {
        std::mem::take(&mut self.hub.asked.lock().unwrap())
    }

    /// `logits` for the model's name with these environment variables.
    fn command(&self, more: &[&str], variables: &[(&str, &str)]) -> Command {
        self.command_of(NAME, more, variables)
    }

    fn command_of(&self, name: &str, more: &[&str], variables: &[(&str, &str)]) -> Command {
        let line = [&["logits", name, "--ids", "1,2", "-o", "o.safetensors"], more].concat();
        let mut command = command(self.path(), &line);
        for name in [
            "HF_HOME",
            "HF_TOKEN",
            "HF_HUB_OFFLINE",
            "HTTP_PROXY",
            "http_proxy",
            "ALL_PROXY",
            "all_proxy",
        ] {
            command.env_remove(name);
        }
        command.env("HF_HUB_CACHE", self.path().join("cache")).env("HF_ENDPOINT", &self.endpoint);
        command.envs(variables.iter().copied());
        command
    }

    fn run(&self, more: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
        let output = self.command(more, variables).output().unwrap();
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8(output.stderr).unwrap()),
        }
    }

    /// The error of a download that gives no usable model.
    fn said(&self, name: &str, variables: &[(&str, &str)]) -> String {
        let output = self.command_of(name, &["--download"], variables).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }

    fn held(&self) -> std::path::PathBuf {
        self.path().join("cache/models--org--name")
    }
}

#[test]
fn download_uses_the_hub_cache_layout() {
    let world = world();
    let absent = world.run(&[], &[]).unwrap_err();
    assert!(absent.contains("the cache has no model org/name"), "{absent}");
    assert!(absent.contains("--download"), "{absent}");
    world.run(&["--download"], &[("HF_TOKEN", "secret")]).unwrap();
    let asked = world.asked();
    assert!(asked.iter().all(|asked| asked.2.as_deref() == Some("Bearer secret")), "{asked:?}");
    let held = world.held();
    assert_eq!(fs::read_to_string(held.join("refs/main")).unwrap(), COMMIT);
    let snapshot = held.join("snapshots").join(COMMIT);
    for name in ["config.json", "model.safetensors", "tiktoken.model", "generation_config.json"] {
        let link = fs::read_link(snapshot.join(name)).unwrap();
        assert!(link.starts_with("../../blobs"), "{link:?}");
        let [here, there] = [snapshot.join(name), world.path().join("m").join(name)]
            .map(|path| fs::read(path).unwrap());
        assert!(here == there, "{name}");
    }
    assert!(held.join("blobs").join(SMALL.1).is_file());
    assert!(!snapshot.join("pytorch_model.bin").exists());
    // Cached files are not requested again, and without `--download` nothing is.
    world.run(&["--download"], &[]).unwrap();
    assert_eq!(world.asked().len(), 1);
    world.run(&[], &[]).unwrap();
    let offline = world.run(&["--download"], &[("HF_HUB_OFFLINE", "1")]).unwrap_err();
    assert!(
        offline
            .starts_with("error: org/name is not to be downloaded: HF_HUB_OFFLINE is set\nhint: "),
        "{offline}"
    );
    assert_eq!(world.asked(), []);
}

#[test]
fn dropped_connection_resumes() {
    let world = world();
    world.fault("model.safetensors", Fault::Drop(50_000));
    world.run(&["--download"], &[]).unwrap();
    let asked = world.asked();
    let weights: Vec<usize> = asked
        .iter()
        .filter(|asked| asked.0.ends_with("model.safetensors"))
        .map(|asked| asked.1)
        .collect();
    assert_eq!(weights, [0, 50_000]);
}

#[test]
fn hash_mismatch_leaves_no_model() {
    // The hub lists one file by its SHA-256 and the other by its git object id.
    for name in ["model.safetensors", "generation_config.json"] {
        let world = world();
        world.fault(name, Fault::OtherByte);
        let said = world.run(&["--download"], &[]).unwrap_err();
        assert!(said.contains(&format!("{name} differs from the hub's hash")), "{said}");
        assert!(!world.held().join("refs").exists() && !world.held().join("snapshots").exists());
        assert!(world.run(&[], &[]).unwrap_err().contains("the cache has no model"));
        world.run(&["--download"], &[]).unwrap();
    }
}

#[test]
fn rejects_endpoint_that_is_no_hub() {
    let world = world();
    let mirror = format!("{}/mirror", world.endpoint);
    let said = world.run(&["--download"], &[("HF_ENDPOINT", &mirror)]).unwrap_err();
    let words = format!("error: {mirror}/api/models/org/name/revision/main?blobs=true: ");
    assert!(said.starts_with(&words) && said.contains("404"), "{said}");
    // The response is not a file list, like the sign-in page of a proxy.
    let page = format!("{}/{NAME}/resolve/{COMMIT}/config.json#", world.endpoint);
    let said = world.run(&["--download"], &[("HF_ENDPOINT", &page)]).unwrap_err();
    assert!(said.contains("does not list a model's files"), "{said}");
}

#[test]
fn gguf_file_is_selected_by_name_or_type() {
    let world = world();
    let snapshot = world.held().join("snapshots").join(COMMIT);
    // The file is downloaded and then rejected, because it is not GGUF.
    let said = world.said("org/name:Q8_0", &[]);
    assert!(said.contains("m-Q8_0.gguf: is no GGUF file"), "{said}");
    let fetched = |world: &World| -> Vec<String> {
        let asked = world.asked().into_iter().map(|asked| asked.0);
        asked.filter(|path| path.contains("/resolve/")).collect()
    };
    assert_eq!(fetched(&world), [format!("/{NAME}/resolve/{COMMIT}/{}", GGUF[0])]);
    assert!(!snapshot.join("config.json").exists());
    // All parts of a split file, from a revision given by its reference.
    let said = world.said(&format!("org/name@refs/pr/3:{}", GGUF[1]), &[]);
    assert!(said.contains("-00001-of-00002.gguf: is no GGUF file"), "{said}");
    assert_eq!(fs::read_to_string(world.held().join("refs/refs/pr/3")).unwrap(), COMMIT);
    for name in GGUF {
        let text = fs::read_to_string(snapshot.join(name)).unwrap();
        assert!(text.starts_with(&format!("what is in {name}")), "{name}");
    }
    assert_eq!(fetched(&world).len(), 2);
    // A revision given by its commit gets no file in `refs`.
    let said = world.said(&format!("org/name@{COMMIT}:q8_0"), &[]);
    assert!(said.contains("is no GGUF file"), "{said}");
    assert!(!world.held().join("refs").join(COMMIT).exists());
    let absent = world.said("org/name:Q6_K", &[]);
    assert!(absent.contains("org/name has no file Q6_K; it has m-Q8_0.gguf (1"), "{absent}");
    let absent = world.said("org/name@v9", &[]);
    assert!(absent.contains("404"), "{absent}");
    assert!(fetched(&world).is_empty());
}

#[test]
fn unavailable_files_fail_before_download() {
    let world = world();
    let said = world.said("org/huge:Q8_0", &[]);
    assert!(said.contains("free") && said.contains("are to be written"), "{said}");
    let said = world.said("org/huge", &[]);
    assert!(said.contains("org/huge has GGUF files, each a model: m-Q8_0.gguf"), "{said}");
    let said = world.said("org/secret", &[]);
    assert!(said.contains("401") && said.contains("hint: ") && said.contains("HF_TOKEN"), "{said}");
    let said = world.said("org/secret", &[("HF_TOKEN", "mine")]);
    assert!(said.contains("404") && !said.contains("mine"), "{said}");
    assert!(world.asked().iter().all(|asked| !asked.0.contains("/resolve/")));
}

/// A download whose weights have arrived in part, and then stall; it leads a process group, as in a terminal.
fn stalled(world: &World, folder: &Path) -> Child {
    world.fault("model.safetensors", Fault::Stall(60_000));
    let mut command = world.command(&["--download"], &[("TMPDIR", folder.to_str().unwrap())]);
    let child = command.stderr(Stdio::piped()).process_group(0).spawn().unwrap();
    let part = || {
        let entries = fs::read_dir(world.held().join("blobs")).into_iter().flatten().flatten();
        let parts =
            entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "part"));
        parts.filter_map(|entry| entry.metadata().ok()).map(|part| part.len()).max()
    };
    let begun = Instant::now();
    while part().is_none_or(|bytes| bytes < 50_000) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no byte was downloaded");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

/// The same command completes the model from the part that has arrived.
fn resumes(world: &World) {
    assert!(!world.held().join("refs").exists() && !world.held().join("snapshots").exists());
    world.run(&["--download"], &[]).unwrap();
    let asked = world.asked();
    let weights = asked.iter().filter(|asked| asked.0.ends_with("model.safetensors"));
    let from: Vec<usize> = weights.map(|asked| asked.1).collect();
    assert!(from.len() > 1 && from[1..].iter().all(|from| *from >= 50_000), "{from:?}");
}

#[test]
fn killed_download_resumes() {
    let world = world();
    let mut child = stalled(&world, world.path());
    child.kill().unwrap();
    child.wait().unwrap();
    resumes(&world);
}

#[test]
fn interrupted_download_prints_one_line_and_resumes() {
    let world = world();
    let temporary = tempdir().unwrap();
    let child = stalled(&world, temporary.path());
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    assert_eq!(
        String::from_utf8(ended.stderr).unwrap(),
        "interrupted: org/name is incomplete; the same command resumes the download\n"
    );
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "a temporary file is left");
    resumes(&world);
}

#[test]
fn download_without_python_says_how_to_install_it() {
    let world = world();
    let said = world.said("org/name", &[("PATH", "/nonexistent")]);
    assert_eq!(
        said,
        "error: --download needs Python 3, and there is no python3 on PATH\n\
         hint: install Python 3: `sudo apt-get install --yes python3-pip` (Debian, Ubuntu) or `sudo dnf install --assumeyes python3-pip` (Red Hat, Fedora)\n"
    );
}

#[test]
fn unreachable_hub_is_reported_at_once_and_leaves_no_file() {
    let world = world();
    // Nothing listens on this port once the listener is dropped.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let begun = Instant::now();
    let endpoint = format!("http://{free}");
    let said = world.said("org/name", &[("HF_ENDPOINT", &endpoint)]);
    // Six attempts take 12 s, three take 1.2 s.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    let words = format!("no network: {free} refuses connections");
    assert!(said.contains(&format!("note: {words}; trying again\nerror: {words}\n")), "{said}");
    assert_eq!(fs::read_dir(world.held()).unwrap().count(), 0, "an empty file is left");
}

#[test]
fn cache_that_cannot_be_made_is_named() {
    let world = world();
    let file = world.path().join("a-file");
    fs::write(&file, "").unwrap();
    let said = world.said("org/name", &[("HF_HUB_CACHE", file.to_str().unwrap())]);
    assert!(said.contains("the model cache ") && said.contains(" cannot be made: "), "{said}");
    assert!(said.contains("hint: set HF_HUB_CACHE to a folder that can be written"), "{said}");
}

#[test]
fn model_that_the_hub_lacks_is_no_interrupted_download() {
    let said = world().said("org/absent", &[]);
    assert!(said.contains(": HTTP 404: Not Found\nhint: check the model's name"), "{said}");
}
