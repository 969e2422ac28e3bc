//! A checkpoint by another layout's names: file by file, in memory that does not grow with it, taken up where it ended.

mod keys;
mod record;
pub(crate) mod shard;

pub use keys::{Key, KeyMap, Layout, Pair, Zeros};

use crate::checkpoint::{Files, INDEX};
use crate::files::{empty_folder, room, whole};
use crate::{Architecture, ModelError, read_config};
use facts::CompactSort;
use record::{Entry, RECORD, Record, Stamp};
use shard::Plan;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A conversion whose files were all looked at, and none written.
#[derive(Debug)]
pub struct Conversion {
    model: PathBuf,
    map: KeyMap,
    files: Vec<Planned>,
    /// What the folder that is read was once made from.
    earlier: Option<Record>,
}

/// A file to write.
#[derive(Debug)]
struct Planned {
    name: String,
    plan: Plan,
    /// Its contents, where it is no copy of a file.
    text: Option<String>,
    /// The source's header, where a way back could not make it anew.
    header: Option<String>,
}

/// What a conversion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Converted {
    /// Files that the folder has now, the record left out.
    pub files: usize,
    /// Those that an earlier run had written, proven by their hashes.
    pub taken_up: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Whether each file equals, by its hash, the one that the model was once converted from; none where it was not.
    pub as_published: Option<bool>,
}

impl Conversion {
    /// Reads a model's config and the headers of its weights, and holds them against the map.
    ///
    /// # Errors
    /// [`ModelError`] naming the file, key or tensor; [`ModelError::Convert`] when the model has nothing to convert.
    pub fn read(model: &Path, to: Layout) -> Result<Self, ModelError> {
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
            files.push(Planned { name, plan, text: None, header });
        }
        let all = Self { model: model.to_owned(), map, files, earlier };
        all.with_other_files(&checkpoint)
    }

    /// Adds what stands beside the weights: the index by its new names, and copies; config.json last, since a folder
    /// without one is no model.
    fn with_other_files(mut self, checkpoint: &Files) -> Result<Self, ModelError> {
        let weights: Vec<String> = self.files.iter().map(|file| file.name.clone()).collect();
        let index = self.model.join(INDEX);
        if index.exists() {
            let text = self.index(&index, checkpoint.bytes())?;
            let plan = Plan::copy(text.len() as u64);
            self.files.push(Planned {
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
            // Weights in another format, or left over from another set of shards, would be by the old names.
            let weight = [".safetensors", ".bin", ".part"].iter().any(|end| name.ends_with(end));
            if path.is_file() && !skipped && !weight && !weights.contains(&name) {
                others.push((name == CONFIG, name, Stamp::of(&path)?.bytes));
            }
        }
        others.compact_sort();
        self.files.extend(others.into_iter().map(|(_, name, bytes)| Planned {
            name,
            plan: Plan::copy(bytes),
            text: None,
            header: None,
        }));
        Ok(self)
    }

    /// The index with each name as it will be, of a checkpoint with so many bytes of tensors.
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
            // Some writers count a tied tensor twice: what changes is the difference.
            let was = total.as_u64().unwrap_or(bytes);
            *total = was.saturating_add(now).saturating_sub(bytes).into();
        }
        Ok(format!("{index:#}\n"))
    }

    /// Which tensor becomes which.
    pub fn map(&self) -> &KeyMap {
        &self.map
    }

    /// Bytes of all files that will be written.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.plan.bytes()).sum()
    }

    /// Takes a folder that is empty or absent, or what an earlier run left there, and looks at what is whole in it.
    ///
    /// # Errors
    /// [`ModelError::Convert`] when the folder holds something else, or the disk has not the room.
    pub fn begin<'a>(&'a self, folder: &'a Path, resume: bool) -> Result<Begun<'a>, ModelError> {
        let record = self.record(folder, resume)?;
        let mut proven = Vec::new();
        for file in &self.files {
            let source = Stamp::of(&self.model.join(&file.name))?;
            let held = record.files.get(&file.name);
            proven.push(held.is_some_and(|held| held.is_proven(&folder.join(&file.name), source)));
        }
        let missing = self.files.iter().zip(&proven).filter(|(_, proven)| !**proven);
        room(folder, missing.map(|(file, _)| file.plan.bytes()).sum())?;
        Ok(Begun { conversion: self, folder, record, proven })
    }

    /// The record to go on with.
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
            Some(_) if resume => ("another conversion", "name a folder of its own for this one"),
            Some(_) => ("a conversion", "go on with it by --resume, or name another folder"),
        };
        Err(ModelError::convert(format!("{} holds {what} already", folder.display()), hint))
    }
}

/// A conversion that has its folder.
#[derive(Debug)]
pub struct Begun<'a> {
    conversion: &'a Conversion,
    folder: &'a Path,
    record: Record,
    /// Whether each file is there already.
    proven: Vec<bool>,
}

impl Begun<'_> {
    /// Bytes of the files that are not there yet.
    pub fn bytes(&self) -> u64 {
        let missing = self.conversion.files.iter().zip(&self.proven);
        missing.filter(|(_, proven)| !**proven).map(|(file, _)| file.plan.bytes()).sum()
    }

    /// Writes the files that are not there. Each is written under another name, on the disk, hashed and then renamed;
    /// `moved` hears which, and how many of its bytes.
    ///
    /// # Errors
    /// [`ModelError::Convert`] when a file cannot be written. What is written by then is whole.
    pub fn write(mut self, mut moved: impl FnMut(&str, u64)) -> Result<Converted, ModelError> {
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
        Ok(Converted {
            files: files.len(),
            taken_up: self.proven.iter().filter(|proven| **proven).count(),
            bytes: self.conversion.bytes(),
            as_published: earlier.as_ref().map(as_published),
        })
    }

    fn write_file(&self, file: &Planned, moved: &mut dyn FnMut(u64)) -> Result<Entry, ModelError> {
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

/// The file whose absence makes a folder no model.
const CONFIG: &str = "config.json";

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What a conversion says that could not write.
fn stopped(error: ModelError) -> ModelError {
    let hint = "what stands there by its own name is whole; go on with --resume once there is room";
    ModelError::convert(error.to_string(), hint)
}
