//! The script against a local server: a page, METADATA and libraries by range requests, and the cache.

use super::{IndexAnswer, IndexClient, IndexError, PackageQuery, ReleaseSource, TargetHost};
use facts::PlannedFile;
use knowledge::{NameQuery, WheelCode};
use pep440_rs::VersionSpecifiers;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zip::write::SimpleFileOptions;

/// Answers GET requests for these paths, range requests included; records the request lines.
struct Server {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(files: impl FnOnce(&str) -> BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let files = Arc::new(files(&url));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, kept) = (Arc::clone(&files), Arc::clone(&kept));
                std::thread::spawn(move || answer(stream, &files, &kept));
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> usize {
        self.asked.lock().expect("no panic").len()
    }
}

fn answer(stream: TcpStream, files: &BTreeMap<String, Vec<u8>>, kept: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    let mut writer = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let path = line.split_whitespace().nth(1).unwrap_or_default().to_owned();
        kept.lock().expect("no panic").push(path.clone());
        let mut range = None;
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header).unwrap_or(0) == 0 || header.trim().is_empty() {
                break;
            }
            if let Some(bytes) = header.trim().strip_prefix("Range: bytes=") {
                let (start, end) = bytes.split_once('-').expect("a range");
                range = Some((start.parse().expect("a start"), end.parse().expect("an end")));
            }
        }
        let (status, body): (&str, &[u8]) = match (files.get(&path), range) {
            (Some(file), Some((start, end))) => ("206 Partial Content", &file[start..=end]),
            (Some(file), None) => ("200 OK", file),
            (None, _) => ("404 Not Found", b""),
        };
        let kind = if body.starts_with(b"<!DOCTYPE html>") { "text/html" } else { "other/other" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(body)).is_err() {
            return;
        }
    }
}

/// A wheel with METADATA, a library that names libcudart, and one that does not.
fn wheel() -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    // Larger than the first range request at the end, so that libraries need further requests.
    let noise: Vec<u8> =
        (0..600_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let cuda = [b"\x7fELF libcudart.so.13\0".as_slice(), &noise].concat();
    let metadata = b"Name: x\nVersion: 1.1\nRequires-Dist: torch==2.11.0\n\n".as_slice();
    for (name, content) in [
        ("x/_C.abi3.so", cuda.as_slice()),
        ("x/_plain.so", b"\x7fELF libc.so.6\0".as_slice()),
        ("x-1.1.dist-info/METADATA", metadata),
    ] {
        zip.start_file(name, SimpleFileOptions::default()).expect("a member");
        zip.write_all(content).expect("writes");
    }
    zip.finish().expect("a zip").into_inner()
}

fn server() -> Server {
    let name = "x-1.1-cp38-abi3-manylinux_2_28_x86_64.whl";
    let wheel = wheel();
    Server::start(|url| {
        let page = format!(
            r#"{{"files": [{{"filename": "{name}", "url": "{url}/files/{name}", "size": {},
                "hashes": {{"sha256": "abc"}}, "requires-python": ">=3.9", "yanked": false}}]}}"#,
            wheel.len()
        );
        [("/simple/x/".to_owned(), page.into_bytes()), (format!("/files/{name}"), wheel)].into()
    })
}

/// The names of the extracted libraries, as data of a CUDA 13 wheel.
fn read_libraries(folder: &Path) -> Result<WheelCode, String> {
    let names = fs::read_dir(folder.join("x")).map_err(|error| error.to_string())?;
    let names: Vec<_> = names.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["_C.abi3.so"]);
    let bytes = fs::read(folder.join("x/_C.abi3.so")).map_err(|error| error.to_string())?;
    assert!(bytes.starts_with(b"\x7fELF libcudart.so.13\0") && bytes.len() == 600_021);
    Ok(WheelCode::parse(Some(13), "sm_80").expect("an architecture"))
}

#[test]
fn releases_and_libraries_are_read_once_by_range_requests() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let python = super::interpreter(std::env::var_os("PATH").as_deref()).expect("a Python");
    let index = || IndexClient {
        url: format!("{}/simple", server.url),
        cache: folder.path().to_path_buf(),
        python: python.clone(),
        libraries: &read_libraries,
        timeout: super::TIMEOUT,
        deadline: None,
    };
    let wanted = [("x".to_owned(), VersionSpecifiers::default())];
    let read = || {
        let releases = index().releases(&wanted, 0, 8).expect("releases").remove("x");
        let release = releases.expect("a package").remove(0);
        let code = index().code(&release.files).expect("code");
        (release.version, release.requires, code)
    };
    let first = read();
    assert_eq!((first.0.as_str(), &first.1[..]), ("1.1", &["torch==2.11.0".to_owned()][..]));
    assert_eq!((first.2[0].cuda, first.2[0].words().as_str()), (Some(13), "sm_80"));
    let asked = server.asked();
    assert!(asked >= 3, "a page, and parts of a wheel: {asked}");
    assert_eq!(read(), first);
    assert_eq!(server.asked(), asked, "everything comes from the cache");
    assert!(!folder.path().join("wheels/abc/libraries").exists());
}

/// PyTorch's indexes have pages of HTML only, without sizes, and local versions in the names of files.
#[test]
fn an_index_of_html_pages_is_asked_for_files() {
    let page = r#"<!DOCTYPE html>
<html><body><h1>Links for torch</h1>
<a href="/whl/cu126/torch-2.9.0%2Bcu126-cp312-cp312-manylinux_2_28_x86_64.whl#sha256=ab" data-requires-python="&gt;=3.10">torch-2.9.0+cu126</a><br/>
<a href="/whl/cu126/torch-2.9.1%2Bcu126-cp312-cp312-linux_x86_64.whl" data-dist-info-metadata="sha256=cd">torch-2.9.1+cu126</a><br/>
<a href="/whl/cu126/torch-2.10.0%2Bcu126-cp313-cp313-manylinux_2_28_x86_64.whl">torch-2.10.0+cu126</a><br/>
<a href="/whl/cu126/torch-2.11.0%2Bcu126-cp312-cp312-manylinux_2_28_x86_64.whl" data-yanked="broken">torch-2.11.0+cu126</a><br/>
</body></html>"#;
    let server = Server::start(|_| [("/cu126/torch/".to_owned(), page.into())].into());
    let folder = tempfile::tempdir().expect("a folder");
    let index = IndexClient {
        url: format!("{}/cu126", server.url),
        cache: folder.path().to_path_buf(),
        python: super::interpreter(std::env::var_os("PATH").as_deref()).expect("a Python"),
        libraries: &read_libraries,
        timeout: super::TIMEOUT,
        deadline: Some(Instant::now() + Duration::from_secs(60)),
    };
    let host = TargetHost { python: (3, 12), arch: "x86_64", glibc: Some((2, 35)) };
    let ask = |specifiers: &str| {
        let specifiers = specifiers.parse().expect("specifiers");
        let wanted = PackageQuery { package: "torch".into(), specifiers, from_source: false };
        index.offers(&[wanted], host).expect("an answer").remove(0)
    };
    assert_eq!(ask("==2.9.0"), IndexAnswer::Has("2.9.0+cu126".into()));
    assert_eq!(ask("==2.9.1+cu126"), IndexAnswer::Has("2.9.1+cu126".into()));
    for (wanted, words) in [
        ("==2.10.0", "has no wheel of 2.10.0+cu126 for Python 3.12"),
        ("==2.11.0", "has no release ==2.11.0"),
        ("==2.9.1+cu128", "has no release ==2.9.1+cu128"),
    ] {
        let IndexAnswer::Lacks { reason, newest } = ask(wanted) else { panic!("{wanted}") };
        assert!(reason.starts_with(words), "{reason}");
        assert_eq!(newest.as_deref(), Some("2.9.1+cu126"));
    }
    assert_eq!(server.asked(), 1, "the page comes from the cache");
}

#[test]
fn absent_package_and_silent_server_differ() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let python = super::interpreter(std::env::var_os("PATH").as_deref()).expect("a Python");
    let mut index = IndexClient {
        url: format!("{}/simple", server.url),
        cache: folder.path().to_path_buf(),
        python,
        libraries: &read_libraries,
        timeout: super::TIMEOUT,
        deadline: None,
    };
    let absent = index.releases(&[("y".to_owned(), VersionSpecifiers::default())], 0, 8);
    assert!(
        matches!(&absent, Err(IndexError::Absent { package, .. }) if package == "y"),
        "{absent:?}"
    );
    let gone = PlannedFile {
        name: "z-1-cp38-abi3-manylinux_2_28_x86_64.whl".to_owned(),
        url: Some(format!("{}/files/z.whl", server.url)),
        sha256: Some("z".to_owned()),
        bytes: Some(100),
    };
    let error = index.code(&[gone]).expect_err("no such file");
    assert!(matches!(error, IndexError::Unreadable { .. }), "{error:?}");
    // A port without a listener.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr()).expect("a port");
    index.url = format!("http://{free}/simple");
    let silent = index.releases(&[("x".to_owned(), VersionSpecifiers::default())], 0, 8);
    assert!(matches!(silent, Err(IndexError::Unreadable { .. })), "{silent:?}");
}

/// A wheel of source files.
fn source_wheel(files: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in files {
        zip.start_file(*name, SimpleFileOptions::default()).expect("a member");
        zip.write_all(content.as_bytes()).expect("writes");
    }
    zip.finish().expect("a zip").into_inner()
}

#[test]
fn releases_with_a_name_are_found_from_the_source_in_their_wheels() {
    let own = "def Old(): pass\ndel Old\nOld = Gone = 1";
    let lazy = "import sys\n_names = {'part': ['Lazy', 'Old']}\nfrom .stars import *\nfrom . import Gone\ndel Gone";
    let typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .x import Old\nelse:\n    New = 1\n\
                 _removed = {'Lazy': ('use New', None)}";
    let computed = "def __getattr__(name): return 1";
    let releases = [
        source_wheel(&[("y/__init__.py", "# Old is not here yet")]),
        source_wheel(&[("y/__init__.py", own), ("y/part.py", "")]),
        source_wheel(&[
            ("y/__init__.py", lazy),
            ("y/stars.py", "Star = Other = 1"),
            ("y/part.py", ""),
        ]),
        source_wheel(&[("y/__init__.py", typed)]),
        source_wheel(&[("y/__init__.py", computed)]),
    ];
    let server = Server::start(|url| {
        let name = |release: usize| format!("y-{release}.0-py3-none-any.whl");
        let row = |(release, bytes): (usize, &Vec<u8>)| {
            let name = name(release);
            format!(
                r#"{{"filename": "{name}", "url": "{url}/{name}", "size": {}, "yanked": false}}"#,
                bytes.len()
            )
        };
        let rows: Vec<String> = releases.iter().enumerate().map(row).collect();
        let page = format!(r#"{{"files": [{}]}}"#, rows.join(","));
        let files = releases.iter().enumerate();
        let files = files.map(|(release, bytes)| (format!("/{}", name(release)), bytes.clone()));
        files.chain([("/simple/y/".to_owned(), page.into_bytes())]).collect()
    });
    let folder = tempfile::tempdir().expect("a folder");
    let index = IndexClient {
        url: format!("{}/simple", server.url),
        cache: folder.path().to_path_buf(),
        python: super::interpreter(std::env::var_os("PATH").as_deref()).expect("a Python"),
        libraries: &read_libraries,
        timeout: super::TIMEOUT,
        deadline: None,
    };
    let history = |module: &str, name: Option<&str>, version: Option<&str>| {
        let query = NameQuery {
            package: "y".to_owned(),
            module: module.to_owned(),
            name: name.map(str::to_owned),
            version: version.map(str::to_owned),
        };
        index.name_history(&query).expect("an answer")
    };
    // The newest release computes its names, so that it decides nothing.
    let check = |module: &str, name: Option<&str>, first: Option<&str>, removed: Option<&str>| {
        let found = history(module, name, None).expect(module);
        let removed_in = found.removed.as_deref();
        assert_eq!((found.first.as_deref(), removed_in), (first, removed), "{module} {name:?}");
    };
    check("y", Some("Old"), Some("1.0"), Some("3.0"));
    check("y", Some("Lazy"), Some("2.0"), Some("3.0"));
    check("y", Some("Star"), Some("2.0"), Some("3.0"));
    check("y", Some("New"), Some("3.0"), None);
    check("y", Some("Gone"), Some("1.0"), Some("2.0"));
    check("y", Some("part"), Some("1.0"), Some("3.0"));
    check("y.part", None, Some("1.0"), Some("3.0"));
    assert_eq!(history("y", Some("Never"), None), None);
    assert_eq!(history("y; import os", None, None), None);
    let asked = server.asked();
    let of_version = history("y", Some("Old"), Some("3.0+local")).expect("a history");
    assert_eq!((of_version.version_has, of_version.version_is_newer), (Some(false), true));
    assert_eq!(of_version.last.as_deref(), Some("2.0"));
    assert_eq!(server.asked(), asked, "everything comes from the cache");
}

#[test]
fn a_server_that_does_not_answer_ends_with_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    // Sends a byte of the answer every now and then, so that no read times out.
    let _server = std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = stream;
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
                let mut sent = stream.write_all(head);
                while sent.is_ok() {
                    std::thread::sleep(Duration::from_millis(100));
                    sent = stream.write_all(b" ");
                }
            });
        }
    });
    let folder = tempfile::tempdir().expect("a folder");
    let started = Instant::now();
    let index = IndexClient {
        url: format!("http://{address}/simple"),
        cache: folder.path().to_path_buf(),
        python: super::interpreter(std::env::var_os("PATH").as_deref()).expect("a Python"),
        libraries: &read_libraries,
        timeout: super::TIMEOUT,
        deadline: Some(started + Duration::from_secs(2)),
    };
    let query =
        NameQuery { package: "y".to_owned(), module: "y".to_owned(), name: None, version: None };
    let ask = || index.name_history(&query).expect_err("no answer").to_string();
    let (first, second) = (ask(), ask());
    assert!(first.contains("not answered within"), "{first}");
    assert!(second.contains("is over"), "{second}");
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}
