//! Downloads a model from the hub into the cache, in the layout of the hub's own tools: contents under their hashes, a
//! snapshot of links to them, and last the reference that names the snapshot, so that an incomplete download is never
//! found.

use super::name::{Name, is_path};
use super::{cache, held, snapshot};
use crate::ModelError;
use crate::files::{room, write_text};
use facts::byte_count;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// First words of the error of a download without a network.
pub const NO_NETWORK: &str = "no network: ";
const NOT_THERE: &str = "check the model's name on the hub; HF_TOKEN is for models that want an account, HF_ENDPOINT for a mirror";
const OFFLINE: &str = "connect this machine, or set HF_ENDPOINT to a mirror that it reaches; without --download a model of the cache runs";

/// The hub, unless `HF_ENDPOINT` names a mirror.
const ENDPOINT: &str = "https://huggingface.co";

/// Extensions of the files of a model. Weights in other formats are not downloaded.
const ENDINGS: &[&str] = &[".safetensors", ".json", ".jinja", ".model", ".txt"];

/// Extension of single-file models, of which one is downloaded.
const GGUF: &str = ".gguf";

/// The hash of a file on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubHash {
    /// SHA-256 of large files, in hexadecimal.
    Sha256(String),
    /// Git's name of small files: SHA-1 of `blob`, the length and the content.
    GitBlob(String),
}

/// A file to download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// Its address.
    pub url: String,
    /// Its target path.
    pub path: PathBuf,
    /// Its expected hash; `None` for the hub's description of a model.
    pub hash: Option<HubHash>,
    /// Its size in bytes, if known.
    pub bytes: Option<u64>,
}

/// An HTTP client.
pub trait Downloader {
    /// Downloads files; each is moved to its path once its hash is verified. Resumes incomplete downloads.
    ///
    /// # Errors
    /// The problem, with the file's address.
    fn fetch(&self, files: &[HubFile]) -> Result<(), String>;
}

/// The folder or GGUF file of a model as [`super::locate`] returns it. If it is a name on the hub, missing files of its
/// revision are downloaded first, by default of the newest one.
///
/// # Errors
/// [`ModelError::Hub`] when the hub cannot be reached, may not be contacted (`HF_HUB_OFFLINE`), or a file has another
/// hash than listed; [`ModelError`] when the cache cannot be written.
pub fn download(model: &Path, by: &dyn Downloader) -> Result<PathBuf, ModelError> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match (model.to_str().and_then(Name::of), cache(variable)) {
        (Some(name), Some(cache)) if !model.exists() => into(&cache, &name, variable, by),
        _ => Ok(model.to_owned()),
    }
}

fn into(
    cache: &Path,
    of: &Name<'_>,
    variable: impl Fn(&str) -> Option<OsString>,
    by: &dyn Downloader,
) -> Result<PathBuf, ModelError> {
    let name = of.name;
    let refused = |what: String, hint: &str| ModelError::Hub { what, hint: hint.to_owned() };
    if variable("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)) {
        let what = format!("{name} is not to be downloaded: HF_HUB_OFFLINE is set");
        let hint = "unset it, or leave --download out to take what the cache has";
        return Err(refused(what, hint));
    }
    let endpoint = variable("HF_ENDPOINT").and_then(|value| value.into_string().ok());
    let endpoint = endpoint.as_deref().unwrap_or(ENDPOINT).trim_end_matches('/');
    let held = held(cache, name);
    std::fs::create_dir_all(&held).map_err(|error| {
        let what = format!("the model cache {} cannot be made: {error}", held.display());
        if is_full(&what) {
            return ModelError::Disk { what };
        }
        refused(what, "set HF_HUB_CACHE to a folder that can be written")
    })?;
    let get = |files: &[HubFile]| {
        let hint = "the same command resumes the download; HF_TOKEN is for models that want an account, HF_ENDPOINT for a mirror";
        by.fetch(files).map_err(|what| match is_full(&what) {
            true => ModelError::Disk { what },
            false if what.starts_with(NO_NETWORK) => refused(what, OFFLINE),
            // The hub answers 401 for a name that it does not have.
            false if [": HTTP 401", ": HTTP 404"].iter().any(|status| what.contains(status)) => {
                refused(what, NOT_THERE)
            }
            false => refused(what, hint),
        })
    };

    let told = held.join(".firstlight-revision");
    let wanted = of.revision.replace('/', "%2F");
    let url = format!("{endpoint}/api/models/{name}/revision/{wanted}?blobs=true");
    get(&[HubFile { url: url.clone(), path: told.clone(), hash: None, bytes: None }])?;
    let text = std::fs::read_to_string(&told).map_err(|error| ModelError::file(&told, error))?;
    // A concurrent download may have removed it.
    let _ = std::fs::remove_file(&told);
    let Some(mut revision) = Revision::parse(&text) else {
        let what = format!("{url} does not list a model's files");
        return Err(refused(what, "set HF_ENDPOINT to the hub or a mirror of it"));
    };

    if let Some(problem) = revision.choose(of) {
        return Err(refused(
            problem,
            "name one of its files: org/name:FILE.gguf, or org/name:Q4_K_M",
        ));
    }

    let folder = held.join("snapshots").join(&revision.commit);
    let missing: Vec<&RevisionFile> =
        revision.files.iter().filter(|file| !folder.join(&file.name).exists()).collect();
    // Data of an interrupted download takes no more space.
    let begun = |file: &&RevisionFile| {
        let part = held.join("blobs").join(format!("{}.part", file.blob()));
        part.metadata().map_or(0, |part| part.len())
    };
    let bytes = missing.iter().map(|file| file.bytes.saturating_sub(begun(file)));
    room(&held, bytes.fold(0, u64::saturating_add))?;
    let wanted = |file: &&RevisionFile| HubFile {
        url: format!("{endpoint}/{name}/resolve/{}/{}", revision.commit, file.name),
        path: held.join("blobs").join(file.blob()),
        hash: Some(file.hash.clone()),
        bytes: Some(file.bytes),
    };
    get(&missing.iter().map(wanted).collect::<Vec<_>>())?;
    std::fs::create_dir_all(&folder).map_err(|error| ModelError::file(&folder, error))?;
    for file in missing {
        let at = folder.join(&file.name);
        let inside = at.parent().unwrap_or(&folder);
        std::fs::create_dir_all(inside).map_err(|error| ModelError::file(inside, error))?;
        let up = "../".repeat(2 + file.name.matches('/').count());
        link(&Path::new(&up).join("blobs").join(file.blob()), &at)?;
    }
    // A commit needs no reference: its snapshot has its name.
    if of.revision != revision.commit {
        let reference = held.join("refs").join(of.revision);
        let inside = reference.parent().unwrap_or(&held);
        std::fs::create_dir_all(inside).map_err(|error| ModelError::file(inside, error))?;
        write_text(&reference, &revision.commit)?;
    }
    snapshot(cache, of)
}

/// Whether a message is the system's for a full disk: the HTTP client passes on the text only.
fn is_full(what: &str) -> bool {
    ["No space left on device", "Disk quota exceeded"].iter().any(|words| what.contains(words))
}

/// Parses a boolean variable as the hub's tools do.
fn is_true(value: &OsString) -> bool {
    let value = value.to_string_lossy().to_ascii_lowercase();
    ["1", "on", "yes", "true"].contains(&value.as_str())
}

/// The hub's description of a revision of a model.
#[derive(Debug, PartialEq, Eq)]
struct Revision {
    commit: String,
    files: Vec<RevisionFile>,
}

/// A file of a revision.
#[derive(Debug, PartialEq, Eq)]
struct RevisionFile {
    name: String,
    bytes: u64,
    hash: HubHash,
}

impl RevisionFile {
    /// The name of its content in the cache.
    fn blob(&self) -> &str {
        let (HubHash::Sha256(hash) | HubHash::GitBlob(hash)) = &self.hash;
        hash
    }
}

impl Revision {
    /// Removes the files that are not wanted; returns an error message if none remain.
    fn choose(&mut self, of: &Name<'_>) -> Option<String> {
        let (models, others): (Vec<_>, Vec<_>) =
            self.files.drain(..).partition(|file| file.name.ends_with(GGUF));
        let told = |files: &[RevisionFile]| {
            let all =
                files.iter().map(|file| format!("{} ({})", file.name, byte_count(file.bytes)));
            all.collect::<Vec<_>>().join(", ")
        };
        let name = of.name;
        match of.file {
            None if !models.is_empty()
                && !others.iter().any(|of| of.name.ends_with(".safetensors")) =>
            {
                Some(format!("{name} has GGUF files, each a model: {}", told(&models)))
            }
            None => {
                self.files = others;
                None
            }
            Some(file) => {
                let listed = told(&models);
                self.files = models.into_iter().filter(|model| of.is_file(&model.name)).collect();
                match (self.files.is_empty(), listed.is_empty()) {
                    (false, _) => None,
                    (true, true) => Some(format!("{name} has no GGUF file")),
                    (true, false) => Some(format!("{name} has no file {file}; it has {listed}")),
                }
            }
        }
    }

    /// Parses the hub's answer; `None` if it is something else. File names in it become local paths, so that names
    /// which leave the folder are refused.
    fn parse(text: &str) -> Option<Self> {
        let answer: Value = serde_json::from_str(text).ok()?;
        let hexadecimal = |value: &Value, digits: usize| {
            let text = value.as_str()?;
            let fits = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            fits.then(|| text.to_owned())
        };
        let listed = |file: &Value| {
            let name = file["rfilename"].as_str()?;
            let gguf = name.ends_with(GGUF);
            let wanted = gguf || ENDINGS.iter().any(|ending| name.ends_with(ending));
            // Only GGUF files may be in subfolders.
            if !wanted || !is_path(name) || (name.contains('/') && !gguf) {
                return Some(None);
            }
            let hash = match &file["lfs"] {
                Value::Null => HubHash::GitBlob(hexadecimal(&file["blobId"], 40)?),
                large => HubHash::Sha256(hexadecimal(&large["sha256"], 64)?),
            };
            Some(Some(RevisionFile { name: name.to_owned(), bytes: file["size"].as_u64()?, hash }))
        };
        let files = answer["siblings"].as_array()?.iter().map(listed);
        let files: Vec<Option<RevisionFile>> = files.collect::<Option<_>>()?;
        let commit = hexadecimal(&answer["sha"], 40)?;
        Some(Self { commit, files: files.into_iter().flatten().collect() })
    }
}

#[cfg(unix)]
fn link(to: &Path, at: &Path) -> Result<(), ModelError> {
    match std::os::unix::fs::symlink(to, at) {
        // A dangling link whose content was removed and downloaded again.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(|error| ModelError::file(at, error)),
    }
}

#[cfg(not(unix))]
fn link(to: &Path, at: &Path) -> Result<(), ModelError> {
    let content = at.with_file_name(to);
    std::fs::copy(content, at).map(drop).map_err(|error| ModelError::file(at, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn check(siblings: &str, expect: Option<&[&str]>) {
        let text = format!(r#"{{"sha": "{COMMIT}", "siblings": [{siblings}]}}"#);
        let revision = Revision::parse(&text);
        let names = revision.as_ref().map(|revision| {
            revision.files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>()
        });
        assert_eq!(names.as_deref(), expect, "{siblings}");
    }

    #[test]
    fn download_takes_only_model_files_with_matching_hashes() {
        let small =
            |name: &str| format!(r#"{{"rfilename": "{name}", "size": 3, "blobId": "{COMMIT}"}}"#);
        check(&small("config.json"), Some(&["config.json"]));
        check(&small("a/m.gguf"), Some(&["a/m.gguf"]));
        let others = [
            "README.md",
            "pytorch_model.bin",
            "../config.json",
            "a/b.json",
            ".x.json",
            "../m.gguf",
        ];
        check(&others.map(small).join(","), Some(&[]));
        let sha256 = COMMIT.to_owned() + "0123456789abcdef01234567";
        let large = |hash: &str| {
            format!(
                r#"{{"rfilename": "m.safetensors", "size": 3, "blobId": "{COMMIT}", "lfs": {{"sha256": "{hash}"}}}}"#
            )
        };
        check(&large(&sha256), Some(&["m.safetensors"]));
        check(&large("../../x"), None);
        check(r#"{"rfilename": "config.json", "size": 3}"#, None);
        for text in ["", "[]", "{}", "<html>", r#"{"sha": "../x", "siblings": []}"#] {
            assert_eq!(Revision::parse(text), None, "{text}");
        }
    }
}
