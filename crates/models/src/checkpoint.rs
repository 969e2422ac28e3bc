//! Weights: of files, one safetensors file or a sharded index, mapped, and held against what the config describes; or
//! drawn.

mod headers;
mod other_formats;
mod parts;
mod stacked;
mod tied;

pub(crate) use headers::header;
pub(crate) use other_formats::{explain, refuse_adapter, refuse_pointer};

use crate::drawn::DrawnModel;
use crate::float8::Scales;
use crate::gguf::{self, is_gguf};
use crate::integers::{self, Integers};
use crate::looked_up::{self, LookedUp};
use crate::mxfp4::{self, BLOCKS, SCALES};
use crate::params::Param;
use crate::values::{Of, Value, Values};
use crate::{Architecture, Config, ModelError, read_config};
use architectures::{Quantised, SCALE, SCALE_INV, Stored, TensorShapes};
use device::MappedFile;
use facts::{CompactCollect, CompactSort};
use headers::{named_otherwise, read_index};
use safetensors::tensor::Dtype;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The file of a model that has one.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The index of a model that has several.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The ends of the names of packed weights, behind those of their modules.
const PACKED: [&str; 2] = [".weight_packed", ".qweight"];

/// The weights of a model: of files, or drawn as they are read.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
    read: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Source {
    Files(Files),
    Drawn(DrawnModel),
    Gguf(gguf::Weights),
}

/// The weights of a model's folder.
#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Located>,
    /// Those of weights in float8, by the weights' names.
    scales: BTreeMap<String, Scales>,
    /// Weights in integers, by the weights' names.
    integers: BTreeMap<String, Integers>,
    /// Weights of bitsandbytes, by their own names.
    looked_up: BTreeMap<String, LookedUp>,
    /// The names of tensors that belong to such weights.
    beside: BTreeSet<String>,
}

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) file: MappedFile,
}

/// Where a tensor lies.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) shard: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: std::ops::Range<usize>,
}

impl Checkpoint {
    /// Maps the weight files of a folder, or a GGUF file, and reads their headers.
    ///
    /// # Errors
    /// [`ModelError`] naming the file that is missing, truncated or no safetensors file, or the shard that lacks a tensor
    /// its index promises.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        if is_gguf(folder) {
            return Ok(Self::of(Source::Gguf(gguf::Weights::open(folder)?)));
        }
        Ok(Self::of(Source::Files(Files::open(folder)?)))
    }

    /// Random weights of an architecture, the ones that [`crate::synth`] writes with this seed, without a file: no disk
    /// has to hold them, nor memory more than is read at once.
    pub fn random(architecture: &Architecture, seed: u64) -> Self {
        Self::of(Source::Drawn(DrawnModel::new(architecture, seed)))
    }

    fn of(source: Source) -> Self {
        Self { source, read: Arc::default() }
    }

    /// Bytes of weights that were read so far, for whoever watches another thread load them.
    pub fn bytes_read(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read)
    }

    /// The architecture of a config, with the names and the layout of experts that this checkpoint has.
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

    /// Holds names, shapes and types against an architecture.
    ///
    /// # Errors
    /// [`ModelError::Weights`] naming the tensors that are missing, misshaped, of a type no layer takes, or unknown.
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
            // They were made from one, and found by one.
            Source::Drawn(_) | Source::Gguf(_) => Ok(()),
        }
    }

    /// Values of a tensor from `first` on, `len` of them.
    ///
    /// # Errors
    /// As [`Values::fill`], and when the tensor is not there.
    pub(crate) fn read<V: Value>(
        &self,
        name: &str,
        first: usize,
        len: usize,
    ) -> Result<Vec<V>, ModelError> {
        self.values(name)?.read(first, len)
    }

    /// A tensor, whose values can be read in any order and by any number of threads.
    ///
    /// # Errors
    /// [`ModelError::Weights`] when it is not there.
    pub(crate) fn values<'a>(&'a self, name: &'a str) -> Result<Values<'a>, ModelError> {
        let missing =
            |path: &Path| ModelError::weights(path, format!("tensor `{name}` is missing"));
        let of = match &self.source {
            Source::Files(files) => {
                if let Some(integers) = self.integers(name) {
                    return Ok(Values::whole(name, Of::Integers(integers), &self.read));
                }
                if let Some(of) = files.looked_up.get(name) {
                    return Ok(Values::whole(name, Of::LookedUp(&files.shards, of), &self.read));
                }
                let found = files.tensors.get(name).ok_or_else(|| missing(&files.folder))?;
                Of::File(&files.shards[found.shard], found, files.scales.get(name))
            }
            Source::Gguf(weights) => match self.integers(name) {
                Some(integers) => Of::Integers(integers),
                None => Of::Placed(
                    &weights.shards,
                    weights.get(name).ok_or_else(|| missing(Path::new("GGUF file")))?,
                ),
            },
            Source::Drawn(drawn) => match self.integers(name) {
                Some(integers) => Of::Integers(integers),
                None => {
                    Of::Drawn(drawn.get(name).ok_or_else(|| missing(Path::new("random model")))?)
                }
            },
        };
        Ok(Values::whole(name, of, &self.read))
    }

    /// Bytes of a parameter; 0 where it is not there.
    pub(crate) fn bytes_of(&self, param: &Param) -> u64 {
        let name = &param.name;
        let (bytes, len) = match &self.source {
            Source::Files(files) => {
                let module = name.strip_suffix(".weight").unwrap_or(name);
                let mut packed = PACKED.iter().chain([&BLOCKS]);
                let packed = packed.find_map(|end| files.tensors.get(&format!("{module}{end}")));
                let found = files.tensors.get(name).or(packed);
                // Words have several numbers of what they stand for.
                let stands_for = files.integers.get(name).map(|of| &of.shape);
                let stands_for = stands_for.or(files.looked_up.get(name).map(|of| &of.shape));
                found.map_or((0, 1), |found| {
                    (found.bytes.len(), stands_for.unwrap_or(&found.shape).iter().product())
                })
            }
            Source::Drawn(drawn) => {
                drawn.get(name).map_or((0, 1), |drawn| (drawn.bytes(), drawn.len()))
            }
            // Of an expert its share of what all lie in.
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

    /// Values of all tensors but scales.
    pub fn parameters(&self) -> u64 {
        let product = |shape: &[usize]| shape.iter().map(|side| *side as u64).product::<u64>();
        match &self.source {
            Source::Files(files) => {
                let tensors = files.tensors.iter();
                let weights = tensors.filter(|(name, _)| {
                    !files.beside.contains(*name) && !files.looked_up.contains_key(*name)
                });
                let packed = files.integers.values().map(|of| &of.shape);
                let packed = packed.chain(files.looked_up.values().map(|of| &of.shape));
                let packed = packed.map(|shape| product(shape));
                weights.map(|(_, found)| product(&found.shape)).chain(packed).sum()
            }
            Source::Drawn(drawn) => drawn.parameters(),
            Source::Gguf(weights) => weights.parameters(),
        }
    }

    /// The weight files; none of a model that is drawn.
    pub fn files(&self) -> usize {
        match &self.source {
            Source::Files(files) => files.shards.len(),
            Source::Gguf(weights) => weights.shards.len(),
            Source::Drawn(_) => 0,
        }
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        match &self.source {
            Source::Files(files) => files.bytes(),
            Source::Drawn(drawn) => drawn.bytes(),
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
            files = named_otherwise(folder);
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
            looked_up: BTreeMap::new(),
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
        all.read_scales()?;
        all.find_integers()?;
        let (looked_up, beside) = looked_up::find(&all.tensors, &all.shards)?;
        all.looked_up = looked_up;
        all.beside.extend(beside);
        Ok(all)
    }

    /// Reads the scales of weights in float8, and notes what else belongs to these.
    fn read_scales(&mut self) -> Result<(), ModelError> {
        let narrow = self.tensors.iter().filter(|(_, found)| found.dtype == Dtype::F8_E4M3);
        for (name, weight) in narrow {
            let names = [SCALE, SCALE_INV].map(|suffix| format!("{name}{suffix}"));
            let scale = names.iter().find_map(|name| Some((name, self.tensors.get(name)?)));
            let Some((scale_name, scale)) = scale else {
                let what = format!("tensor `{name}` is float8 without `{}`", names[0]);
                return Err(ModelError::weights(&self.shards[weight.shard].path, what));
            };
            let shard = &self.shards[scale.shard];
            let mut values = vec![0f32; scale.shape.iter().product()];
            let of = Of::File(shard, scale, None);
            // Scales are small, and no weights that are waited for.
            Values::whole(scale_name, of, &AtomicU64::new(0)).fill(0, &mut values)?;
            let scales = Scales::new(&weight.shape, &scale.shape, values).map_err(|wanted| {
                let what = format!("tensor `{scale_name}` {:?}, wanted {wanted}", scale.shape);
                ModelError::weights(&shard.path, what)
            })?;
            self.beside.insert(scale_name.clone());
            // What activations were divided by where both are multiplied in float8: here they are not.
            if let Some(module) = name.strip_suffix(".weight") {
                self.beside.insert(format!("{module}.input_scale"));
            }
            self.scales.insert(name.clone(), scales);
        }
        Ok(())
    }

    /// Finds the tensors of weights in integers, whose packing the config tells. One that is not read is the architecture's to refuse.
    fn find_integers(&mut self) -> Result<(), ModelError> {
        let packed = |name: &String| {
            let module = PACKED.iter().chain([&BLOCKS]).find_map(|end| name.strip_suffix(end))?;
            Some((name.clone(), module.to_owned()))
        };
        let packed: Vec<_> = self.tensors.keys().filter_map(packed).collect();
        if packed.is_empty() {
            return Ok(());
        }
        let Ok(Some(quantised)) = Quantised::of(&read_config(&self.folder)?) else { return Ok(()) };
        for (name, module) in packed {
            let Stored::Int(int) = quantised.stored(&module) else {
                let what = format!("holds `{name}`, of which the config says no packing");
                return Err(ModelError::weights(
                    &self.shards[self.tensors[&name].shard].path,
                    what,
                ));
            };
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
                false => integers::find(&module, int, &self.tensors, &self.shards)?,
            };
            self.beside.extend(names);
            self.integers.insert(weight, found);
        }
        Ok(())
    }

    /// Whether weights are packed in integers.
    pub(crate) fn is_packed(&self) -> bool {
        !self.integers.is_empty()
    }

    fn add(&mut self, path: PathBuf) -> Result<(), ModelError> {
        let file = crate::read::mapped(&path)?;
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

    /// Holds names, shapes and types against those that are wanted. Tensors with an unused part in their names may be there.
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
            if let Some(found) = integers.or(self.looked_up.get(*name).map(|of| &of.shape)) {
                if found != shape {
                    let what =
                        format!("tensor `{name}` stands for {found:?}, the config wants {shape:?}");
                    return Err(ModelError::weights(&self.folder, what));
                }
                continue;
            }
            let found = &self.tensors[*name];
            let wrong = if found.shape != *shape {
                format!("has shape {:?}, the config wants {shape:?}", found.shape)
            } else if !matches!(found.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16 | Dtype::F8_E4M3)
            {
                format!("is {:?}, wanted F32, BF16, F16 or F8_E4M3", found.dtype)
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

    /// The names and shapes of weights, packed ones as what they stand for.
    fn shapes(&self) -> TensorShapes {
        let plain = self.tensors.iter().map(|(name, found)| (name, &found.shape));
        let integers = self.integers.iter().map(|(name, of)| (name, &of.shape));
        let looked_up = self.looked_up.iter().map(|(name, of)| (name, &of.shape));
        let all = plain.chain(integers).chain(looked_up);
        TensorShapes::new(all.map(|(name, shape)| (name.clone(), shape.clone())))
    }

    /// The files, each with its tensors by name.
    pub(crate) fn by_shard(&self) -> impl Iterator<Item = (&Shard, Vec<(&str, &Located)>)> {
        self.shards.iter().enumerate().map(|(nth, shard)| {
            let inside = self.tensors.iter().filter(move |(_, found)| found.shard == nth);
            (shard, inside.map(|(name, found)| (&**name, found)).collect())
        })
    }

    /// The files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// Bytes of all tensors.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes.len() as u64).sum()
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
