//! Packs the CUDA sources below `src` into one file that the program holds: each with its path, length and text, one after the other,
//! without comments.

#[path = "src/comments.rs"]
mod comments;

use lzma_rust2::{LzmaOptions, LzmaWriter};
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("src");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    find(&root, &mut files)?;
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = comments::without_comments(&std::fs::read_to_string(&file)?);
        let path = file.strip_prefix(&root)?.to_string_lossy().replace('\\', "/");
        writeln!(all, "{path} {}", text.len())?;
        all.extend(text.as_bytes());
    }
    let options =
        LzmaOptions { nice_len: LzmaOptions::NICE_LEN_MAX, pb: 0, ..LzmaOptions::with_preset(6) };
    let mut packed = LzmaWriter::new_use_header(Vec::new(), &options, Some(all.len() as u64))?;
    packed.write_all(&all)?;
    let into = Path::new(&std::env::var("OUT_DIR")?).join("sources.lzma");
    Ok(std::fs::write(into, packed.finish()?)?)
}

fn find(folder: &Path, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, into)?;
        } else if path.extension().is_some_and(|ending| ending == "cu" || ending == "cuh") {
            into.push(path);
        }
    }
    Ok(())
}
