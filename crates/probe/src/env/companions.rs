//! Packages compiled for one torch: their version files, and whether they compare their CUDA release with torch's on
//! import.

use super::torch_version;
use crate::Source;
use facts::Companion;
use std::path::{Path, PathBuf};

const PACKAGES: [&str; 3] = ["torchvision", "torchaudio", "torchtext"];

/// The files in which torchaudio's releases do that.
const COMPARING: [&str; 3] = ["_extension/utils.py", "_extension/__init__.py", "_extension.py"];

pub(super) fn read(source: &Source, sites: &[PathBuf]) -> Vec<Companion> {
    let one =
        |name: &&str| sites.iter().find_map(|site| companion(source, &site.join(*name), name));
    PACKAGES.iter().filter_map(one).collect()
}

fn companion(source: &Source, package: &Path, name: &str) -> Option<Companion> {
    let file = package.join("version.py");
    let text = source.text(&file)?;
    let version = torch_version::parse(&text, "")?.version;
    let comparing = COMPARING.iter().map(|file| package.join(file)).find(|file| {
        // Major and minor: torchvision compares only the major version, which is in its CUDA label.
        source.text(file).is_some_and(|text| text.contains("ta_version != t_version"))
    });
    Some(Companion {
        name: name.to_owned(),
        version,
        source: file.display().to_string(),
        compares_cuda: comparing.map(|file| file.display().to_string()),
    })
}
