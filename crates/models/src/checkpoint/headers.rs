//! Finds the weight files of a model and reads their headers.

use super::SINGLE;
use crate::{ModelError, read_json};
use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, SafeTensorError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Weight files of a folder without an index: `model.safetensors`, or otherwise every file with that extension.
pub(super) fn unindexed_weight_files(folder: &Path) -> Vec<PathBuf> {
    let single = folder.join(SINGLE);
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let weights = |path: &PathBuf| path.extension().is_some_and(|end| end == "safetensors");
    let found: Vec<PathBuf> = paths.filter(weights).collect();
    if found.is_empty() || found.contains(&single) { vec![single] } else { found }
}

/// Offset of a file's tensor data and the tensors that its header lists.
pub(crate) fn header(path: &Path, file: &[u8]) -> Result<(usize, Metadata), ModelError> {
    const LENGTH: usize = size_of::<u64>();
    let truncated =
        |wanted| ModelError::incomplete(path, "is truncated", Some(wanted), file.len() as u64);
    let error = match SafeTensors::read_metadata(file) {
        Ok((length, metadata)) => return Ok((length + LENGTH, metadata)),
        Err(error) => error,
    };
    let end =
        file.first_chunk().map(|length| u64::from_le_bytes(*length).saturating_add(LENGTH as u64));
    match (error, end) {
        (SafeTensorError::HeaderTooSmall, _) | (_, None) => Err(truncated(LENGTH as u64)),
        (SafeTensorError::InvalidHeaderLength, Some(end)) => Err(truncated(end)),
        (SafeTensorError::MetadataIncompleteBuffer, Some(end)) => {
            // The header was checked to be complete.
            let header = serde_json::from_slice::<Metadata>(&file[LENGTH..end as usize]);
            let wanted = header.map_or(0, |header| header.data_len()) as u64 + end;
            match file.len() as u64 {
                there if there < wanted => Err(truncated(wanted)),
                there => {
                    let what = format!("has {there} bytes, its header needs {wanted}");
                    Err(ModelError::weights(path, what))
                }
            }
        }
        (other, _) => Err(ModelError::weights(path, format!("is no safetensors file ({other})"))),
    }
}

/// Reads the index: the file of each tensor, and the total bytes if the index has them.
pub(super) fn read_index(
    path: &Path,
) -> Result<(BTreeMap<String, String>, Option<u64>), ModelError> {
    let index = read_json(path)?;
    let map = index.get("weight_map").and_then(|map| map.as_object());
    let entries = map.into_iter().flatten().map(|(name, file)| {
        let file = file.as_str()?;
        // A shard name that leaves the folder is refused.
        (!file.contains(['/', '\\'])).then(|| (name.clone(), file.to_owned()))
    });
    match (map, entries.collect::<Option<BTreeMap<_, _>>>()) {
        (Some(_), Some(entries)) if !entries.is_empty() => {
            Ok((entries, index["metadata"]["total_size"].as_u64()))
        }
        _ => Err(ModelError::file(path, "has no `weight_map` from tensors to files in its folder")
            .hinted("download the index that was published with the weights")),
    }
}
