//! Small wheels with metadata, a RECORD of correct hashes, and source or compiled files.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use crate::support::library::Library;
use facts::Dist;
use sha2::{Digest, Sha256};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A file on a server.
#[derive(Debug, Clone)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// In lower-case hexadecimal.
    pub(crate) sha256: String,
}

impl File {
    pub(crate) fn new(name: &str, bytes: Vec<u8>) -> Self {
        let digest = Sha256::digest(&bytes);
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { name: name.to_owned(), bytes, sha256 }
    }

    /// The normalised name of the package it is of.
    pub(crate) fn project(&self) -> String {
        Dist::normalise(self.name.split('-').next().unwrap())
    }

    /// Writes it into a folder.
    pub(crate) fn save(&self, folder: &Path) -> PathBuf {
        std::fs::create_dir_all(folder).unwrap();
        let path = folder.join(&self.name);
        std::fs::write(&path, &self.bytes).unwrap();
        path
    }
}

/// The description of a wheel.
#[derive(Debug, Clone)]
pub(crate) struct Wheel {
    name: String,
    version: String,
    tag: String,
    /// Lines of METADATA after the version.
    metadata: String,
    files: Vec<(String, Vec<u8>)>,
    record: Vec<(String, String)>,
}

impl Wheel {
    /// By the parts of its file name: `flash_attn`, `2.8.3`, `cp312-cp312-linux_x86_64`.
    pub(crate) fn new(name: &str, version: &str, tag: &str) -> Self {
        let own = |text: &str| text.to_owned();
        Self {
            name: own(name),
            version: own(version),
            tag: own(tag),
            metadata: String::new(),
            files: Vec::new(),
            record: Vec::new(),
        }
    }

    pub(crate) fn requires(mut self, requirement: &str) -> Self {
        self.metadata += &format!("Requires-Dist: {requirement}\n");
        self
    }

    pub(crate) fn file(mut self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.files.push((path.to_owned(), content.as_ref().to_vec()));
        self
    }

    /// A compiled file for this processor.
    pub(crate) fn library(self, path: &str, library: &Library, processor: &str) -> Self {
        self.file(path, library.bytes(processor))
    }

    /// Lists a file with a wrong hash, or a missing file.
    pub(crate) fn listed_as(mut self, path: &str, line: &str) -> Self {
        self.record.push((path.to_owned(), line.to_owned()));
        self
    }

    /// The wheel as a file of another name.
    pub(crate) fn called(&self, name: &str) -> File {
        File { name: name.to_owned(), ..self.build() }
    }

    pub(crate) fn build(&self) -> File {
        let info = format!("{}-{}.dist-info", self.name, self.version);
        let metadata = format!(
            "Metadata-Version: 2.1\nName: {}\nVersion: {}\n{}",
            self.name, self.version, self.metadata
        );
        let wheel = format!(
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\nTag: {}\n",
            self.tag
        );
        let mut files = self.files.clone();
        files.push((format!("{info}/METADATA"), metadata.into_bytes()));
        files.push((format!("{info}/WHEEL"), wheel.into_bytes()));
        let mut record = String::new();
        for (path, content) in &files {
            if self.record.iter().all(|(other, _)| other != path) {
                record += &format!("{path},sha256={},{}\n", digest(content), content.len());
            }
        }
        for (path, line) in &self.record {
            record += &format!("{path},{line}\n");
        }
        record += &format!("{info}/RECORD,,\n");
        files.push((format!("{info}/RECORD"), record.into_bytes()));
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        for (path, content) in &files {
            archive.start_file(path.as_str(), SimpleFileOptions::default()).unwrap();
            archive.write_all(content).unwrap();
        }
        let bytes = archive.finish().unwrap().into_inner();
        File::new(&format!("{}-{}-{}.whl", self.name, self.version, self.tag), bytes)
    }
}

/// SHA-256 as RECORD writes it: base64 with `-` and `_`, six bits a letter, without padding.
fn digest(content: &[u8]) -> String {
    let letters: Vec<char> =
        ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['-', '_']).collect();
    let bits: String = Sha256::digest(content).iter().map(|byte| format!("{byte:08b}")).collect();
    let group = |bits: &[u8]| {
        let bits = format!("{:0<6}", std::str::from_utf8(bits).unwrap());
        letters[usize::from_str_radix(&bits, 2).unwrap()]
    };
    bits.as_bytes().chunks(6).map(group).collect()
}
