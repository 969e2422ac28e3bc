//! The Python package that a wheel contains in addition to the command.

use super::File;
use super::binary::Needs;
use super::build::LIBRARY;
use anyhow::{Context, bail};
use std::fs;
use std::path::Path;

/// The package's files, at their paths in the wheel, and the requirements of its library.
pub(super) struct Package {
    pub(super) files: Vec<File>,
    pub(super) needs: Needs,
}

/// Reads the package's sources and adds the library.
pub(super) fn of(root: &Path, library: &Path) -> anyhow::Result<Package> {
    let bytes = fs::read(library).with_context(|| library.display().to_string())?;
    let needs = Needs::of(&bytes).with_context(|| library.display().to_string())?;
    // The library must not be linked with torch, CUDA or Python, because it would then need one version of them.
    let foreign = ["torch", "c10", "cuda", "cublas", "python", "nvrtc"];
    let linked = needs.libraries.iter().find(|name| foreign.iter().any(|one| name.contains(one)));
    if let Some(linked) = linked {
        bail!("{} is linked with {linked}", library.display());
    }
    let mut files = vec![File::text(&format!("firstlight/{LIBRARY}"), bytes)];
    sources(&root.join("crates/python/firstlight"), "firstlight", &mut files)?;
    Ok(Package { files, needs })
}

fn sources(folder: &Path, inside: &str, files: &mut Vec<File>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let inside = format!("{inside}/{name}");
        if path.is_dir() && name != "__pycache__" {
            sources(&path, &inside, files)?;
        } else if [".py", ".pyi", ".json", "py.typed"].iter().any(|end| name.ends_with(end)) {
            files.push(File::text(&inside, fs::read(&path)?));
        }
    }
    Ok(())
}
