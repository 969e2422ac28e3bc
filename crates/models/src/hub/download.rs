//! A model from the hub into the cache, laid out as the hub's own tools have it: contents under their hashes, a snapshot of
//! links to them, and last the reference that names the snapshot. What is half-way there is not found by anybody.

use super::name::{Name, is_path};
use super::{cache, held, snapshot};
use crate::ModelError;
use crate::files::{room, write_text};
use facts::byte_count;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How the sentence of a download without a network begins.
pub const NO_NETWORK: &str = "no network: ";
const OFFLINE: &str = "connect this machine, or set HF_ENDPOINT to a mirror that it reaches; without --download a model of the cache runs";

/// The hub, where `HF_ENDPOINT` names no mirror of it.
const ENDPOINT: &str = "https://huggingface.co";

/// Endings of the files that a model is made of. Weights in other formats are left there.
const ENDINGS: &[&str] = &[".safetensors", ".json", ".jinja", ".model", ".txt"];

/// The ending of those that are models by themselves, of which one is taken.
const GGUF: &str = ".gguf";

/// What a file of the hub is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubHash {
    /// SHA-256 of large files, in hexadecimal.
    Sha256(String),
    /// The name git gives to small ones: SHA-1 of `blob`, the length and the content.
    GitBlob(String),
}

/// A file that is wanted from the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// Its address.
    pub url: String,
    /// Where it goes.
    pub path: PathBuf,
    /// What it has to hash to; none for what the hub says about a model.
    pub hash: Option<HubHash>,
    /// Its size in bytes, where that is known.
    pub bytes: Option<u64>,
}

/// Who speaks HTTP.
pub trait Download {
    /// Fetches files, each into its place once its hash is the wanted one; goes on with what an earlier call has begun.
    ///
    /// # Errors
    /// What went wrong, with the file's address.
    fn fetch(&self, files: &[HubFile]) -> Result<(), String>;
}

/// The folder of a model as [`super::locate`] gives it, or its GGUF file, downloaded where it is a name on the hub: whatever of its
/// revision, the newest where none is named, is not in the cache yet.
///
/// # Errors
/// [`ModelError::Hub`] when the hub cannot be asked, is not to be (`HF_HUB_OFFLINE`), or a file is another than it says;
/// [`ModelError`] when the cache cannot be written.
pub fn download(model: &Path, by: &dyn Download) -> Result<PathBuf, ModelError> {
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
    by: &dyn Download,
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
    std::fs::create_dir_all(&held).map_err(|error| ModelError::file(&held, error))?;
    let get = |files: &[HubFile]| {
        let hint = "the same command goes on where this one ended; HF_TOKEN is for models that want an account, HF_ENDPOINT for a mirror";
        by.fetch(files).map_err(|what| match is_full(&what) {
            true => ModelError::Disk { what },
            false if what.starts_with(NO_NETWORK) => refused(what, OFFLINE),
            false => refused(what, hint),
        })
    };

    let told = held.join(".firstlight-revision");
    let wanted = of.revision.replace('/', "%2F");
    let url = format!("{endpoint}/api/models/{name}/revision/{wanted}?blobs=true");
    get(&[HubFile { url: url.clone(), path: told.clone(), hash: None, bytes: None }])?;
    let text = std::fs::read_to_string(&told).map_err(|error| ModelError::file(&told, error))?;
    // Another download may have taken it away already.
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
    let missing: Vec<&Listed> =
        revision.files.iter().filter(|file| !folder.join(&file.name).exists()).collect();
    // What an earlier download has begun takes no room once more.
    let begun = |file: &&Listed| {
        let part = held.join("blobs").join(format!("{}.part", file.blob()));
        part.metadata().map_or(0, |part| part.len())
    };
    let bytes = missing.iter().map(|file| file.bytes.saturating_sub(begun(file)));
    room(&held, bytes.fold(0, u64::saturating_add))?;
    let wanted = |file: &&Listed| HubFile {
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
    // A commit is named by its snapshot.
    if of.revision != revision.commit {
        let reference = held.join("refs").join(of.revision);
        let inside = reference.parent().unwrap_or(&held);
        std::fs::create_dir_all(inside).map_err(|error| ModelError::file(inside, error))?;
        write_text(&reference, &revision.commit)?;
    }
    snapshot(cache, of)
}

/// Whether the words of a system's error are those of a disk without room: who speaks HTTP has no more of it.
fn is_full(what: &str) -> bool {
    ["No space left on device", "Disk quota exceeded"].iter().any(|words| what.contains(words))
}

/// As the hub's tools read a switch.
fn is_true(value: &OsString) -> bool {
    let value = value.to_string_lossy().to_ascii_lowercase();
    ["1", "on", "yes", "true"].contains(&value.as_str())
}

/// What the hub says about a revision of a model.
#[derive(Debug, PartialEq, Eq)]
struct Revision {
    commit: String,
    files: Vec<Listed>,
}

/// A file of it.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    name: String,
    bytes: u64,
    hash: HubHash,
}

impl Listed {
    /// What its content is called in the cache.
    fn blob(&self) -> &str {
        let (HubHash::Sha256(hash) | HubHash::GitBlob(hash)) = &self.hash;
        hash
    }
}

impl Revision {
    /// Leaves the files that are wanted; otherwise what is wrong.
    fn choose(&mut self, of: &Name<'_>) -> Option<String> {
        let (models, others): (Vec<_>, Vec<_>) =
            self.files.drain(..).partition(|file| file.name.ends_with(GGUF));
        let told = |files: &[Listed]| {
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

    /// Reads the hub's answer; none where it is something else. What it says becomes names of files here, so that nothing
    /// is taken that could lead out of the folder.
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
            // Folders inside are those of GGUF files alone.
            if !wanted || !is_path(name) || (name.contains('/') && !gguf) {
                return Some(None);
            }
            let hash = match &file["lfs"] {
                Value::Null => HubHash::GitBlob(hexadecimal(&file["blobId"], 40)?),
                large => HubHash::Sha256(hexadecimal(&large["sha256"], 64)?),
            };
            Some(Some(Listed { name: name.to_owned(), bytes: file["size"].as_u64()?, hash }))
        };
        let files = answer["siblings"].as_array()?.iter().map(listed);
        let files: Vec<Option<Listed>> = files.collect::<Option<_>>()?;
        let commit = hexadecimal(&answer["sha"], 40)?;
        Some(Self { commit, files: files.into_iter().flatten().collect() })
    }
}

#[cfg(unix)]
fn link(to: &Path, at: &Path) -> Result<(), ModelError> {
    match std::os::unix::fs::symlink(to, at) {
        // A link that leads nowhere, whose content was taken away and came again.
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
    fn only_files_of_the_model_are_taken_and_only_by_their_hashes() {
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
