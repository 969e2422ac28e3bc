//! Converts a checkpoint to another layout's tensor names, file by file, in constant memory; an interrupted conversion
//! resumes.

mod keys;
mod record;
pub(crate) mod shard;

pub use keys::{CheckpointLayout, KeyMap, TensorKey, TensorPair, ZeroTensor};

use crate::checkpoint::{Files, INDEX};
use crate::files::{empty_folder, room, whole};
use crate::{Architecture, ModelError, read_config};
use facts::CompactSort;
use record::{Entry, RECORD, Record, Stamp};
use shard::Plan;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A planned conversion: all files have been examined, none is written.
#[derive(Debug)]
pub struct Conversion {
    model: PathBuf,
    map: KeyMap,
    files: Vec<OutputFile>,
    /// The record of the conversion that made the source, if there is one.
    earlier: Option<Record>,
}

/// A file to write.
#[derive(Debug)]
struct OutputFile {
    name: String,
    plan: Plan,
    /// Its content if it is not a copy of a file.
    text: Option<String>,
    /// The source's header, if converting back could not reproduce it.
    header: Option<String>,
}

/// The result of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConversionResult {
    /// Number of files in the folder, without the record.
    pub files: usize,
    /// Files of an earlier run, verified by their hashes.
    pub taken_up: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Whether each file equals, by its hash, the file of the published model that the source was converted from;
    /// `None` if it was not converted.
    pub as_published: Option<bool>,
}

impl Conversion {
    /// Reads a model's config and the headers of its weights, and compares them with the map.
    ///
    /// # Errors
    /// [`ModelError`] naming the file, key or tensor; [`ModelError::Convert`] if the model has nothing to convert.
    pub fn read(model: &Path, to: CheckpointLayout) -> Result<Self, ModelError> {
        let architecture = Architecture::of(&read_config(model)?)?;
        let map = KeyMap::of(&architecture, to)?;
        let checkpoint = Files::open(model)?;
        if checkpoint.is_packed() {
            let what = format!("the weights of {} are packed in integers", model.display());
            return Err(ModelError::convert(what, "name the model that was quantised"));
        }
        if let Err(error) = checkpoint.hold(map.wanted(), &[]) {
            let reversed = KeyMap::of(&architecture, to.other())?;
            if checkpoint.hold(reversed.wanted(), &[]).is_ok() {
                let what = format!("the weights of {} are {} already", model.display(), to.name());
                let hint = format!("--to {} converts them", to.other().name());
                return Err(ModelError::convert(what, hint));
            }
            return Err(error);
        }
        let earlier =
            Record::read(model).filter(|record| record.complete && record.is_to(to.other()));
        let mut files = Vec::new();
        for path in checkpoint.paths() {
            let name = file_name(path);
            let held = earlier.as_ref().and_then(|earlier| earlier.files.get(&name));
            let published = held.and_then(|entry| entry.source.header.as_deref());
            let plan = Plan::of(path, &map, published)?;
            let header = shard::unusual_header(path)?;
            files.push(OutputFile { name, plan, text: None, header });
        }
        let all = Self { model: model.to_owned(), map, files, earlier };
        all.with_other_files(&checkpoint)
    }

    /// Adds the other files: the index with its new names, and copies. config.json is last, since a folder without it
    /// is not a model.
    fn with_other_files(mut self, checkpoint: &Files) -> Result<Self, ModelError> {
        let weights: Vec<String> = self.files.iter().map(|file| file.name.clone()).collect();
        let index = self.model.join(INDEX);
        if index.exists() {
            let text = self.index(&index, checkpoint.bytes())?;
            let plan = Plan::copy(text.len() as u64);
            self.files.push(OutputFile {
                name: INDEX.to_owned(),
                plan,
                text: Some(text),
                header: None,
            });
        }
        let failed = |error: std::io::Error| ModelError::file(&self.model, error);
        let mut others = Vec::new();
        for entry in std::fs::read_dir(&self.model).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = file_name(&path);
            let skipped = name == INDEX || name == RECORD || name.starts_with('.');
            // Weights in another format or of another set of shards would have the old names.
            let weight = [".safetensors", ".bin", ".part"].iter().any(|end| name.ends_with(end));
            if path.is_file() && !skipped && !weight && !weights.contains(&name) {
                others.push((name == CONFIG, name, Stamp::of(&path)?.bytes));
            }
        }
        others.compact_sort();
        self.files.extend(others.into_iter().map(|(_, name, bytes)| OutputFile {
            name,
            plan: Plan::copy(bytes),
            text: None,
            header: None,
        }));
        Ok(self)
    }

    /// The index with the new names, for tensors of `bytes` bytes in total.
    fn index(&self, path: &Path, bytes: u64) -> Result<String, ModelError> {
        let mut index = crate::read_json(path)?;
        let now = self.files.iter().map(|file| file.plan.tensor_bytes()).sum::<u64>();
        if let Some(map) = index.get_mut("weight_map").and_then(serde_json::Value::as_object_mut) {
            let mut renamed = serde_json::Map::new();
            for (name, file) in map.iter().filter(|(name, _)| !self.map.left_out(name)) {
                let key = self.map.get(name).map_or(name, |key| &key.name);
                renamed.insert(key.clone(), file.clone());
                if let Some(zeros) = self.map.added(name) {
                    renamed.insert(zeros.key.name.clone(), file.clone());
                }
            }
            *map = renamed;
        }
        if let Some(total) = index.pointer_mut("/metadata/total_size") {
            // Some writers count a tied tensor twice, so only the difference is applied.
            let was = total.as_u64().unwrap_or(bytes);
            *total = was.saturating_add(now).saturating_sub(bytes).into();
        }
        Ok(format!("{index:#}\n"))
    }

    /// The mapping of tensors.
    pub fn map(&self) -> &KeyMap {
        &self.map
    }

    /// Total bytes of the files to write.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.plan.bytes()).sum()
    }

    /// Opens an empty or absent folder, or the result of an interrupted run, whose complete files are kept.
    ///
    /// # Errors
    /// [`ModelError::Convert`] when the folder contains something else, or the disk is too small.
    pub fn begin<'a>(
        &'a self,
        folder: &'a Path,
        resume: bool,
    ) -> Result<ConversionWriter<'a>, ModelError> {
        let record = self.record(folder, resume)?;
        let mut proven = Vec::new();
        for file in &self.files {
            let source = Stamp::of(&self.model.join(&file.name))?;
            let held = record.files.get(&file.name);
            proven.push(held.is_some_and(|held| held.is_proven(&folder.join(&file.name), source)));
        }
        let missing = self.files.iter().zip(&proven).filter(|(_, proven)| !**proven);
        room(folder, missing.map(|(file, _)| file.plan.bytes()).sum())?;
        Ok(ConversionWriter { conversion: self, folder, record, proven })
    }

    /// The record to resume from.
    fn record(&self, folder: &Path, resume: bool) -> Result<Record, ModelError> {
        let (what, hint) = match Record::read(folder) {
            None => {
                empty_folder(folder)?;
                return Ok(Record::new(&self.map));
            }
            Some(mut record) if resume && record.is_of(&self.map) => {
                record.complete = false;
                return Ok(record);
            }
            Some(_) if resume => ("another conversion", "name another folder for this one"),
            Some(_) => ("a conversion", "continue it with --resume, or name another folder"),
        };
        Err(ModelError::convert(format!("{} holds {what} already", folder.display()), hint))
    }
}

/// A conversion with its target folder.
#[derive(Debug)]
pub struct ConversionWriter<'a> {
    conversion: &'a Conversion,
    folder: &'a Path,
    record: Record,
    /// For each file, whether it is complete already.
    proven: Vec<bool>,
}

impl ConversionWriter<'_> {
    /// Bytes of the files that are still to be written.
    pub fn bytes(&self) -> u64 {
        let missing = self.conversion.files.iter().zip(&self.proven);
        missing.filter(|(_, proven)| !**proven).map(|(file, _)| file.plan.bytes()).sum()
    }

    /// Writes the missing files. Each is written under a temporary name, synced, hashed and renamed; `moved` is called
    /// with the file's name and the bytes written.
    ///
    /// # Errors
    /// [`ModelError::Convert`] when a file cannot be written. Files completed before that stay.
    pub fn write(
        mut self,
        mut moved: impl FnMut(&str, u64),
    ) -> Result<ConversionResult, ModelError> {
        let Conversion { files, earlier, .. } = self.conversion;
        self.record.save(self.folder).map_err(stopped)?;
        for file in files.iter().zip(&self.proven).filter(|(_, proven)| !**proven).map(|of| of.0) {
            let entry = self.write_file(file, &mut |bytes| moved(&file.name, bytes))?;
            self.record.files.insert(file.name.clone(), entry);
            self.record.save(self.folder).map_err(stopped)?;
        }
        self.record.complete = true;
        self.record.save(self.folder).map_err(stopped)?;
        let as_published = |earlier: &Record| {
            files.iter().all(|file| {
                let [was, is] = [earlier, &self.record].map(|record| record.files.get(&file.name));
                matches!((was, is), (Some(was), Some(is)) if was.source.sha256 == is.sha256)
            })
        };
        Ok(ConversionResult {
            files: files.len(),
            taken_up: self.proven.iter().filter(|proven| **proven).count(),
            bytes: self.conversion.bytes(),
            as_published: earlier.as_ref().map(as_published),
        })
    }

    fn write_file(
        &self,
        file: &OutputFile,
        moved: &mut dyn FnMut(u64),
    ) -> Result<Entry, ModelError> {
        let source = self.conversion.model.join(&file.name);
        let stamp = Stamp::of(&source)?;
        let mut from: Box<dyn Read> = match &file.text {
            Some(text) => Box::new(text.as_bytes()),
            None => {
                Box::new(File::open(&source).map_err(|error| ModelError::file(&source, error))?)
            }
        };
        let written = whole(&self.folder.join(&file.name), |partial| {
            let mut to = File::create(partial)?;
            file.plan.write(&mut from, &mut to, moved)
        });
        let mut written = written.map_err(stopped)?;
        if file.text.is_some() {
            written.source_sha256 =
                shard::sha256(&source).map_err(|error| ModelError::file(&source, error))?;
        }
        Ok(Entry::new(written, stamp, file.header.clone()))
    }
}

/// Without this file a folder is not a model.
const CONFIG: &str = "config.json";

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The error of a conversion that could not write.
fn stopped(error: ModelError) -> ModelError {
    let hint =
        "files under their final names are complete; continue with --resume once there is room";
    ModelError::convert(error.to_string(), hint)
}
