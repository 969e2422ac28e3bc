//! `--download`: a model comes from the hub into the cache whole or not at all, by a server that plays the hub.

#![allow(clippy::unwrap_used)] // Test helpers beside the tests.
#![cfg(unix)] // The cache has links in it.

mod support;

use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use support::{command, expect};
use tempfile::{TempDir, tempdir};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NAME: &str = "org/name";
/// What git calls the content "{}\n" (`git hash-object`).
const SMALL: (&str, &str) = ("{}\n", "0967ef424bce6791893e9a57bb952f80fd536e93");

/// What the server does with the next request for a file.
#[derive(Clone, Copy)]
enum Fault {
    /// The connection ends after so many bytes.
    Drop(usize),
    /// A byte is another one.
    OtherByte,
}

#[derive(Default)]
struct Hub {
    files: HashMap<String, Vec<u8>>,
    faults: Mutex<HashMap<String, Fault>>,
    /// Path, first byte, and who is asking.
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
            None => {}
        }
        stream.write_all(&content).ok()
    }
}

/// A hub with one model on it, and a cache beside it.
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
    let listed = json!({ "id": NAME, "sha": COMMIT, "siblings": siblings });
    hub.files.insert(format!("/api/models/{NAME}/revision/main"), listed.to_string().into_bytes());
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

    /// `logits` of the model's name, with these variables.
    fn command(&self, more: &[&str], variables: &[(&str, &str)]) -> Command {
        let line = [&["logits", NAME, "--ids", "1,2", "-o", "o.safetensors"], more].concat();
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

    fn held(&self) -> std::path::PathBuf {
        self.path().join("cache/models--org--name")
    }
}

#[test]
fn a_model_comes_as_the_hubs_tools_lay_it_out() {
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
    // What is here is not asked for again, and without the switch nothing is.
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
fn a_dropped_connection_is_taken_up_where_it_ended() {
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
fn what_is_another_file_than_the_hub_says_leaves_no_model() {
    // One is known by its SHA-256, the other by what git calls it.
    for name in ["model.safetensors", "generation_config.json"] {
        let world = world();
        world.fault(name, Fault::OtherByte);
        let said = world.run(&["--download"], &[]).unwrap_err();
        assert!(said.contains(&format!("{name} is another file than the hub says")), "{said}");
        assert!(!world.held().join("refs").exists() && !world.held().join("snapshots").exists());
        assert!(world.run(&[], &[]).unwrap_err().contains("the cache has no model"));
        world.run(&["--download"], &[]).unwrap();
    }
}

#[test]
fn what_is_no_hub_is_named() {
    let world = world();
    let mirror = format!("{}/mirror", world.endpoint);
    let said = world.run(&["--download"], &[("HF_ENDPOINT", &mirror)]).unwrap_err();
    let words = format!("error: {mirror}/api/models/org/name/revision/main?blobs=true: ");
    assert!(said.starts_with(&words) && said.contains("404"), "{said}");
    // A page that is no list of files, as a proxy's sign-in is.
    let page = format!("{}/{NAME}/resolve/{COMMIT}/config.json#", world.endpoint);
    let said = world.run(&["--download"], &[("HF_ENDPOINT", &page)]).unwrap_err();
    assert!(said.contains("does not list a model's files"), "{said}");
}
