//! Reads the header of a GGUF file: metadata and tensor locations.
//!
//! The format is defined in ggml's `docs/gguf.md`. Headers are untrusted: no length is allocated before the file was
//! found to contain as much data.

use super::blocks::Kind;
use crate::ModelError;
use crate::checkpoint::Shard;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Whether a path names a GGUF file rather than a folder.
pub fn is_gguf(path: &Path) -> bool {
    let ending = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"));
    ending && !path.is_dir()
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Whole(i128),
    /// A number. 32-bit floats are read as their shortest decimal, which is what configs contain.
    Number(f64),
    Flag(bool),
    Text(String),
    List(List),
}

/// A list whose items are read on demand: a vocabulary has some hundred thousand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct List {
    kind: u32,
    count: usize,
    bytes: Range<usize>,
}

/// A tensor of the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) shard: usize,
    pub(crate) kind: Kind,
    /// Slowest dimension first, as in the rest of this crate.
    pub(crate) shape: Vec<usize>,
    /// Byte range in the file.
    pub(crate) bytes: Range<usize>,
    /// Factors of equal parts of its values: NVFP4's second scale, one for a matrix or one for each expert.
    pub(crate) scales: Vec<f32>,
}

impl Tensor {
    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Values per row.
    pub(crate) fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// A model's GGUF file, or all files of a split one.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) path: PathBuf,
    pub(crate) shards: Vec<Shard>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
    metadata: BTreeMap<String, Value>,
}

const SPLITS: &str = "split.count";

impl Header {
    /// Maps a file and its other parts, and reads their headers.
    ///
    /// # Errors
    /// [`ModelError`] naming the file that is missing, truncated or not a GGUF file, or a tensor of an unsupported
    /// type.
    pub(crate) fn read(path: &Path) -> Result<Self, ModelError> {
        let mut all = Self {
            path: path.to_owned(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            metadata: BTreeMap::new(),
        };
        all.add(path)?;
        let count = all.whole(SPLITS).unwrap_or(1);
        for path in parts(path, count)? {
            all.add(&path)?;
        }
        Ok(all)
    }

    fn add(&mut self, path: &Path) -> Result<(), ModelError> {
        let file = crate::read::mapped(path)?;
        let shard = self.shards.len();
        let (metadata, tensors) = parse(&file, shard).map_err(|wrong| match wrong {
            HeaderError::Ends => {
                ModelError::incomplete(path, "is truncated", None, file.len() as u64)
            }
            HeaderError::Short(wanted) => {
                ModelError::incomplete(path, "is truncated", Some(wanted), file.len() as u64)
            }
            HeaderError::Said(what) => ModelError::weights(path, what),
        })?;
        for (name, tensor) in tensors {
            if self.tensors.insert(name.clone(), tensor).is_some() {
                return Err(ModelError::weights(path, format!("holds tensor `{name}` once more")));
            }
        }
        // The first file's metadata take precedence.
        for (key, value) in metadata {
            self.metadata.entry(key).or_insert(value);
        }
        self.shards.push(Shard { path: path.to_owned(), file });
        Ok(())
    }

    /// The metadata value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn whole(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Whole(whole) => u64::try_from(*whole).ok(),
            _ => None,
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    /// The items of a list; `None` if the key has no list.
    pub(crate) fn list(&self, key: &str) -> Option<Vec<Value>> {
        let Value::List(List { kind, count, bytes }) = self.get(key)? else { return None };
        // Lists are in the first file: other parts have only their number as metadata.
        let mut at = FilePosition { file: self.shards.first()?.file.get(bytes.clone())?, at: 0 };
        (0..*count).map(|_| at.value(*kind).ok()).collect()
    }

    /// The strings of a list.
    pub(crate) fn texts(&self, key: &str) -> Option<Vec<String>> {
        let text = |value| match value {
            Value::Text(text) => Some(text),
            _ => None,
        };
        self.list(key)?.into_iter().map(text).collect()
    }
}

/// The other files of a split model, derived from the name of the first: `NAME-00001-of-00003.gguf`.
fn parts(path: &Path, count: u64) -> Result<Vec<PathBuf>, ModelError> {
    if count <= 1 {
        return Ok(Vec::new());
    }
    let end = format!("-00001-of-{count:05}.gguf");
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let Some(start) = name.as_deref().and_then(|name| name.strip_suffix(&end)) else {
        let what = format!("is one of {count} files of a model, of which the first ends in {end}");
        return Err(ModelError::file(path, what)
            .hinted("name the first; the others are read from the same folder"));
    };
    let part = |nth: u64| path.with_file_name(format!("{start}-{nth:05}-of-{count:05}.gguf"));
    // No model is split into more files.
    Ok((2..=count.min(9999)).map(part).collect())
}

/// Why a header cannot be read.
enum HeaderError {
    /// It is truncated.
    Ends,
    /// The file is truncated and should have this many bytes.
    Short(u64),
    Said(String),
}

type Parsed = (BTreeMap<String, Value>, Vec<(String, Tensor)>);

fn parse(file: &[u8], shard: usize) -> Result<Parsed, HeaderError> {
    let mut at = FilePosition { file, at: 0 };
    let said = |what: &str| HeaderError::Said(what.to_owned());
    if file.get(..4) != Some(b"GGUF") {
        return Err(said("is no GGUF file: its first bytes are others"));
    }
    at.at = 4;
    match at.u32()? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => {
            return Err(said("is a GGUF file of a big-endian machine, which is not read"));
        }
        version => {
            return Err(HeaderError::Said(format!("is GGUF version {version}; 2 and 3 are read")));
        }
    }
    let (tensors, pairs) = (at.u64()?, at.u64()?);
    let mut metadata = BTreeMap::new();
    for _ in 0..pairs {
        let key = at.text()?;
        let kind = at.u32()?;
        let value = at.value(kind)?;
        metadata.insert(key, value);
    }
    let mut found = Vec::new();
    for _ in 0..tensors {
        let name = at.text()?;
        let dimensions = at.u32()?;
        if dimensions > 4 {
            return Err(HeaderError::Said(format!("tensor `{name}` has {dimensions} dimensions")));
        }
        let mut shape: Vec<u64> = (0..dimensions).map(|_| at.u64()).collect::<Result<_, _>>()?;
        shape.reverse();
        let (kind, offset) = (at.u32()?, at.u64()?);
        found.push((name, shape, kind, offset));
    }
    let alignment = match metadata.get("general.alignment") {
        Some(Value::Whole(alignment @ 1..=0x10_0000)) => *alignment as usize,
        Some(_) => return Err(said("has an alignment that cannot be")),
        None => 32,
    };
    let start = at.at.next_multiple_of(alignment);
    let located = |(name, shape, kind, offset): (String, Vec<u64>, u32, u64)| {
        let kind = Kind::of(kind).map_err(|found| {
            let read = Kind::supported();
            HeaderError::Said(format!("tensor `{name}` is {found}; {read} are read"))
        })?;
        let wrong =
            || HeaderError::Said(format!("tensor `{name}` has a shape {shape:?} that cannot be"));
        let values =
            shape.iter().try_fold(1u64, |all, side| all.checked_mul(*side)).ok_or_else(wrong)?;
        let columns = shape.last().copied().unwrap_or(1);
        if values == 0 || !columns.is_multiple_of(kind.values() as u64) {
            return Err(wrong());
        }
        let bytes = (values / kind.values() as u64).checked_mul(kind.bytes() as u64);
        let from = offset.checked_add(start as u64);
        let end = bytes.zip(from).and_then(|(bytes, from)| bytes.checked_add(from));
        let (Some(from), Some(end)) = (from, end) else { return Err(wrong()) };
        if end > file.len() as u64 {
            return Err(HeaderError::Short(end));
        }
        let shape = shape.iter().map(|side| *side as usize).collect();
        Ok((
            name,
            Tensor { shard, kind, shape, bytes: from as usize..end as usize, scales: Vec::new() },
        ))
    };
    // The largest missing size is the expected length of the file.
    let (mut all, mut short) = (Vec::new(), None::<u64>);
    for one in found.into_iter().map(located) {
        match one {
            Ok(tensor) => all.push(tensor),
            Err(HeaderError::Short(wanted)) => short = short.max(Some(wanted)),
            Err(other) => return Err(other),
        }
    }
    match short {
        Some(wanted) => Err(HeaderError::Short(wanted)),
        None => Ok((metadata, all)),
    }
}

/// A position in a file.
struct FilePosition<'a> {
    file: &'a [u8],
    at: usize,
}

impl FilePosition<'_> {
    fn take<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], HeaderError> {
        let bytes = self.file.get(self.at..).and_then(|rest| rest.first_chunk());
        self.at += SIZE;
        bytes.copied().ok_or(HeaderError::Ends)
    }

    fn u32(&mut self) -> Result<u32, HeaderError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, HeaderError> {
        self.take().map(u64::from_le_bytes)
    }

    /// Skips a string and returns its range.
    fn text_range(&mut self) -> Result<Range<usize>, HeaderError> {
        let length = usize::try_from(self.u64()?).map_err(|_| HeaderError::Ends)?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.file.len());
        let range = self.at..end.ok_or(HeaderError::Ends)?;
        self.at = range.end;
        Ok(range)
    }

    fn text(&mut self) -> Result<String, HeaderError> {
        let range = self.text_range()?;
        let text = String::from_utf8_lossy(&self.file[range]);
        Ok(text.into_owned())
    }

    fn value(&mut self, kind: u32) -> Result<Value, HeaderError> {
        let whole = |whole: i128| Ok(Value::Whole(whole));
        match kind {
            0 => whole(self.take::<1>()?[0].into()),
            1 => whole(i8::from_le_bytes(self.take()?).into()),
            2 => whole(u16::from_le_bytes(self.take()?).into()),
            3 => whole(i16::from_le_bytes(self.take()?).into()),
            4 => whole(self.u32()?.into()),
            5 => whole(i32::from_le_bytes(self.take()?).into()),
            6 => {
                let number = f32::from_le_bytes(self.take()?);
                Ok(Value::Number(number.to_string().parse().unwrap_or(f64::NAN)))
            }
            7 => Ok(Value::Flag(self.take::<1>()? != [0])),
            8 => self.text().map(Value::Text),
            9 => {
                let (kind, count) = (self.u32()?, self.u64()?);
                // No model has nested lists.
                if kind == 9 {
                    return Err(HeaderError::Said(
                        "has a list of lists, which is not read".to_owned(),
                    ));
                }
                // Every item has at least one byte.
                let count = usize::try_from(count).ok().filter(|count| *count <= self.file.len());
                let (count, start) = (count.ok_or(HeaderError::Ends)?, self.at);
                for _ in 0..count {
                    match kind {
                        8 => self.text_range().map(|_| ())?,
                        _ => self.value(kind).map(|_| ())?,
                    }
                }
                Ok(Value::List(List { kind, count, bytes: start..self.at }))
            }
            10 => whole(self.u64()?.into()),
            11 => whole(i64::from_le_bytes(self.take()?).into()),
            12 => Ok(Value::Number(f64::from_le_bytes(self.take()?))),
            other => {
                Err(HeaderError::Said(format!("has a value of type {other}, which is unknown")))
            }
        }
    }
}

#[cfg(test)]
pub(in crate::gguf) mod tests;
