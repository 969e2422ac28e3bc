//! Weights of a model: mapped from safetensors files and checked against the config, or random.

mod headers;
mod other_formats;
mod parts;
mod scales;
mod stacked;
mod tied;

pub(crate) use headers::header;
pub(crate) use other_formats::{explain, refuse_adapter, refuse_pointer};

use crate::bitsandbytes::{self, BitsAndBytes};
use crate::float8::Scales;
use crate::gguf::{self, is_gguf};
use crate::group_quant::{self, Integers};
use crate::mxfp4::{self, BLOCKS, SCALES};
use crate::nvfp4;
use crate::params::Param;
use crate::random_weights::RandomModel;
use crate::values::{Value, ValueSource, Values};
use crate::{Architecture, Config, ModelError, read_config};
use architectures::{GroupQuantization, Quantization, StorageFormat, TensorShapes};
use device::MappedFile;
use facts::{CompactCollect, CompactSort};
use headers::{read_index, unindexed_weight_files};
use safetensors::tensor::Dtype;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, atomic::AtomicU64};

/// The file name of weights in one file.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The file name of the index of sharded weights.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Name suffixes of packed weights, after the module's name.
const PACKED: [&str; 2] = [".weight_packed", ".qweight"];

/// The weights of a model: in files, or random and generated when they are read.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
    read: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Source {
    Files(Files),
    Random(RandomModel),
    Gguf(gguf::Weights),
}

/// The weights in a model's folder.
#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, TensorLocation>,
    /// Scales of float8 weights by weight name.
    scales: BTreeMap<String, Scales>,
    /// Integer weights by weight name.
    integers: BTreeMap<String, Integers>,
    /// bitsandbytes weights by weight name.
    bitsandbytes: BTreeMap<String, BitsAndBytes>,
    /// Names of the tensors that belong to these weights: scales, zero points, tables.
    beside: BTreeSet<String>,
}

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) file: MappedFile,
}

/// The location of a tensor: its file, type, shape and byte range.
#[derive(Debug, Clone)]
pub(crate) struct TensorLocation {
    pub(crate) shard: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: std::ops::Range<usize>,
}

impl Checkpoint {
    /// Maps the weight files of a folder, or a GGUF file, and reads their headers.
    ///
    /// # Errors
    /// [`ModelError`] naming the file that is missing, truncated or invalid, or the shard that lacks an indexed tensor.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        if is_gguf(folder) {
            return Ok(Self::of(Source::Gguf(gguf::Weights::open(folder)?)));
        }
        Ok(Self::of(Source::Files(Files::open(folder)?)))
    }

    /// Random weights of an architecture, equal to those that [`crate::synth`] writes with this seed. They are
    /// generated when they are read and need neither disk nor memory for the whole model.
    pub fn random(architecture: &Architecture, seed: u64) -> Self {
        Self::of(Source::Random(RandomModel::new(architecture, seed)))
    }

    fn of(source: Source) -> Self {
        Self { source, read: Arc::default() }
    }

    /// Counter of the weight bytes read so far, for progress shown by another thread.
    pub fn bytes_read(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read)
    }

    /// The architecture of a config, with the tensor names and the expert layout of this checkpoint.
    ///
    /// # Errors
    /// As [`Architecture::of`] and [`Checkpoint::check`].
    pub(crate) fn describe(&self, config: &Config) -> Result<Architecture, ModelError> {
        let published = Architecture::of(config)?;
        let Source::Files(files) = &self.source else { return Ok(published) };
        let found = match self.check(&published) {
            Ok(()) => published,
            Err(_) => Architecture::of_checkpoint(config, files.shapes())?,
        };
        self.check(&found)?;
        files.check_tie(&found)?;
        Ok(found)
    }

    /// Compares names, shapes and types of the tensors with an architecture.
    ///
    /// # Errors
    /// [`ModelError::Weights`] naming the tensors that are missing, unknown, misshaped or of an unsupported type.
    pub(crate) fn check(&self, architecture: &Architecture) -> Result<(), ModelError> {
        match &self.source {
            Source::Files(files) => {
                let shapes: Vec<_> = architecture.params.iter().map(Param::laid_shape).collect();
                let wanted = architecture.params.iter().zip(&shapes);
                files.hold(
                    wanted.map(|(param, shape)| (&*param.name, &**shape)),
                    architecture.unused,
                )
            }
            // Both were made from the architecture, so there is nothing to check.
            Source::Random(_) | Source::Gguf(_) => Ok(()),
        }
    }

    /// Reads `len` values of a tensor, starting at value `first`.
    ///
    /// # Errors
    /// As [`Values::fill`], and when the tensor does not exist.
    pub(crate) fn read<V: Value>(
        &self,
        name: &str,
        first: usize,
        len: usize,
    ) -> Result<Vec<V>, ModelError> {
        self.values(name)?.read(first, len)
    }

    /// A tensor whose values can be read in any order and by any number of threads.
    ///
    /// # Errors
    /// [`ModelError::Weights`] when it does not exist.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> Result<Values<'a>, ModelError> {
        let missing =
            |path: &Path| ModelError::weights(path, format!("tensor `{name}` is missing"));
        if let Some(integers) = self.integers(name) {
            return Ok(Values::whole(name, ValueSource::Integers(integers), &self.read));
        }
        let of = match &self.source {
            Source::Files(files) => {
                if let Some(of) = files.bitsandbytes.get(name) {
                    return Ok(Values::whole(
                        name,
                        ValueSource::BitsAndBytes(&files.shards, of),
                        &self.read,
                    ));
                }
                let found = files.tensors.get(name).ok_or_else(|| missing(&files.folder))?;
                ValueSource::File(&files.shards[found.shard], found, files.scales.get(name))
            }
            Source::Gguf(weights) => {
                let found = weights.get(name).ok_or_else(|| missing(Path::new("GGUF file")))?;
                ValueSource::Gguf(&weights.shards, found)
            }
            Source::Random(drawn) => ValueSource::Random(
                drawn.get(name).ok_or_else(|| missing(Path::new("random model")))?,
            ),
        };
        Ok(Values::whole(name, of, &self.read))
    }

    /// Bytes of a parameter; 0 if it does not exist.
    pub(crate) fn bytes_of(&self, param: &Param) -> u64 {
        let name = &param.name;
        let (bytes, len) = match &self.source {
            Source::Files(files) => {
                let module = name.strip_suffix(".weight").unwrap_or(name);
                let mut packed = PACKED.iter().chain([&BLOCKS]);
                let packed = packed.find_map(|end| files.tensors.get(&format!("{module}{end}")));
                let found = files.tensors.get(name).or(packed);
                // A packed word has several values.
                let stands_for = files.integers.get(name).map(|of| &of.shape);
                let stands_for = stands_for.or(files.bitsandbytes.get(name).map(|of| &of.shape));
                found.map_or((0, 1), |found| {
                    (found.bytes.len(), stands_for.unwrap_or(&found.shape).iter().product())
                })
            }
            Source::Random(drawn) => {
                drawn.get(name).map_or((0, 1), |drawn| (drawn.bytes(), drawn.len()))
            }
            // An expert of a stacked tensor has its share of the tensor's bytes.
            Source::Gguf(weights) => {
                let (bytes, values) = weights.size(name).unwrap_or((0, 1));
                (bytes * param.len() / values.max(1), param.len())
            }
        };
        match param.cut {
            Some(_) => (bytes * param.len() / len.max(1)) as u64,
            None => bytes as u64,
        }
    }

    /// Number of values of all tensors, scales excluded.
    pub fn parameters(&self) -> u64 {
        let product = |shape: &[usize]| shape.iter().map(|side| *side as u64).product::<u64>();
        match &self.source {
            Source::Files(files) => {
                let tensors = files.tensors.iter();
                let weights = tensors.filter(|(name, _)| {
                    !files.beside.contains(*name) && !files.bitsandbytes.contains_key(*name)
                });
                let packed = files.integers.values().map(|of| &of.shape);
                let packed = packed.chain(files.bitsandbytes.values().map(|of| &of.shape));
                let packed = packed.map(|shape| product(shape));
                weights.map(|(_, found)| product(&found.shape)).chain(packed).sum()
            }
            Source::Random(drawn) => drawn.parameters(),
            Source::Gguf(weights) => weights.parameters(),
        }
    }

    /// Number of weight files; 0 for random weights.
    pub fn files(&self) -> usize {
        match &self.source {
            Source::Files(files) => files.shards.len(),
            Source::Gguf(weights) => weights.shards.len(),
            Source::Random(_) => 0,
        }
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        match &self.source {
            Source::Files(files) => files.bytes(),
            Source::Random(drawn) => drawn.bytes(),
            Source::Gguf(weights) => weights.bytes(),
        }
    }
}

impl Files {
    pub(crate) fn open(folder: &Path) -> Result<Self, ModelError> {
        if is_gguf(folder) {
            let what = format!("{} is a GGUF file", folder.display());
            return Err(ModelError::convert(what, "name a folder with safetensors files"));
        }
        let index = folder.join(INDEX);
        let (promised, total) =
            if index.exists() { read_index(&index)? } else { Default::default() };
        let mut files: Vec<PathBuf> = promised.values().map(|file| folder.join(file)).collect();
        if files.is_empty() {
            files = unindexed_weight_files(folder);
        }
        files.compact_sort();
        files.dedup();
        if let Some(absent) = files.iter().find(|file| !file.is_file()) {
            if let Some(reason) = explain(folder).filter(|_| promised.is_empty()) {
                return Err(reason);
            }
            let there = files.iter().filter_map(|file| file.metadata().ok());
            let there = there.map(|file| file.len()).sum();
            return Err(ModelError::incomplete(absent, "is missing", total, there));
        }
        let mut all = Self {
            folder: folder.to_owned(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            scales: BTreeMap::new(),
            integers: BTreeMap::new(),
            bitsandbytes: BTreeMap::new(),
            beside: BTreeSet::new(),
        };
        for path in files {
            all.add(path)?;
        }
        for (name, file) in &promised {
            let holder = all.tensors.get(name).map(|tensor| &all.shards[tensor.shard].path);
            if holder != Some(&folder.join(file)) {
                let what = format!("does not hold tensor `{name}`, which {INDEX} promises");
                return Err(ModelError::weights(&folder.join(file), what));
            }
        }
        stacked::split(&mut all.tensors);
        (all.scales, all.beside) = scales::read(&all.tensors, &all.shards)?;
        all.find_integers()?;
        let (bitsandbytes, beside) = bitsandbytes::find(&all.tensors, &all.shards)?;
        all.bitsandbytes = bitsandbytes;
        all.beside.extend(beside);
        Ok(all)
    }

    /// Finds the tensors of integer weights. The architecture has refused unsupported packings.
    fn find_integers(&mut self) -> Result<(), ModelError> {
        let packed = |name: &String| {
            let module = PACKED.iter().chain([&BLOCKS]).find_map(|end| name.strip_suffix(end));
            let module = module.or_else(|| nvfp4::packed_module(name, &self.tensors))?;
            Some((name.clone(), module.to_owned()))
        };
        let packed: Vec<_> = self.tensors.keys().filter_map(packed).collect();
        if packed.is_empty() {
            return Ok(());
        }
        let Ok(Some(quantised)) = Quantization::of(&read_config(&self.folder)?) else {
            return Ok(());
        };
        for (name, module) in packed {
            let StorageFormat::Int(int) = quantised.stored(&module) else {
                let what = format!("holds `{name}`, of which the config says no packing");
                return Err(ModelError::weights(
                    &self.shards[self.tensors[&name].shard].path,
                    what,
                ));
            };
            if int == GroupQuantization::NVFP4 {
                let (found, names) = nvfp4::find(&name, &module, &self.tensors, &self.shards)?;
                self.beside.extend(names);
                self.integers.insert(format!("{module}.weight"), found);
                continue;
            }
            let fused = name.ends_with(BLOCKS);
            let weight = if fused { module.clone() } else { format!("{module}.weight") };
            let (found, names) = match int.is_float() {
                true => {
                    let scales = match fused {
                        true => format!("{module}{SCALES}"),
                        false => format!("{module}.weight_scale"),
                    };
                    let found = mxfp4::find([&name, &scales], &self.tensors, &self.shards)?;
                    (found, vec![name, scales])
                }
                false => group_quant::find(&module, int, &self.tensors, &self.shards)?,
            };
            self.beside.extend(names);
            self.integers.insert(weight, found);
        }
        Ok(())
    }

    /// Whether weights are packed integers.
    pub(crate) fn is_packed(&self) -> bool {
        !self.integers.is_empty()
    }

    fn add(&mut self, path: PathBuf) -> Result<(), ModelError> {
        let file = crate::read::mapped(&path)?;
        let (start, metadata) = header(&path, &file)?;
        let shard = self.shards.len();
        for (name, info) in metadata.tensors() {
            let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
            let located =
                TensorLocation { shard, dtype: info.dtype, shape: info.shape.clone(), bytes };
            if self.tensors.insert(name.clone(), located).is_some() {
                return Err(ModelError::weights(&path, format!("holds tensor `{name}` once more")));
            }
        }
        self.shards.push(Shard { path, file });
        Ok(())
    }

    /// Compares names, shapes and types with the wanted ones. Tensors whose names contain an unused part are accepted.
    pub(crate) fn hold<'a>(
        &self,
        wanted: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        unused: &[&str],
    ) -> Result<(), ModelError> {
        let wanted: Vec<(&str, &[usize])> = wanted.into_iter().collect();
        let known: BTreeSet<&str> = wanted.iter().map(|(name, _)| *name).compact_set();
        let names = wanted.iter().map(|(name, _)| *name);
        let there =
            |name: &&str| self.tensors.contains_key(*name) || self.integers.contains_key(*name);
        let missing: Vec<&str> = names.filter(|name| !there(name)).collect();
        if !missing.is_empty() {
            let what =
                format!("lacks {} that the config wants: {}", count(&missing), list(&missing));
            return Err(ModelError::weights(&self.folder, what));
        }
        for (name, shape) in &wanted {
            let integers = self.integers.get(*name).map(|of| &of.shape);
            if let Some(found) = integers.or(self.bitsandbytes.get(*name).map(|of| &of.shape)) {
                if found != shape {
                    let what = format!(
                        "tensor `{name}` dequantizes to {found:?}, the config wants {shape:?}"
                    );
                    return Err(ModelError::weights(&self.folder, what));
                }
                continue;
            }
            let found = &self.tensors[*name];
            let wrong = if found.shape != *shape {
                format!("has shape {:?}, the config wants {shape:?}", found.shape)
            } else if !matches!(found.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16 | Dtype::F8_E4M3)
            {
                format!("is {:?}, expected F32, BF16, F16 or F8_E4M3", found.dtype)
            } else {
                continue;
            };
            let path = &self.shards[found.shard].path;
            return Err(ModelError::weights(path, format!("tensor `{name}` {wrong}")));
        }
        // Some writers save a tied head as well as the embedding that it equals.
        let extra: Vec<&str> = self
            .tensors
            .keys()
            .map(String::as_str)
            .filter(|name| !known.contains(name) && *name != "lm_head.weight")
            .filter(|name| !self.beside.contains(*name))
            .filter(|name| !unused.iter().any(|part| name.contains(part)))
            .collect();
        if !extra.is_empty() {
            let what =
                format!("holds {} that the config does not know: {}", count(&extra), list(&extra));
            return Err(ModelError::weights(&self.folder, what));
        }
        Ok(())
    }

    /// Names and shapes of the weights; packed ones have the shape of the weight that they represent.
    fn shapes(&self) -> TensorShapes {
        let plain = self.tensors.iter().map(|(name, found)| (name, &found.shape));
        let integers = self.integers.iter().map(|(name, of)| (name, &of.shape));
        let bitsandbytes = self.bitsandbytes.iter().map(|(name, of)| (name, &of.shape));
        let all = plain.chain(integers).chain(bitsandbytes);
        TensorShapes::new(all.map(|(name, shape)| (name.clone(), shape.clone())))
    }

    /// The files, each with its tensors sorted by name.
    pub(crate) fn by_shard(&self) -> impl Iterator<Item = (&Shard, Vec<(&str, &TensorLocation)>)> {
        self.shards.iter().enumerate().map(|(nth, shard)| {
            let inside = self.tensors.iter().filter(move |(_, found)| found.shard == nth);
            (shard, inside.map(|(name, found)| (&**name, found)).collect())
        })
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes.len() as u64).sum()
    }
}

fn count(names: &[&str]) -> String {
    format!("{} tensor{}", names.len(), if names.len() == 1 { "" } else { "s" })
}

/// The first names of a list, for messages.
fn list(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let shown =
        names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len() {
        0..=SHOWN => shown,
        _ => format!("{shown}, .."),
    }
}
