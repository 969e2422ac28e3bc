//! Packs the tables below `data` into one file that the program holds: a fifth of their size.

use lzma_rust2::{LzmaOptions, LzmaWriter};
use std::error::Error;
use std::io::Write;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("data");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<_> = folder
        .read_dir()?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    // Each table follows a line with its name and its length.
    let mut all = Vec::new();
    for file in files {
        let (name, text) = (file.file_name().unwrap_or_default(), std::fs::read(&file)?);
        writeln!(all, "{} {}", name.display(), text.len())?;
        all.extend(text);
    }
    let options =
        LzmaOptions { nice_len: LzmaOptions::NICE_LEN_MAX, pb: 0, ..LzmaOptions::with_preset(6) };
    let mut packed = LzmaWriter::new_use_header(Vec::new(), &options, Some(all.len() as u64))?;
    packed.write_all(&all)?;
    let into = Path::new(&std::env::var("OUT_DIR")?).join("tables.lzma");
    Ok(std::fs::write(into, packed.finish()?)?)
}
