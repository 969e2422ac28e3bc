//! A copy of a run that can be shared.

use crate::failure::Failure;
use crate::redact::Redaction;
use crate::run_files::read_json;
use crate::run_folder::{sha256, write_atomically};
use anyhow::Context;
use facts::{DoctorReport, RunManifest};
use report::{FACTS_FILE, MANIFEST_FILE};
use std::path::{Path, PathBuf};

/// Copies the files of a run without names of its host and users; the manifest has the hashes of the copies.
pub(super) fn copy(run: &Path, into: &Path) -> anyhow::Result<PathBuf> {
    let Some(manifest) = read_json::<RunManifest>(run, MANIFEST_FILE)? else {
        let what = format!("{} is not a run folder: it has no {MANIFEST_FILE}", run.display());
        return Err(Failure::hinted(what, "name a folder that `firstlight check` wrote"));
    };
    if into.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        let what = format!("{} is not empty", into.display());
        return Err(Failure::hinted(what, "name a folder that is empty or does not exist yet"));
    }
    let read = |path: &str| {
        let path = run.join(path);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let mut files: Vec<(String, String)> = Vec::new();
    for artefact in &manifest.artefacts {
        files.push((artefact.path.clone(), read(&artefact.path)?));
    }
    let own = serde_json::to_string(&manifest)?;
    let texts = files.iter().map(|(_, text)| text.as_str()).chain([own.as_str()]);
    let redaction = Redaction::from_environment().for_sharing(&manifest.host, texts);

    let mut manifest = redaction.of_manifest(&manifest);
    for (path, original) in &files {
        let text = match path.as_str() {
            FACTS_FILE => {
                let doctor: DoctorReport = serde_json::from_str(original)
                    .with_context(|| format!("cannot use {}", run.join(FACTS_FILE).display()))?;
                serde_json::to_string_pretty(&redaction.of_doctor(&doctor))? + "\n"
            }
            _ => original.clone(),
        };
        let text = redaction.of(&text);
        let to = into.join(path);
        let folder = to.parent().unwrap_or(into);
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        write_atomically(&to, text.as_bytes())?;
        let artefact = manifest.artefacts.iter_mut().find(|it| it.path == *path);
        // A file that was edited after its run must not look unchanged in the copy: it keeps its old hash.
        if let Some(artefact) = artefact.filter(|it| it.sha256 == sha256(original.as_bytes())) {
            artefact.bytes = text.len() as u64;
            artefact.sha256 = sha256(text.as_bytes());
        }
    }
    let text = redaction.of(&(serde_json::to_string_pretty(&manifest)? + "\n"));
    write_atomically(&into.join(MANIFEST_FILE), text.as_bytes())?;
    Ok(into.to_owned())
}
