//! Weights: of files, one safetensors file or a sharded index, mapped, and held against what the config describes; or
//! drawn.

use crate::drawn::DrawnModel;
use crate::{Architecture, ModelError};
use device::MappedFile;
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The file of a model that has one.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The index of a model that has several.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Bytes from which on a tensor's part of the file is let go once it is read: the weights of a loaded model would
/// otherwise lie there twice. Rows of an embedding are smaller, and read again and again.
const LARGE: usize = 64 << 10;

/// The weights of a model: of files, or drawn as they are read.
#[derive(Debug)]
pub struct Checkpoint(Source);

#[derive(Debug)]
enum Source {
    Files(Files),
    Drawn(DrawnModel),
}

/// The weights of a model's folder.
#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Located>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: MappedFile,
}

/// Where a tensor lies.
#[derive(Debug)]
struct Located {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: std::ops::Range<usize>,
}

/// What is read of a tensor's values.
pub(crate) trait Value: Copy + Send + Sync {
    fn of_f32(x: f32) -> Self;
    fn of_bf16(x: bf16) -> Self;
}

impl Value for f32 {
    fn of_f32(x: f32) -> Self {
        x
    }
    fn of_bf16(x: bf16) -> Self {
        x.to_f32()
    }
}

impl Value for bf16 {
    fn of_f32(x: f32) -> Self {
        Self::from_f32(x)
    }
    fn of_bf16(x: bf16) -> Self {
        x
    }
}

impl Checkpoint {
    /// Maps the weight files of a folder and reads their headers.
    ///
    /// # Errors
    /// [`ModelError`] naming the file that is missing, truncated or no safetensors file, or the shard that lacks a tensor
    /// its index promises.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        Ok(Self(Source::Files(Files::open(folder)?)))
    }

    /// Random weights of an architecture, the ones that [`crate::synth`] writes with this seed, without a file: no disk
    /// has to hold them, nor memory more than is read at once.
    pub fn random(architecture: &Architecture, seed: u64) -> Self {
        Self(Source::Drawn(DrawnModel::new(architecture, seed)))
    }

    /// Holds names, shapes and types against an architecture.
    ///
    /// # Errors
    /// [`ModelError::Weights`] naming the tensors that are missing, misshaped, of a type no layer takes, or unknown.
    pub(crate) fn check(&self, architecture: &Architecture) -> Result<(), ModelError> {
        match &self.0 {
            Source::Files(files) => {
                files.hold(architecture.params.iter().map(|param| (&*param.name, &*param.shape)))
            }
            // They were made from one.
            Source::Drawn(_) => Ok(()),
        }
    }

    /// Values of a tensor from `first` on, `len` of them.
    ///
    /// # Errors
    /// [`ModelError::Weights`] when a value is NaN, or the tensor is not there with so many values.
    pub(crate) fn read<V: Value>(
        &self,
        name: &str,
        first: usize,
        len: usize,
    ) -> Result<Vec<V>, ModelError> {
        match &self.0 {
            Source::Files(files) => files.read(name, first, len),
            Source::Drawn(drawn) => drawn.read(name, first, len),
        }
    }

    /// Lets go of the memory in which values of a tensor's file were kept, for those who read it in small pieces: reading
    /// one brings its neighbours back.
    pub(crate) fn release(&self, name: &str, first: usize, len: usize) {
        if let Source::Files(files) = &self.0 {
            files.release(name, first, len);
        }
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Source::Files(files) => files.bytes(),
            Source::Drawn(drawn) => drawn.bytes(),
        }
    }
}

impl Files {
    pub(crate) fn open(folder: &Path) -> Result<Self, ModelError> {
        let index = folder.join(INDEX);
        let promised = if index.exists() { Some(read_index(&index)?) } else { None };
        let mut files: Vec<PathBuf> = match &promised {
            Some(promised) => promised.values().map(|file| folder.join(file)).collect(),
            None => vec![folder.join(SINGLE)],
        };
        files.sort();
        files.dedup();
        let mut all =
            Self { folder: folder.to_owned(), shards: Vec::new(), tensors: BTreeMap::new() };
        for path in files {
            all.add(path)?;
        }
        for (name, file) in promised.iter().flatten() {
            let holder = all.tensors.get(name).map(|tensor| &all.shards[tensor.shard].path);
            if holder != Some(&folder.join(file)) {
                let what = format!("does not hold tensor `{name}`, which {INDEX} promises");
                return Err(ModelError::weights(&folder.join(file), what));
            }
        }
        Ok(all)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), ModelError> {
        let file = MappedFile::open(&path).map_err(|error| ModelError::file(&path, error))?;
        let (start, metadata) = header(&path, &file)?;
        let shard = self.shards.len();
        for (name, info) in metadata.tensors() {
            let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
            let located = Located { shard, dtype: info.dtype, shape: info.shape.clone(), bytes };
            if self.tensors.insert(name.clone(), located).is_some() {
                return Err(ModelError::weights(&path, format!("holds tensor `{name}` once more")));
            }
        }
        self.shards.push(Shard { path, file });
        Ok(())
    }

    /// Holds names, shapes and types against those that are wanted.
    pub(crate) fn hold<'a>(
        &self,
        wanted: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    ) -> Result<(), ModelError> {
        let wanted: Vec<(&str, &[usize])> = wanted.into_iter().collect();
        let known: BTreeSet<&str> = wanted.iter().map(|(name, _)| *name).collect();
        let names = wanted.iter().map(|(name, _)| *name);
        let missing: Vec<&str> = names.filter(|name| !self.tensors.contains_key(*name)).collect();
        if !missing.is_empty() {
            let what =
                format!("lacks {} that the config wants: {}", count(&missing), list(&missing));
            return Err(ModelError::weights(&self.folder, what));
        }
        for (name, shape) in &wanted {
            let found = &self.tensors[*name];
            let wrong = if found.shape != *shape {
                format!("has shape {:?}, the config wants {shape:?}", found.shape)
            } else if !matches!(found.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
                format!("is {:?}, wanted F32, BF16 or F16", found.dtype)
            } else {
                continue;
            };
            let path = &self.shards[found.shard].path;
            return Err(ModelError::weights(path, format!("tensor `{name}` {wrong}")));
        }
        // A tied head is sometimes saved beside the embedding it equals.
        let extra: Vec<&str> = self
            .tensors
            .keys()
            .map(String::as_str)
            .filter(|name| !known.contains(name) && *name != "lm_head.weight")
            .collect();
        if !extra.is_empty() {
            let what =
                format!("holds {} that the config does not know: {}", count(&extra), list(&extra));
            return Err(ModelError::weights(&self.folder, what));
        }
        Ok(())
    }

    /// The files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// Bytes of all tensors.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    fn release(&self, name: &str, first: usize, len: usize) {
        let Some(found) = self.tensors.get(name) else { return };
        let width = value_bytes(found.dtype);
        let start = found.bytes.start + first * width;
        self.shards[found.shard].file.release(start..start + len * width);
    }

    fn read<V: Value>(&self, name: &str, first: usize, len: usize) -> Result<Vec<V>, ModelError> {
        let refuse = |path: &Path, what: String| {
            Err(ModelError::weights(path, format!("tensor `{name}` {what}")))
        };
        let Some(found) = self.tensors.get(name) else {
            return refuse(&self.folder, "is missing".to_owned());
        };
        let shard = &self.shards[found.shard];
        let bytes = &shard.file[found.bytes.clone()];
        let width = value_bytes(found.dtype);
        let Some(bytes) = bytes.get(first * width..(first + len) * width) else {
            return refuse(&shard.path, format!("has shape {:?}", found.shape));
        };
        // Files are little-endian whatever the machine is.
        let (values, nan) = match found.dtype {
            Dtype::F32 => decode(bytes, f32::from_le_bytes, f32::is_nan, V::of_f32),
            Dtype::BF16 => decode(bytes, bf16::from_le_bytes, bf16::is_nan, V::of_bf16),
            Dtype::F16 => {
                decode(bytes, f16::from_le_bytes, f16::is_nan, |x: f16| V::of_f32(x.to_f32()))
            }
            other => return refuse(&shard.path, format!("is {other:?}, wanted F32, BF16 or F16")),
        };
        if values.len() * width >= LARGE {
            self.release(name, first, len);
        }
        match nan {
            Some(at) => refuse(&shard.path, format!("is NaN at element {}", first + at)),
            None => Ok(values),
        }
    }
}

/// The values of a tensor's bytes, and the first that is NaN.
fn decode<const SIZE: usize, T: Copy, V: Send>(
    bytes: &[u8],
    read: impl Fn([u8; SIZE]) -> T + Sync + Send,
    is_nan: impl Fn(T) -> bool + Sync + Send,
    convert: impl Fn(T) -> V + Sync + Send,
) -> (Vec<V>, Option<usize>) {
    let raw = bytes.as_chunks::<SIZE>().0;
    let nan = raw.par_iter().position_first(|bytes| is_nan(read(*bytes)));
    (raw.par_iter().map(|bytes| convert(read(*bytes))).collect(), nan)
}

/// Where the tensors of a file begin, and what its header says of them.
pub(crate) fn header(path: &Path, file: &[u8]) -> Result<(usize, Metadata), ModelError> {
    let read = SafeTensors::read_metadata(file);
    let (length, metadata) = read.map_err(|error| {
        let what = match error {
            SafeTensorError::HeaderTooSmall => {
                format!("is truncated: it ends after {} bytes, before its header", file.len())
            }
            SafeTensorError::InvalidHeaderLength | SafeTensorError::MetadataIncompleteBuffer => {
                format!("is truncated: its {} bytes are fewer than its header says", file.len())
            }
            other => format!("is no safetensors file ({other})"),
        };
        ModelError::weights(path, what)
    })?;
    Ok((length + size_of::<u64>(), metadata))
}

/// Of the types that are read; others are refused.
fn value_bytes(dtype: Dtype) -> usize {
    if dtype == Dtype::F32 { 4 } else { 2 }
}

/// Which file holds each tensor, by the index.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>, ModelError> {
    let text = std::fs::read_to_string(path).map_err(|error| ModelError::file(path, error))?;
    let index: serde_json::Value = serde_json::from_str(&text)
        .map_err(|error| ModelError::file(path, format!("is not JSON: {error}")))?;
    let map = index.get("weight_map").and_then(|map| map.as_object());
    let entries = map.into_iter().flatten().map(|(name, file)| {
        let file = file.as_str()?;
        // A name that leads out of the folder is no shard.
        (!file.contains(['/', '\\'])).then(|| (name.clone(), file.to_owned()))
    });
    match (map, entries.collect::<Option<BTreeMap<_, _>>>()) {
        (Some(_), Some(entries)) if !entries.is_empty() => Ok(entries),
        _ => Err(ModelError::file(path, "has no `weight_map` from tensors to files beside it")),
    }
}

fn count(names: &[&str]) -> String {
    format!("{} tensor{}", names.len(), if names.len() == 1 { "" } else { "s" })
}

/// The first names of a list.
fn list(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let shown =
        names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len() {
        0..=SHOWN => shown,
        _ => format!("{shown}, .."),
    }
}
