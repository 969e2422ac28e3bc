//! Compresses the tables in `data` with LZMA into one file, a fifth of their size, which the program embeds.

use lzma_rust2::{LzmaOptions, LzmaWriter};
use std::error::Error;
use std::io::Write;
use std::path::Path;

include!("strip.rs");

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("data");
    println!("cargo::rerun-if-changed={}", folder.display());
    println!("cargo::rerun-if-changed=strip.rs");
    let release = std::env::var("PROFILE")? == "release";
    let mut files: Vec<_> = folder
        .read_dir()?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    // A line with the name and the length in bytes precedes each table.
    let mut all = Vec::new();
    for file in files {
        let name = file.file_name().unwrap_or_default();
        let mut text = std::fs::read_to_string(&file)?;
        if release && name.to_string_lossy().starts_with("messages_") {
            text = without_samples(&text);
        }
        writeln!(all, "{} {}", name.display(), text.len())?;
        all.extend(text.into_bytes());
    }
    let options =
        LzmaOptions { nice_len: LzmaOptions::NICE_LEN_MAX, pb: 0, ..LzmaOptions::with_preset(6) };
    let mut packed = LzmaWriter::new_use_header(Vec::new(), &options, Some(all.len() as u64))?;
    packed.write_all(&all)?;
    let into = Path::new(&std::env::var("OUT_DIR")?).join("tables.lzma");
    Ok(std::fs::write(into, packed.finish()?)?)
}
