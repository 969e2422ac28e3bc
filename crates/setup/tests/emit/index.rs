//! A package index in a folder, for tests. Its wheels contain only metadata.

use setup::wheel::WheelName;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;

/// A simple index (PEP 503) with a `file:` URL.
pub(crate) struct TestIndex(PathBuf);

impl TestIndex {
    pub(crate) fn at(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        Self(folder.to_owned())
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.0.display())
    }

    /// Adds a wheel and lists it with its hash, which is returned.
    pub(crate) fn wheel(&self, file: &str, requires: &[&str]) -> String {
        let name = WheelName::parse(file).unwrap();
        self.add(&name.distribution.replace('_', "-"), file, &wheel(&name, requires))
    }

    /// Adds version 1.0 of a package as a source archive with this setup.py.
    pub(crate) fn source(&self, package: &str, setup_py: &str) -> String {
        let root = format!("{package}-1.0");
        let metadata = format!("Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n");
        let files = [
            (format!("{root}/setup.py"), setup_py.to_owned()),
            (format!("{root}/PKG-INFO"), metadata),
            (format!("{root}/{package}.py"), String::new()),
        ];
        self.add(package, &format!("{root}.zip"), &archive(&files))
    }

    fn add(&self, package: &str, file: &str, bytes: &[u8]) -> String {
        let folder = self.0.join(package);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(file), bytes).unwrap();
        let sha256 = hex(bytes);
        let page = folder.join("index.html");
        let mut listed = fs::read_to_string(&page).unwrap_or_default();
        let _ =
            writeln!(listed, "<a href=\"{}#sha256={sha256}\">{file}</a>", file.replace('+', "%2B"));
        fs::write(page, listed).unwrap();
        sha256
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn wheel(name: &WheelName, requires: &[&str]) -> Vec<u8> {
    let mut metadata =
        format!("Metadata-Version: 2.1\nName: {}\nVersion: {}\n", name.distribution, name.version);
    for requirement in requires {
        let _ = writeln!(metadata, "Requires-Dist: {requirement}");
    }
    let (python, abi) = (name.pythons.join("."), name.abis.join("."));
    let tag = format!("{python}-{abi}-{}", name.platforms.join("."));
    let about = format!("Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n");
    let module = format!("VERSION = \"{}\"\n", name.version);
    let info = format!("{}-{}.dist-info", name.distribution, name.version);
    let files = [
        (format!("{}/__init__.py", name.distribution), module),
        (format!("{info}/METADATA"), metadata),
        (format!("{info}/WHEEL"), about),
    ];
    let mut record: String = files
        .iter()
        .map(|(path, text)| format!("{path},sha256={},{}\n", base64(text), text.len()))
        .collect();
    let _ = writeln!(record, "{info}/RECORD,,");
    let mut files = files.to_vec();
    files.push((format!("{info}/RECORD"), record));
    archive(&files)
}

/// A zip archive of these files.
fn archive(files: &[(String, String)]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (path, text) in files {
        archive.start_file(path.as_str(), SimpleFileOptions::default()).unwrap();
        archive.write_all(text.as_bytes()).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// The hash of a text in RECORD's format: URL-safe base64 without padding.
fn base64(text: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let hash = Sha256::digest(text.as_bytes());
    let digits = |three: &[u8]| {
        let bits = three
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0_u32, |all, b| all << 8 | u32::from(*b));
        let shown = three.len() + 1;
        (0..shown)
            .map(move |n| char::from(DIGITS[(bits >> (18 - 6 * n) & 63) as usize]))
            .collect::<String>()
    };
    hash.chunks(3).map(digits).collect()
}
