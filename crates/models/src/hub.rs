//! Finds models by their Hugging Face hub name in the cache of the hub's tools.

mod download;
mod name;

pub use download::{Downloader, HubFile, HubHash, NO_NETWORK, download};

use crate::ModelError;
use facts::CompactSort;
use name::Name;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folder or GGUF file of a model: an existing path, or for a name `org/model` its snapshot in the cache of the
/// hub's tools: `$HF_HUB_CACHE`, else `$HF_HOME/hub`, else `~/.cache/huggingface/hub`. `org/model@REVISION` is another
/// snapshot; `org/model:FILE.gguf` or `org/model:Q4_K_M` is a file of it. Nothing is downloaded.
///
/// # Errors
/// [`ModelError::Hub`] when the cache has no such model.
pub fn locate(model: &Path) -> Result<PathBuf, ModelError> {
    let name = model.to_str().and_then(Name::of);
    match (name, cache(|name| std::env::var_os(name))) {
        (Some(name), Some(cache)) if !model.exists() => snapshot(&cache, &name),
        _ => Ok(model.to_owned()),
    }
}

/// The cache folder, given these environment variables. Empty ones are ignored.
fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("HF_HUB_CACHE")
        .or_else(|| Some(folder("HF_HOME")?.join("hub")))
        .or_else(|| Some(folder("HOME")?.join(".cache/huggingface/hub")))
}

/// The folder of a model in the cache.
fn held(cache: &Path, name: &str) -> PathBuf {
    cache.join(format!("models--{}", name.replace('/', "--")))
}

/// The snapshot of a revision: `models--org--name/refs/main` names the one fetched last; a commit names its snapshot
/// directly.
fn snapshot(cache: &Path, of: &Name<'_>) -> Result<PathBuf, ModelError> {
    let name = of.name;
    let held = held(cache, name);
    let main = held.join("refs").join(of.revision);
    let hint = "--download fetches it from the hub; a folder is named by a path, as ./NAME";
    let absent = |path: &Path, what: String| ModelError::Hub {
        what: format!("{}: {what}", path.display()),
        hint: hint.to_owned(),
    };
    let commit = held.join("snapshots").join(of.revision);
    let revision = match std::fs::read_to_string(&main) {
        Ok(revision) => revision,
        Err(_) if commit.is_dir() => of.revision.to_owned(),
        Err(_) => {
            let shown = match of.revision {
                name::MAIN => name.to_owned(),
                revision => format!("{name} at {revision}"),
            };
            let what = format!("the cache has no model {shown}, and there is no such folder");
            return Err(absent(&held, what));
        }
    };
    let folder = held.join("snapshots").join(revision.trim());
    if !folder.is_dir() {
        let what = format!("names the snapshot {}, which is not here", revision.trim());
        return Err(absent(&main, what));
    }
    let Some(file) = of.file else { return Ok(folder) };
    let mut found: Vec<String> =
        files(&folder, "").into_iter().filter(|path| of.is_file(path)).collect();
    // The first file of a split model.
    found.compact_sort();
    match found.first() {
        Some(path) => Ok(folder.join(path)),
        None => Err(absent(&folder, format!("has no file {file}"))),
    }
}

/// Files of a snapshot and its subfolders, by relative path.
fn files(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let inside = entries.flat_map(|entry| {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => files(&entry.path(), &format!("{name}/")),
            false => vec![name],
        }
    });
    inside.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_variables_apply_in_order() {
        let all = [("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("HOME", "/c")];
        let with = |set: &[(&str, &str)]| {
            cache(|name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into()))
        };
        assert_eq!(with(&all), Some("/a".into()));
        assert_eq!(with(&all[1..]), Some("/b/hub".into()));
        assert_eq!(with(&all[2..]), Some("/c/.cache/huggingface/hub".into()));
        assert_eq!(
            with(&[("HF_HUB_CACHE", ""), ("HOME", "/c")]),
            Some("/c/.cache/huggingface/hub".into())
        );
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn snapshot_of_main_is_found() {
        let cache = tempfile::tempdir().unwrap();
        let held = cache.path().join("models--org--name");
        let of = |text: &'static str| snapshot(cache.path(), &Name::of(text).unwrap());
        let error = |words: &str| {
            let error = of("org/name").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        error("the cache has no model org/name, and there is no such folder");
        std::fs::create_dir_all(held.join("refs")).unwrap();
        std::fs::write(held.join("refs/main"), "abc\n").unwrap();
        error("names the snapshot abc, which is not here");
        let here = held.join("snapshots/abc");
        std::fs::create_dir_all(here.join("big")).unwrap();
        assert_eq!(of("org/name").unwrap(), here);
        assert_eq!(of("org/name@abc").unwrap(), here);
        let other = of("org/name@v2").unwrap_err().to_string();
        assert!(other.contains("the cache has no model org/name at v2"), "{other}");
        for file in
            ["m-Q8_0.gguf", "big/m-Q4_0-00002-of-00002.gguf", "big/m-Q4_0-00001-of-00002.gguf"]
        {
            std::fs::write(here.join(file), "").unwrap();
        }
        assert_eq!(of("org/name:Q8_0").unwrap(), here.join("m-Q8_0.gguf"));
        assert_eq!(of("org/name:q4_0").unwrap(), here.join("big/m-Q4_0-00001-of-00002.gguf"));
        assert!(of("org/name:m.gguf").unwrap_err().to_string().contains("has no file m.gguf"));
    }
}
