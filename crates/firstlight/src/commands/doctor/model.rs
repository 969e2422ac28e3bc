//! A model's folder: its config.json, and the headers of its safetensors files, which tell parameters and bytes exactly.

use crate::cli::Wanted;
use crate::failure::Failure;
use diagnose::{ModelOptions, Weights};
use facts::DoctorReport;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The longest header and config that are read: the largest published headers have a few megabytes.
const LONGEST: u64 = 100 << 20;

/// What a model's files say.
pub(in crate::commands) struct Model {
    config: String,
    path: PathBuf,
    weights: Option<Weights>,
}

/// Reads a folder with config.json, or the file itself.
pub(in crate::commands) fn read(named: &Path) -> anyhow::Result<Model> {
    let shown = named.display();
    if !named.exists() {
        let hint = "name a folder with config.json, or the file";
        return Err(Failure::hinted(format!("the model {shown} does not exist"), hint));
    }
    let path = if named.is_dir() { named.join("config.json") } else { named.to_path_buf() };
    let config = text(&path).map_err(|reason| {
        let hint = "a model's folder has a config.json, as transformers writes it";
        Failure::hinted(format!("the model {shown} has no readable config: {reason}"), hint)
    })?;
    let weights = path.parent().and_then(weights);
    Ok(Model { config, path, weights })
}

/// Adds what the model needs to the report.
pub(in crate::commands) fn judge(
    model: &Model,
    arguments: &Wanted,
    report: &mut DoctorReport,
) -> anyhow::Result<()> {
    let options = ModelOptions {
        source: model.path.display().to_string(),
        context_tokens: arguments.context,
        sequences: arguments.sequences,
        weights: model.weights.clone(),
    };
    let (wanted, findings) =
        diagnose::model(&model.config, &options, &report.machine, &report.envs, &report.findings)
            .map_err(unknown)?;
    report.findings.extend(findings);
    report.findings.sort_by(|a, b| (a.severity, &a.rule).cmp(&(b.severity, &b.rule)));
    report.model = Some(wanted);
    Ok(())
}

/// The kinds of layers a model has, each once.
pub(in crate::commands) fn layer_kinds(model: &Model) -> anyhow::Result<Vec<&'static str>> {
    let path = model.path.display().to_string();
    diagnose::layer_kinds(&model.config, &path).map_err(unknown)
}

fn unknown(error: diagnose::ModelError) -> anyhow::Error {
    let families: Vec<&str> = diagnose::FAMILIES.iter().map(|family| family.name).collect();
    Failure::hinted(error.to_string(), format!("families read: {}", families.join(", ")))
}

fn text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// Elements and bytes over all safetensors files of a folder; `None` when there are none, or one is no such file.
fn weights(folder: &Path) -> Option<Weights> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"))
        .collect();
    files.sort();
    // An index that names more files than are here belongs to a download that is not done.
    let index = text(&folder.join("model.safetensors.index.json")).ok();
    let index: Option<serde_json::Value> = index.and_then(|text| serde_json::from_str(&text).ok());
    let named = index.as_ref().and_then(|index| index.get("weight_map")?.as_object());
    let whole = named.is_none_or(|map| {
        map.values().filter_map(|file| file.as_str()).all(|file| folder.join(file).is_file())
    });
    if files.is_empty() || !whole {
        return None;
    }
    let mut all = Weights {
        parameters: 0,
        bytes: 0,
        source: format!("the headers of {} in {}", count(files.len()), folder.display()),
    };
    for file in &files {
        let (parameters, bytes) = header(file)?;
        all.parameters = all.parameters.saturating_add(parameters);
        all.bytes = all.bytes.saturating_add(bytes);
    }
    Some(all)
}

fn count(files: usize) -> String {
    format!("{files} safetensors file{}", if files == 1 { "" } else { "s" })
}

/// A safetensors header: its length in 8 bytes, then JSON with the shape and the place of each tensor.
fn header(path: &Path) -> Option<(u64, u64)> {
    let mut file = std::fs::File::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST {
        return None;
    }
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).ok()?;
    let header: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let (mut parameters, mut bytes) = (0_u64, 0_u64);
    for (name, tensor) in header.as_object()? {
        if name == "__metadata__" {
            continue;
        }
        let shape = tensor.get("shape")?.as_array()?;
        let elements = shape.iter().try_fold(1_u64, |all, side| all.checked_mul(side.as_u64()?))?;
        let [start, end] = tensor.get("data_offsets")?.as_array()?.as_slice() else { return None };
        parameters = parameters.checked_add(elements)?;
        bytes = bytes.checked_add(end.as_u64()?.checked_sub(start.as_u64()?)?)?;
    }
    Some((parameters, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn safetensors(header: &str) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"BF16","shape":[3,4],"data_offsets":[0,24]},"b":{"dtype":"F32","shape":[5],"data_offsets":[24,44]}}"#;

    #[test]
    fn headers_tell_parameters_and_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        assert_eq!(weights(folder.path()), None);
        write("model-00001-of-00002.safetensors", &safetensors(TWO));
        let one = weights(folder.path()).unwrap();
        assert_eq!((one.parameters, one.bytes), (17, 44));
        assert!(one.source.starts_with("the headers of 1 safetensors file in "), "{}", one.source);
        // A download that is not done counts for nothing.
        let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}}"#;
        write("model.safetensors.index.json", index.as_bytes());
        assert_eq!(weights(folder.path()), None);
        write("model-00002-of-00002.safetensors", &safetensors(TWO));
        assert_eq!(weights(folder.path()).unwrap().parameters, 34);
    }

    #[test]
    fn what_is_no_header_counts_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let endless = u64::MAX.to_le_bytes();
        for bytes in [
            &b""[..],
            b"short",
            &endless,
            &safetensors("[]"),
            &safetensors("{\"a\":1}"),
            &safetensors(&TWO.replace("[0,24]", "[24,0]")),
            &safetensors(&TWO.replace("[3,4]", "[18446744073709551615,4]")),
        ] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(weights(folder.path()), None, "{bytes:?}");
        }
    }
}
