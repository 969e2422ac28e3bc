//! RECORD: every file of a wheel with its hash and its size.

use facts::CompactCollect;
use sha2::digest::DynDigest;
use sha2::{Digest, Sha256, Sha384, Sha512};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

/// One line: the hash as written, `sha256=…`, and the size in bytes. RECORD itself has no hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordLine {
    hash: Option<String>,
    bytes: Option<u64>,
}

/// Bytes copied at once; most files of a package are smaller.
const BUFFER: u64 = 1 << 16;

/// The files by their paths. A path with a comma is quoted, as in CSV.
pub(super) fn parse(text: &str) -> BTreeMap<String, RecordLine> {
    let line = |line: &str| {
        let mut fields = line.rsplitn(3, ',');
        let bytes = fields.next()?.trim().parse().ok();
        let hash = fields.next()?.trim().to_owned();
        let path = fields.next()?;
        let path = path.strip_prefix('"').and_then(|path| path.strip_suffix('"')).unwrap_or(path);
        Some((path.replace("\"\"", "\""), RecordLine { hash: Some(hash), bytes }))
    };
    text.lines().filter_map(line).compact_map()
}

/// The files of an installed package, by their paths relative to site-packages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines(BTreeMap<String, RecordLine>);

impl Lines {
    /// Reads a RECORD.
    pub(crate) fn parse(text: &str) -> Self {
        Self(parse(text))
    }

    /// The paths as written.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Whether it lists a path.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// Whether this file exists and has the listed size and hash. Byte code is written by Python, and missing byte code
    /// is harmless.
    pub(crate) fn is_at(&self, path: &str, file: &Path) -> bool {
        let Some(listed) = self.0.get(path) else { return false };
        if path.ends_with(".pyc") {
            return true;
        }
        let size = std::fs::metadata(file).ok().filter(|it| it.is_file()).map(|it| it.len());
        let fits = size.is_some_and(|size| listed.bytes.is_none_or(|wanted| wanted == size));
        // RECORD has no line about its own content.
        let no_hash = listed.hash.as_deref().is_none_or(str::is_empty);
        let same = |mut file| listed.copy(&mut file, &mut io::sink());
        fits && (no_hash
            || std::fs::File::open(file).and_then(same).is_ok_and(|found| found.is_ok()))
    }
}

/// The hash of content in RECORD's format.
pub(crate) fn hash_of(content: &[u8]) -> String {
    format!("sha256={}", url_base64(&Sha256::digest(content)))
}

impl RecordLine {
    /// RECORD itself.
    pub(super) fn itself() -> Self {
        Self { hash: None, bytes: None }
    }

    /// A file with this content.
    pub(super) fn of(content: &[u8]) -> Self {
        Self { hash: Some(hash_of(content)), bytes: Some(content.len() as u64) }
    }

    /// The line of a file, by its path relative to site-packages.
    pub(super) fn line(&self, path: &str) -> String {
        let path = match path.contains([',', '"', '\n']) {
            true => format!("\"{}\"", path.replace('"', "\"\"")),
            false => path.to_owned(),
        };
        let bytes = self.bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        format!("{path},{},{bytes}\n", self.hash.as_deref().unwrap_or_default())
    }

    /// Copies a file and compares it with its line: libraries of torch are too large to be held in memory. The inner
    /// error is the difference.
    pub(super) fn copy(
        &self,
        from: &mut impl Read,
        to: &mut impl Write,
    ) -> io::Result<Result<(), String>> {
        let Some(hash) = &self.hash else { return io::copy(from, to).map(|_| Ok(())) };
        let (kind, wanted) = hash.split_once('=').unwrap_or(("no hash", ""));
        let mut digest: Box<dyn DynDigest> = match kind {
            "sha256" => Box::new(Sha256::default()),
            "sha384" => Box::new(Sha384::default()),
            "sha512" => Box::new(Sha512::default()),
            other => return Ok(Err(format!("{other} instead of sha256 or better"))),
        };
        let (mut bytes, mut buffer) =
            (0, vec![0; BUFFER.min(self.bytes.unwrap_or(BUFFER)).max(1) as usize]);
        loop {
            let count = from.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            digest.update(&buffer[..count]);
            to.write_all(&buffer[..count])?;
            bytes += count as u64;
        }
        if let Some(wanted) = self.bytes.filter(|wanted| *wanted != bytes) {
            return Ok(Err(format!("{bytes} bytes instead of {wanted}")));
        }
        let found = url_base64(&digest.finalize());
        Ok(match found == wanted.trim_end_matches('=') {
            true => Ok(()),
            false => Err(format!("{kind}={found} instead of {hash}")),
        })
    }
}

/// URL-safe base64 without padding, as in RECORD (RFC 4648, section 5).
fn url_base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        // Three bytes are four characters; one remaining byte is two, two bytes are three.
        for letter in 0..=chunk.len() {
            let value = group >> (18 - 6 * letter) & 63;
            text.push(char::from(LETTERS[value as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_as_rfc_4648_says() {
        for (bytes, text) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(url_base64(bytes.as_bytes()), text);
        }
        assert_eq!(url_base64(&[0xfb, 0xff]), "-_8");
    }

    #[test]
    fn a_file_is_compared_with_its_line() {
        let record =
            "a.py,sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0,3\n\"b,\"\"c\"\"\",,\n";
        let record = parse(record);
        assert_eq!(record.keys().collect::<Vec<_>>(), ["a.py", "b,\"c\""]);
        let check = |file: &str, content: &[u8]| {
            let mut copied = Vec::new();
            let found = record[file].copy(&mut &*content, &mut copied).unwrap();
            (found, copied)
        };
        assert_eq!(check("a.py", b"abc"), (Ok(()), b"abc".to_vec()));
        assert!(check("a.py", b"abd").0.unwrap_err().contains("instead of"));
        assert_eq!(check("a.py", b"abcd").0.unwrap_err(), "4 bytes instead of 3");
        assert!(check("b,\"c\"", b"").0.unwrap_err().contains("no hash"));
    }
}
