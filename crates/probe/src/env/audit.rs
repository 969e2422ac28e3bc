//! Compares each file with RECORD: its existence, its size, and on request its SHA-256.
//!
//! If two distributions list one file with different contents, the one whose RECORD matches is reported to the other.
//! Files written after an install (bytecode, files in dist-info) are not compared.
//!
//! A Python file of the right size is read if there is a reason: it was changed after the install, its data was never
//! written, or it is the first file that an import of its package runs.

mod lines;

use super::record::is_native;
use super::site::without_dots;
use crate::Source;
use crate::source::{FileMetadata, Folder};
use facts::CompactSort;
use facts::{Alteration, AlteredFile};
pub(super) use lines::RecordText;
use lines::{Line, Lines, contested, shared};
use rayon::prelude::*;
use sha2::{Digest as _, Sha256};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The differences from one RECORD.
#[derive(Debug, Default)]
pub(super) struct Audit {
    /// A limited number of files, those needed by an import first.
    pub(super) altered: Vec<AlteredFile>,
    pub(super) total: u32,
}

/// Maximum number of files listed per distribution.
const MAX_FILES: usize = 16;

/// Maximum number of Python files of the right size that are read: in a copied environment all of them look newer than
/// their RECORD.
const MAX_READ: usize = 400;

/// A file counts as changed if it is this many seconds newer than its RECORD.
const CHANGED_AFTER_S: i64 = 5;

/// Compares every RECORD of one site-packages folder with its files. `verify` also compares contents.
pub(super) fn run(
    source: &Source,
    site: &Path,
    lists: &[RecordText<'_>],
    verify: bool,
) -> Vec<Audit> {
    let lines: Vec<Lines<'_>> = lists.par_iter().map(RecordText::lines).collect();
    let shared = shared(&lines);
    let contested = contested(&lines, &shared);
    let read = AtomicUsize::new(0);
    let parts: Vec<(usize, &[Line<'_>])> = lines
        .iter()
        .enumerate()
        .flat_map(|(list, lines)| {
            lines.runs().flat_map(move |(_, run)| run.chunks(256).map(move |part| (list, part)))
        })
        .collect();
    let judge = |files: &Files<'_>, list: usize, line: &Line<'_>| {
        let rivals = match files.shared {
            true => contested.get(line.path.as_ref()).map_or(&[][..], Vec::as_slice),
            false => &[],
        };
        // Sizes distinguish most rivals; otherwise contents are read.
        let alike = |line: &Line<'_>| {
            rivals.iter().any(|(_, it)| it.bytes == line.bytes && it.digest != line.digest)
        };
        let file = files.file(line);
        let how = file.compare(line, verify || alike(line)).or_else(|| {
            let written = lists[list].written.filter(|_| !verify)?;
            file.python_damage(line, written, &read)
        })?;
        let agrees = |rival: &Line<'_>| {
            rival.digest != line.digest && file.compare(rival, verify || alike(rival)).is_none()
        };
        let belongs_to = rivals
            .iter()
            .find(|(_, rival)| file.about.is_some() && agrees(rival))
            .map(|(other, _)| lists[*other].dist.to_owned());
        let path = without_dots(&file.path()).display().to_string();
        Some((list, AlteredFile { path, how, belongs_to }))
    };
    let base = Folder::open(source, site.to_path_buf());
    let found: Vec<(usize, AlteredFile)> = parts
        .par_iter()
        .flat_map_iter(|(list, part)| {
            let folder = part[0].folder();
            let files = Files::of(source, &base, folder, part.len(), shared.contains(folder));
            part.iter().filter_map(|line| judge(&files, *list, line)).collect::<Vec<_>>()
        })
        .collect();
    let mut audits: Vec<Audit> = lists.iter().map(|_| Audit::default()).collect();
    for (list, file) in found {
        audits[list].total = audits[list].total.saturating_add(1);
        audits[list].altered.push(file);
    }
    for audit in &mut audits {
        audit.altered.compact_sort_by_key(|file| rank(&file.path));
        audit.altered.truncate(MAX_FILES);
    }
    audits
}

/// Compiled files come first, then Python files, then tests and all others.
fn rank(path: &str) -> u8 {
    let of_tests = path.contains("/tests/") || path.contains("/test/");
    match (is_native(path), path.ends_with(".py"), of_tests) {
        (true, _, _) => 0,
        (_, true, false) => 1,
        _ => 2,
    }
}

/// Opening a folder with fewer files costs more than looking up each from site-packages.
const WORTH_OPENING: usize = 8;

/// Looks up the files of RECORD lines.
struct Files<'a> {
    source: &'a Source,
    site: &'a Folder,
    /// The folder of the current lines, if it is open.
    folder: Option<Folder>,
    /// Whether two lines may refer to one of its files.
    shared: bool,
}

/// One file, examined once for all of its lines.
struct File<'a> {
    source: &'a Source,
    folder: &'a Folder,
    /// Its path relative to `folder`.
    name: &'a str,
    about: Option<FileMetadata>,
}

impl<'a> Files<'a> {
    /// Opens `folder` if it has enough `files`.
    fn of(source: &'a Source, site: &'a Folder, folder: &str, files: usize, shared: bool) -> Self {
        let worth = files >= WORTH_OPENING && !folder.is_empty();
        Self { source, site, folder: worth.then(|| site.inner(folder)), shared }
    }

    /// Looks up the file of a line.
    fn file<'f>(&'f self, line: &'f Line<'_>) -> File<'f> {
        let (folder, name) = match &self.folder {
            Some(folder) => (folder, line.name()),
            None => (self.site, line.path.as_ref()),
        };
        let about = folder.about(self.source, name);
        File { source: self.source, folder, name, about }
    }
}

impl File<'_> {
    fn path(&self) -> PathBuf {
        self.folder.path().join(self.name)
    }

    /// The difference from a line; `contents` reads the file if its size is right.
    fn compare(&self, line: &Line<'_>, contents: bool) -> Option<Alteration> {
        let Some(about) = &self.about else {
            // Some tools list a folder, or a link to one. A missing empty file is harmless: without its empty
            // __init__.py, which uninstalling one of NVIDIA's packages removes from the others, a folder is imported as
            // a namespace package.
            let lost = line.bytes != Some(0) && !self.source.exists(self.path());
            return lost.then_some(Alteration::Missing);
        };
        let found = about.bytes;
        match line.bytes {
            Some(recorded) if recorded != found => {
                let bytes = match line.path.ends_with(".py") {
                    true => self.source.read(self.path()).unwrap_or_default(),
                    false => Vec::new(),
                };
                let ends_within_a_line = bytes.last().is_some_and(|last| *last != b'\n');
                Some(match () {
                    () if bytes.contains(&0) => Alteration::Zeros,
                    () if ends_within_a_line && found < recorded => {
                        Alteration::CutOff { recorded, found }
                    }
                    () => Alteration::Size { recorded, found },
                })
            }
            _ if contents && !line.digest.is_empty() => {
                let wanted = line.digest.strip_prefix("sha256=")?;
                (sha256(self.source, &self.path())? != wanted).then_some(Alteration::Hash)
            }
            _ => None,
        }
    }

    /// The damage in a Python file of the right size, if there is a reason to read it.
    fn python_damage(
        &self,
        line: &Line<'_>,
        written: i64,
        read: &AtomicUsize,
    ) -> Option<Alteration> {
        if !line.path.ends_with(".py") || line.bytes.is_none_or(|bytes| bytes == 0) {
            return None;
        }
        let about = self.about.as_ref()?;
        let later = about.changed > written + CHANGED_AFTER_S;
        let first = line.path.split_once('/').is_some_and(|(_, rest)| rest == "__init__.py");
        let suspect = later || first || about.unwritten;
        if !suspect || read.fetch_add(1, Ordering::Relaxed) >= MAX_READ {
            return None;
        }
        if self.source.read(self.path()).ok()?.contains(&0) {
            return Some(Alteration::Zeros);
        }
        let wanted = line.digest.strip_prefix("sha256=").filter(|_| later)?;
        (sha256(self.source, &self.path())? != wanted).then_some(Alteration::Hash)
    }
}

/// The SHA-256 of a file as RECORD writes it: base64 for URLs, without padding.
fn sha256(source: &Source, path: &Path) -> Option<String> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut file = source.open(path).ok()?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block).ok()? {
            0 => break,
            read => hash.update(&block[..read]),
        }
    }
    let mut text = String::with_capacity(43);
    for three in hash.finalize().chunks(3) {
        let bytes =
            [three[0], three.get(1).copied().unwrap_or(0), three.get(2).copied().unwrap_or(0)];
        let word = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        for letter in 0..=three.len() {
            let index = (word >> (18 - 6 * letter)) & 63;
            text.push(char::from(LETTERS[index as usize]));
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::{RecordText, run};
    use crate::Source;
    use std::path::Path;

    /// Writes files, compares each RECORD with them, and returns one line per difference.
    fn check(files: &[(&str, &[u8])], lists: &[(&str, &str)], verify: bool, expect: &[&str]) {
        check_written(None, files, lists, verify, expect);
    }

    fn check_written(
        written: Option<i64>,
        files: &[(&str, &[u8])],
        lists: &[(&str, &str)],
        verify: bool,
        expect: &[&str],
    ) {
        let folder = tempfile::tempdir().unwrap();
        let site = folder.path().join("lib/python3.12/site-packages");
        std::fs::create_dir_all(&site).unwrap();
        for (path, bytes) in files {
            let path = site.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        let lists: Vec<RecordText<'_>> = lists
            .iter()
            .map(|(dist, text)| {
                let (dist, installer) = dist.split_once('/').unwrap_or((dist, "pip"));
                RecordText { dist, installer: Some(installer), text, written }
            })
            .collect();
        let audits = run(&Source::live(), &site, &lists, verify);
        let mut lines = Vec::new();
        for (list, audit) in lists.iter().zip(&audits) {
            assert_eq!(audit.total as usize, audit.altered.len());
            for file in &audit.altered {
                let path = Path::new(&file.path);
                let path = path.strip_prefix(&site).or(path.strip_prefix(folder.path())).unwrap();
                let other =
                    file.belongs_to.as_ref().map_or(String::new(), |it| format!(" of {it}"));
                lines.push(format!("{}: {} {:?}{other}", list.dist, path.display(), file.how));
            }
        }
        assert_eq!(lines, expect);
    }

    /// SHA-256 of `abc`, as in FIPS 180, and of `abd`.
    const ABC: &str = "sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0";
    const ABD: &str = "sha256=pS0VnyYrLG3bckphhAvvw26zDIiHekAwtly-himESck";

    #[test]
    fn missing_truncated_and_changed_files_are_reported() {
        let record = format!(
            "a/z.py,{ABC},3\na/x.so,{ABC},3\na/y.py,{ABC},3\na/gone.txt,{ABC},3\na/0.py,{ABC},3\n\
             a/b/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n\
             a/__pycache__/y.pyc,,\na-1.dist-info/METADATA,{ABC},9\na-1.dist-info/RECORD,,\n\
             ../../../bin/a,{ABC},3\n"
        );
        let files: [(&str, &[u8]); 4] =
            [("a/x.so", b"ab"), ("a/y.py", b"abd"), ("a/z.py", b"abc"), ("a/0.py", b"a\0c\0")];
        let by_size = [
            "a: a/x.so Size { recorded: 3, found: 2 }",
            "a: a/0.py Zeros",
            "a: a/gone.txt Missing",
            "a: bin/a Missing",
        ];
        check(&files, &[("a", &record)], false, &by_size);
        let all = [
            by_size[0],
            "a: a/y.py Hash",
            "a: a/0.py Zeros",
            "a: a/gone.txt Missing",
            "a: bin/a Missing",
        ];
        check(&files, &[("a", &record)], true, &all);
        // Debian installs scripts elsewhere, and conda writes its prefix into files after RECORD.
        check(&[], &[("a/debian", &format!("../../../bin/a,{ABC},3\n"))], false, &[]);
        check(&[("a.py", b"longer")], &[("a/conda", &format!("a.py,{ABC},3\n"))], false, &[]);
        check(&[("a.py", b"abc")], &[("a", &format!("a.py,{ABC}=,3\n"))], true, &[]);
    }

    #[test]
    fn python_file_of_the_recorded_size_is_read_only_on_suspicion() {
        let record = format!("a/__init__.py,{ABC},3\na/x.py,{ABC},3\na/y.py,{ABC},3\n");
        let files: [(&str, &[u8]); 3] =
            [("a/__init__.py", &[0, 0, 0]), ("a/x.py", b"abd"), ("a/y.py", &[0, b'b', b'c'])];
        let list = [("a", record.as_str())];
        // Changed long after the install.
        let all = ["a: a/__init__.py Zeros", "a: a/x.py Hash", "a: a/y.py Zeros"];
        check_written(Some(0), &files, &list, false, &all);
        // Not newer than RECORD: only the first file of an import.
        check_written(Some(i64::MAX / 2), &files, &list, false, &all[..1]);
        check_written(
            Some(i64::MAX / 2),
            &[("a/__init__.py", b"abd"), files[1], files[2]],
            &list,
            false,
            &[],
        );
    }

    #[test]
    fn python_file_that_ends_within_a_line_is_truncated() {
        let record = format!("a/x.py,{ABC},9\na/y.py,{ABC},9\na/z.py,{ABC},2\n");
        let files: [(&str, &[u8]); 3] =
            [("a/x.py", b"def f"), ("a/y.py", b"a = 1\n"), ("a/z.py", b"a = 1")];
        let expect = [
            "a: a/x.py CutOff { recorded: 9, found: 5 }",
            "a: a/y.py Size { recorded: 9, found: 6 }",
            "a: a/z.py Size { recorded: 2, found: 5 }",
        ];
        check(&files, &[("a", &record)], false, &expect);
    }

    #[test]
    fn file_of_two_distributions_belongs_to_the_one_with_its_hash() {
        let (one, two) = (format!("a/x.so,{ABC},3\n"), format!("a/x.so,{ABD},3\n"));
        let longer = "a/x.so,sha256=other,5\n";
        // Equal sizes: contents decide.
        check(
            &[("a/x.so", b"abd")],
            &[("one", &one), ("two", &two)],
            false,
            &["one: a/x.so Hash of two"],
        );
        // Different sizes: no file is read.
        check(
            &[("a/x.so", b"12345")],
            &[("one", &one), ("two", longer)],
            false,
            &["one: a/x.so Size { recorded: 3, found: 5 } of two"],
        );
        // The same contents in both, as in the empty files that namespaces share.
        check(&[("a/x.so", b"abc")], &[("one", &one), ("two", &one)], false, &[]);
        // Missing for both.
        check(
            &[],
            &[("one", &one), ("two", &two)],
            false,
            &["one: a/x.so Missing", "two: a/x.so Missing"],
        );
        // One list has a file twice, and one of its lines is right.
        let twice = format!("{one}{two}");
        check(&[("a/x.so", b"abd")], &[("one", &twice)], false, &["one: a/x.so Hash of one"]);
        // The same with another folder's line between them.
        let apart = format!("{one}a/b/y.so,{ABC},3\n{two}");
        let files: [(&str, &[u8]); 2] = [("a/x.so", b"abd"), ("a/b/y.so", b"abc")];
        check(&files, &[("one", &apart)], false, &["one: a/x.so Hash of one"]);
    }
}
