//! Models by their name on the Hugging Face hub, in the cache that its own tools fill.

mod download;

pub use download::{Download, HubFile, HubHash, download};

use crate::ModelError;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folder of a model: the one named, or for a name as `org/model` that is no folder here, its snapshot in the cache of
/// the hub's tools: `$HF_HUB_CACHE`, else `$HF_HOME/hub`, else `~/.cache/huggingface/hub`. Nothing is downloaded.
///
/// # Errors
/// [`ModelError::Hub`] when the cache has no such model.
pub fn locate(model: &Path) -> Result<PathBuf, ModelError> {
    let name = model.to_str().filter(|name| is_name(name));
    match (name, cache(|name| std::env::var_os(name))) {
        (Some(name), Some(cache)) if !model.exists() => snapshot(&cache, name),
        _ => Ok(model.to_owned()),
    }
}

/// Whether this could be a name on the hub: two words with a slash between them.
fn is_name(name: &str) -> bool {
    let words: Vec<&str> = name.split('/').collect();
    let word = |word: &&str| {
        !word.starts_with('.')
            && !word.is_empty()
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    words.len() == 2 && words.iter().all(word)
}

/// The cache of the hub's tools, by these variables. Empty ones do not count.
fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("HF_HUB_CACHE")
        .or_else(|| Some(folder("HF_HOME")?.join("hub")))
        .or_else(|| Some(folder("HOME")?.join(".cache/huggingface/hub")))
}

/// The folder in which the cache holds a model.
fn held(cache: &Path, name: &str) -> PathBuf {
    cache.join(format!("models--{}", name.replace('/', "--")))
}

/// `models--org--name/refs/main` names the snapshot that was fetched last.
fn snapshot(cache: &Path, name: &str) -> Result<PathBuf, ModelError> {
    let held = held(cache, name);
    let main = held.join("refs/main");
    let hint = "--download fetches it from the hub; a folder is named by a path, as ./NAME";
    let absent = |path: &Path, what: String| ModelError::Hub {
        what: format!("{}: {what}", path.display()),
        hint: hint.to_owned(),
    };
    let revision = std::fs::read_to_string(&main).map_err(|_| {
        absent(&held, format!("the cache has no model {name}, and there is no such folder"))
    })?;
    let folder = held.join("snapshots").join(revision.trim());
    if folder.is_dir() {
        return Ok(folder);
    }
    Err(absent(&main, format!("names the snapshot {}, which is not here", revision.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_lead_to_the_cache_in_their_order() {
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
    fn names_are_told_from_folders() {
        for name in ["ibm-granite/granite-4.0-h-micro", "a/b"] {
            assert!(is_name(name), "{name}");
        }
        for folder in ["m", "./m", "../m", "a/b/c", "/m", "a/", "a b/c", ""] {
            assert!(!is_name(folder), "{folder}");
        }
    }

    #[test]
    fn the_snapshot_is_the_one_that_main_names() {
        let cache = tempfile::tempdir().unwrap();
        let held = cache.path().join("models--org--name");
        let error = |words: &str| {
            let error = snapshot(cache.path(), "org/name").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        error("the cache has no model org/name, and there is no such folder");
        std::fs::create_dir_all(held.join("refs")).unwrap();
        std::fs::write(held.join("refs/main"), "abc\n").unwrap();
        error("names the snapshot abc, which is not here");
        std::fs::create_dir_all(held.join("snapshots/abc")).unwrap();
        assert_eq!(snapshot(cache.path(), "org/name").unwrap(), held.join("snapshots/abc"));
    }
}
