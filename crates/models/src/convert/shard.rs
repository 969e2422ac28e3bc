//! Converts one file: writes a new header and copies the tensor bytes in pieces, independent of the file's size.

use super::keys::KeyMap;
use crate::ModelError;
use crate::checkpoint::header;
use safetensors::tensor::{Metadata, TensorInfo};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Bytes in memory at a time.
const PIECE: usize = 4 << 20;

/// The operation on the next bytes of a file, in file order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Copy(u64),
    LeaveOut(u64),
    /// Inserts zeros that the source does not have.
    Add(u64),
}

/// The steps that convert one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// The first bytes of the new file.
    head: Vec<u8>,
    steps: Vec<Step>,
}

/// A written file and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenFile {
    pub(super) bytes: u64,
    pub(super) sha256: String,
    pub(super) source_sha256: String,
}

impl Plan {
    /// A copy.
    pub(super) fn copy(bytes: u64) -> Self {
        Self { head: Vec::new(), steps: vec![Step::Copy(bytes)] }
    }

    /// Plans a weight file with another layout's names. `published` is the original header of the published file, used
    /// if it describes the same tensors.
    ///
    /// # Errors
    /// [`ModelError`] when the file is not a safetensors file, or a tensor to drop is not zero.
    pub(super) fn of(
        path: &Path,
        map: &KeyMap,
        published: Option<&str>,
    ) -> Result<Self, ModelError> {
        let file = crate::read::mapped(path)?;
        let (start, metadata) = header(path, &file)?;
        let mut tensors = Vec::new();
        let mut steps = vec![Step::LeaveOut(start as u64)];
        // Bytes of a tensor in the new file.
        let mut end = 0;
        let mut push = |name: String, info: &TensorInfo, shape: Vec<usize>, bytes: usize| {
            let data_offsets = (end, end + bytes);
            end += bytes;
            tensors.push((name, TensorInfo { dtype: info.dtype, shape, data_offsets }));
        };
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let bytes = info.data_offsets.0..info.data_offsets.1;
            let len = bytes.len();
            if map.left_out(&name) {
                if file[start..][bytes].iter().any(|byte| *byte != 0) {
                    let what = format!(
                        "tensor `{name}` is not zero, and the published layout has no such bias"
                    );
                    return Err(ModelError::weights(path, what));
                }
                steps.push(Step::LeaveOut(len as u64));
                continue;
            }
            match map.get(&name) {
                Some(key) => push(key.name.clone(), info, key.shape.clone(), len),
                None => push(name.clone(), info, info.shape.clone(), len),
            }
            steps.push(Step::Copy(len as u64));
            if let Some(zeros) = map.added(&name) {
                let each = len / info.shape.iter().product::<usize>().max(1);
                let added = each * zeros.key.shape.iter().product::<usize>();
                push(zeros.key.name.clone(), info, zeros.key.shape.clone(), added);
                steps.push(Step::Add(added as u64));
            }
        }
        let made = written_header(path, metadata.metadata().clone(), tensors)?;
        let head = match published {
            Some(published) if describes_the_same_tensors(published, &made) => {
                framed(published.as_bytes())
            }
            _ => made,
        };
        Ok(Self { head, steps: joined(steps) })
    }

    /// Bytes of the new file.
    pub(super) fn bytes(&self) -> u64 {
        let each = |step: &Step| match step {
            Step::Copy(bytes) | Step::Add(bytes) => *bytes,
            Step::LeaveOut(_) => 0,
        };
        self.head.len() as u64 + self.steps.iter().map(each).sum::<u64>()
    }

    /// Bytes of the new file's tensors.
    pub(super) fn tensor_bytes(&self) -> u64 {
        self.bytes() - self.head.len() as u64
    }

    /// Writes the new file and syncs it to disk.
    pub(super) fn write(
        &self,
        from: &mut impl Read,
        to: &mut File,
        moved: &mut dyn FnMut(u64),
    ) -> io::Result<WrittenFile> {
        let (mut source, mut target) = (Sha256::new(), Sha256::new());
        let mut buffer = vec![0; PIECE];
        to.write_all(&self.head)?;
        target.update(&self.head);
        for step in &self.steps {
            let (Step::Copy(bytes) | Step::LeaveOut(bytes) | Step::Add(bytes)) = *step;
            let mut left = bytes;
            while left > 0 {
                let piece = &mut buffer[..left.min(PIECE as u64) as usize];
                match step {
                    Step::Add(_) => piece.fill(0),
                    _ => {
                        from.read_exact(piece)?;
                        source.update(&*piece);
                    }
                }
                if !matches!(step, Step::LeaveOut(_)) {
                    to.write_all(piece)?;
                    target.update(&*piece);
                }
                left -= piece.len() as u64;
                moved(piece.len() as u64);
            }
        }
        to.sync_all()?;
        let [source_sha256, sha256] = [source, target].map(hexadecimal);
        Ok(WrittenFile { bytes: self.bytes(), sha256, source_sha256 })
    }
}

/// Merges adjacent steps of the same kind and drops empty ones.
fn joined(steps: Vec<Step>) -> Vec<Step> {
    let mut joined: Vec<Step> = Vec::new();
    for step in steps {
        match (joined.last_mut(), step) {
            (_, Step::Copy(0) | Step::LeaveOut(0) | Step::Add(0)) => {}
            (Some(Step::Copy(all)), Step::Copy(bytes))
            | (Some(Step::LeaveOut(all)), Step::LeaveOut(bytes))
            | (Some(Step::Add(all)), Step::Add(bytes)) => *all += bytes,
            _ => joined.push(step),
        }
    }
    joined
}

/// The first bytes of a file: the header's length, and the header as safetensors' own writers format it.
pub(crate) fn written_header(
    path: &Path,
    notes: Option<std::collections::HashMap<String, String>>,
    tensors: Vec<(String, TensorInfo)>,
) -> Result<Vec<u8>, ModelError> {
    let made = Metadata::new(notes, tensors).map_err(|error| error.to_string());
    let text = made.and_then(|made| serde_json::to_vec(&made).map_err(|error| error.to_string()));
    let mut text = text.map_err(|what| ModelError::weights(path, what))?;
    text.resize(text.len().next_multiple_of(size_of::<u64>()), b' ');
    Ok(framed(&text))
}

fn framed(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// Whether a header text describes the same tensors and metadata as the bytes.
fn describes_the_same_tensors(text: &str, bytes: &[u8]) -> bool {
    let parse = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
    bytes.get(size_of::<u64>()..).is_some_and(|other| parse(text.as_bytes()) == parse(other))
}

/// The header of a file if safetensors' own writers would format it differently: then it can only be reproduced from
/// its text.
pub(super) fn unusual_header(path: &Path) -> Result<Option<String>, ModelError> {
    let file = crate::read::mapped(path)?;
    let (start, metadata) = header(path, &file)?;
    let tensors = metadata.offset_keys().into_iter();
    let tensors = tensors.filter_map(|name| Some((name.clone(), metadata.info(&name)?.clone())));
    let usual = written_header(path, metadata.metadata().clone(), tensors.collect())?;
    let own = &file[..start];
    let text = String::from_utf8_lossy(&own[size_of::<u64>()..]);
    Ok((usual != own).then(|| text.into_owned()))
}

/// SHA-256 of a whole file.
pub(super) fn sha256(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hexadecimal(hash))
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
