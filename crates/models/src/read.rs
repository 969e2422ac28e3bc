//! Reads a model's small files: regular files of bounded size, and JSON as Python writes it.

use crate::checkpoint::{explain, refuse_adapter, refuse_pointer};
use crate::gguf::{self, is_gguf};
use crate::{Config, ModelError};
use architectures::{NonFinite, strict_json};
use device::MappedFile;
use serde_json::Value;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;

/// Maximum size of text files such as config.json and chat templates. A tokenizer.json may be larger.
const LARGEST: u64 = 64 << 20;
pub(crate) const LARGEST_TOKENIZER: u64 = 512 << 20;

/// Reads a text file of a model.
///
/// # Errors
/// [`ModelError::File`] when it is missing, a device or a named pipe, too large, or not UTF-8.
pub fn read_text(path: &Path) -> Result<String, ModelError> {
    read_text_up_to(path, LARGEST)
}

pub(crate) fn read_text_up_to(path: &Path, largest: u64) -> Result<String, ModelError> {
    let wrong = |error: std::io::Error| ModelError::file(path, error);
    let too_large = |bytes: u64| {
        ModelError::file(path, format!("has {bytes} bytes, expected at most {largest}"))
            .hinted("take the file that was published with the weights")
    };
    let about = regular(path)?;
    if about.len() > largest {
        return Err(too_large(about.len()));
    }
    // Some file systems report no length before a file is read.
    let mut bytes = Vec::with_capacity(usize::try_from(about.len()).unwrap_or(0));
    File::open(path)
        .and_then(|file| file.take(largest + 1).read_to_end(&mut bytes))
        .map_err(wrong)?;
    if bytes.len() as u64 > largest {
        return Err(too_large(bytes.len() as u64));
    }
    refuse_pointer(path, &bytes)?;
    String::from_utf8(bytes).map_err(|_| ModelError::file(path, "is not UTF-8 text"))
}

/// Refuses anything but a regular file: opening a named pipe would block, and a device has no end.
pub(crate) fn regular(path: &Path) -> Result<Metadata, ModelError> {
    let about = std::fs::metadata(path).map_err(|error| ModelError::file(path, error))?;
    if about.is_dir() {
        return Err(ModelError::file(path, std::io::Error::from(std::io::ErrorKind::IsADirectory)));
    }
    if !about.is_file() {
        return Err(ModelError::file(path, "is not a regular file")
            .hinted("take the file that was published with the weights"));
    }
    Ok(about)
}

/// Maps a file of weights.
pub(crate) fn mapped(path: &Path) -> Result<MappedFile, ModelError> {
    regular(path)?;
    let file = MappedFile::open(path).map_err(|error| ModelError::file(path, error))?;
    refuse_pointer(path, &file)?;
    Ok(file)
}

/// Reads a JSON file of a model. Python's `Infinity` becomes `{"__float__": "Infinity"}`.
///
/// # Errors
/// As [`read_text`], and when it is not JSON.
pub fn read_json(path: &Path) -> Result<Value, ModelError> {
    serde_json::from_str(&strict_json(&read_text(path)?, NonFinite::Objects))
        .map_err(|error| ModelError::file(path, format!("is not JSON: {error}")))
}

/// Reads the config.json of a model's folder, or translates a GGUF file's metadata.
///
/// # Errors
/// [`ModelError::File`] when it cannot be read, and [`ModelError::Config`] when it is not a JSON object.
pub fn read_config(folder: &Path) -> Result<Config, ModelError> {
    if is_gguf(folder) {
        return gguf::config(folder);
    }
    let path = folder.join("config.json");
    if let Some(reason) = (!path.is_file()).then(|| explain(folder)).flatten() {
        return Err(reason);
    }
    refuse_adapter(folder)?;
    parse_config(&path, &read_text(&path)?)
}

/// The config of a config.json, with the quantization of modelopt's file next to it.
///
/// # Errors
/// As [`read_config`].
pub fn parse_config(path: &Path, text: &str) -> Result<Config, ModelError> {
    let config = Config::parse(&path.display().to_string(), text)?;
    let separate = path.with_file_name("hf_quant_config.json");
    Ok(match !config.is_quantised() && separate.is_file() {
        true => config.with_hf_quant_config(&read_json(&separate)?),
        false => config,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_and_oversized_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, "[Infinity, 1]").unwrap();
        assert_eq!(read_json(&path).unwrap()[1], 1);
        assert_eq!(read_text_up_to(&path, 13).unwrap().len(), 13);
        let error = read_text_up_to(&path, 12).unwrap_err().to_string();
        assert!(error.contains("has 13 bytes, expected at most 12"), "{error}");
        std::fs::write(&path, [0xff]).unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("is not UTF-8"));
        assert!(read_text(folder.path()).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn devices_pipes_and_links_to_them_are_refused() {
        use std::process::Command;
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for path in [&pipe, &link] {
            let error = read_text(path).unwrap_err().to_string();
            assert!(error.contains("is not a regular file"), "{error}");
        }
        // A file of /proc that cannot be read.
        let endless = Path::new("/proc/self/clear_refs");
        assert!(read_text(endless).is_err());
    }
}
