//! Reproducible archives: members are sorted, have no owner and are dated by the commit.

use super::File;
use anyhow::Context;
use flate2::{Compression, GzBuilder};
use std::path::Path;

/// Writes the files below a folder named `top` into a `.tar.gz`.
pub(super) fn write(path: &Path, top: &str, files: &[File], time: u64) -> anyhow::Result<()> {
    let bytes = bytes(top, files, time)?;
    std::fs::write(path, bytes).with_context(|| format!("could not write {}", path.display()))
}

fn bytes(top: &str, files: &[File], time: u64) -> anyhow::Result<Vec<u8>> {
    // The gzip header has neither a date nor a system.
    let mut tar = tar::Builder::new(GzBuilder::new().write(Vec::new(), Compression::default()));
    let mut sorted: Vec<&File> = files.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    for file in sorted {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.bytes.len() as u64);
        header.set_mode(if file.executable { 0o755 } else { 0o644 });
        header.set_mtime(time);
        tar.append_data(&mut header, format!("{top}/{}", file.path), file.bytes.as_slice())?;
    }
    Ok(tar.into_inner()?.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;

    #[test]
    fn order_of_files_does_not_change_the_archive() {
        let files =
            [File::program("firstlight", b"ELF".to_vec()), File::text("man/a.1", b"page".to_vec())];
        let reversed = [files[1].clone(), files[0].clone()];
        let first = bytes("firstlight-1", &files, 1_700_000_000).unwrap();
        assert_eq!(first, bytes("firstlight-1", &reversed, 1_700_000_000).unwrap());
        let mut tar = tar::Archive::new(GzDecoder::new(first.as_slice()));
        let mut found = Vec::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let path = entry.path().unwrap().display().to_string();
            let header = entry.header();
            assert_eq!(header.mtime().unwrap(), 1_700_000_000);
            found.push((path, header.mode().unwrap(), text));
        }
        let expect =
            [("firstlight-1/firstlight", 0o755, "ELF"), ("firstlight-1/man/a.1", 0o644, "page")];
        let expect = expect.map(|(path, mode, text)| (path.to_owned(), mode, text.to_owned()));
        assert_eq!(found, expect);
    }
}
