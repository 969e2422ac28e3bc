//! Random models with real names and shapes: what tests and measurements run on where weights cannot be had.

use crate::checkpoint::{INDEX, SINGLE};
use crate::convert::shard::written_header;
use crate::drawn::{Drawn, Tables};
use crate::files::{Made, Watched, room, whole, write_text};
use crate::integers::{self, IntegerValues, Integers};
use crate::mxfp4;
use crate::params::{Lie, Param};
use crate::text::tiktoken;
use crate::values::Value;
use crate::{Architecture, Checkpoint, Config, ModelError};
use architectures::{Fp8, Int, Packing, Stored};
use facts::CompactSort;
use half::bf16;
use rayon::prelude::*;
use safetensors::tensor::{Dtype, TensorInfo};
use serde_json::json;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// How a random model is drawn and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynthOptions {
    /// The same seed draws the same weights.
    pub seed: u64,
    /// Only the first layers.
    pub layers: Option<usize>,
    /// Bytes of tensors above which another file is begun.
    pub shard_bytes: usize,
}

impl Default for SynthOptions {
    fn default() -> Self {
        // Shards as large as transformers writes them.
        Self { seed: 0, layers: None, shard_bytes: 5_000_000_000 }
    }
}

/// Draws the weights of a config and writes a model's folder, with a tokenizer of single bytes: weights first and config.json
/// last, so that a folder that was left half-written is no model. Tensors are drawn and written piece by piece. Gives the
/// number of parameters.
///
/// # Errors
/// As [`synth_watched`].
pub fn synth(config: Config, folder: &Path, options: &SynthOptions) -> Result<u64, ModelError> {
    synth_watched(config, folder, options, &Watched::default())
}

/// The same for a thread that is watched, and may be stopped.
///
/// # Errors
/// [`ModelError`] when the config is of no family, the folder holds something already, the disk has not the room, or a file
/// cannot be written. Then nothing of it stays.
pub fn synth_watched(
    config: Config,
    folder: &Path,
    options: &SynthOptions,
    watched: &Watched,
) -> Result<u64, ModelError> {
    let config = cut(config, options)?;
    let architecture = Architecture::of(&config)?;
    packing(&architecture)?;
    let mut made = Made::folder(folder)?;
    let shards = shards(&architecture, options);
    let total: usize = shards.iter().flatten().map(Written::bytes).sum();
    room(folder, total as u64)?;
    let of_shard = |shard: usize| match shards.len() {
        1 => SINGLE.to_owned(),
        all => format!("model-{:05}-of-{all:05}.safetensors", shard + 1),
    };
    let mut places = serde_json::Map::new();
    for (shard, drawn) in shards.iter().enumerate() {
        for tensor in drawn {
            places.insert(tensor.name.clone(), json!(of_shard(shard)));
        }
        write(made.file(folder.join(of_shard(shard))), drawn, watched)?;
    }
    let mut text = |name: &str, text: &str| write_text(made.file(folder.join(name)), text);
    if shards.len() > 1 {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": places });
        text(INDEX, &format!("{index:#}\n"))?;
    }
    text("tiktoken.model", &tiktoken::bytes_alone())?;
    text("config.json", &config.to_text())?;
    made.keep();
    Ok(architecture.params.count())
}

/// Bytes of weights that [`synth`] writes.
///
/// # Errors
/// [`ModelError`] when the config is of no family.
pub fn synth_bytes(config: &Config, options: &SynthOptions) -> Result<u64, ModelError> {
    let architecture = Architecture::of(&cut(config.clone(), options)?)?;
    Ok(Checkpoint::random(&architecture, options.seed).bytes())
}

/// Holds that weights in integers are to be packed as they are here.
fn packing(architecture: &Architecture) -> Result<(), ModelError> {
    let other = |stored| matches!(stored, Stored::Int(Int { packing, .. }) if !matches!(packing, Packing::Rows | Packing::Mxfp4));
    if architecture.params.iter().any(|param| other(param.stored)) {
        let what = "random weights in integers are packed as compressed-tensors does it".to_owned();
        return Err(ModelError::convert(what, "take the config of a model that is not quantised"));
    }
    Ok(())
}

/// The config of the layers that are wanted.
fn cut(config: Config, options: &SynthOptions) -> Result<Config, ModelError> {
    match options.layers {
        Some(layers) => Ok(config.first_layers(layers)?),
        None => Ok(config),
    }
}

/// A tensor that is drawn when it is written, or what belongs to one that is narrower.
struct Written {
    name: String,
    shape: Vec<usize>,
    values: Values,
}

enum Values {
    Drawn(Drawn),
    /// Numbers in integers.
    Packed(Drawn),
    Bytes(Dtype, Vec<u8>),
}

impl Written {
    /// A parameter, and its scales where it has any.
    fn of(param: &Param, drawn: Drawn) -> Vec<Self> {
        if let Some(integers) = drawn.integers() {
            let mut tensors = match integers.float {
                true => Self::mxfp4(&param.name, integers),
                false => Self::packed(&param.name, integers),
            };
            if let Some(numbers) = tensors.first_mut() {
                numbers.values = Values::Packed(drawn);
            }
            return tensors;
        }
        let scales = match (param.stored, drawn.scales()) {
            (Stored::Fp8(Fp8 { suffix, .. }), Some(scales)) => {
                let bytes = scales.values().iter().flat_map(|scale| scale.to_le_bytes());
                let (name, values) =
                    (format!("{}{suffix}", param.name), Values::Bytes(Dtype::F32, bytes.collect()));
                Some(Self { name, shape: scales.shape(&param.shape), values })
            }
            _ => None,
        };
        let (name, shape) = (param.name.clone(), param.laid_shape());
        [Self { name, shape, values: Values::Drawn(drawn) }].into_iter().chain(scales).collect()
    }

    /// The tensors of a weight in integers, the numbers left out.
    fn packed(name: &str, of: &Integers) -> Vec<Self> {
        let (rows, groups) = (of.rows, of.groups());
        let mut factors = vec![0f32; 2 * rows * groups];
        let (scales, zeros) = factors.split_at_mut(rows * groups);
        // Drawn values are in no file that could not be read.
        let _ = reader(name, of, &AtomicU64::new(0)).factors(0..rows, scales, zeros);
        let scales = scales.iter().flat_map(|scale| bf16::from_f32(*scale).to_le_bytes());
        let zeros: Vec<i8> = zeros.iter().map(|zero| *zero as i8).collect();
        let of_matrix = [of.shape[of.shape.len() - 2], groups];
        let bytes = [
            Vec::new(),
            scales.collect(),
            integers::shape_bytes(&of.shape),
            integers::pack_columns(&zeros, of_matrix, of.bits),
        ];
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let tensors = integers::packed(of).into_iter().zip(bytes);
        let tensor = |((end, dtype, shape), bytes)| {
            let (name, values) = (format!("{module}.{end}"), Values::Bytes(dtype, bytes));
            Self { name, shape, values }
        };
        tensors.map(tensor).collect()
    }

    /// The tensors of a weight in MXFP4, the numbers left out.
    fn mxfp4(name: &str, of: &Integers) -> Vec<Self> {
        let mut scales = vec![0f32; of.rows * of.groups()];
        // As above.
        let _ = reader(name, of, &AtomicU64::new(0)).factors(0..of.rows, &mut scales, &mut []);
        let scales = scales.into_iter().map(mxfp4::scale_bits).collect();
        let bytes = [Vec::new(), scales];
        let tensors = mxfp4::packed(name, &of.shape).into_iter().zip(bytes);
        let tensor =
            |((name, shape), bytes)| Self { name, shape, values: Values::Bytes(Dtype::U8, bytes) };
        tensors.map(tensor).collect()
    }

    fn dtype(&self) -> Dtype {
        match &self.values {
            Values::Drawn(drawn) => drawn.dtype(),
            Values::Packed(drawn) if drawn.integers().is_some_and(|of| of.float) => Dtype::U8,
            Values::Packed(_) => Dtype::I32,
            Values::Bytes(dtype, _) => *dtype,
        }
    }

    fn bytes(&self) -> usize {
        match &self.values {
            Values::Drawn(drawn) => drawn.bytes(),
            Values::Packed(_) => self.shape.iter().product::<usize>() * self.dtype().bitsize() / 8,
            Values::Bytes(_, bytes) => bytes.len(),
        }
    }
}

fn shards(architecture: &Architecture, options: &SynthOptions) -> Vec<Vec<Written>> {
    let mut shards = vec![Vec::new()];
    let (mut tables, mut bytes) = (Tables::default(), 0);
    for param in architecture.params.iter() {
        let drawn = Drawn::new(param, options.seed, &mut tables);
        if bytes > 0 && bytes + drawn.bytes() > options.shard_bytes {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += drawn.bytes();
        if let Some(shard) = shards.last_mut() {
            shard.extend(Written::of(param, drawn));
        }
    }
    shards
}

/// Values that are in memory at once.
const PIECE: usize = 4 << 20;
/// Values that a core draws at a time.
const RUN: usize = 1 << 14;

fn write(path: &Path, drawn: &[Written], watched: &Watched) -> Result<(), ModelError> {
    // As safetensors' own writer has them: wider types first, so that each tensor is aligned, and then by name.
    let mut drawn: Vec<&Written> = drawn.iter().collect();
    drawn.compact_sort_by(|one, other| {
        let wider = other.dtype().cmp(&one.dtype());
        wider.then_with(|| one.name.cmp(&other.name))
    });
    let mut end = 0;
    let info = |tensor: &&Written| {
        let start = end;
        end += tensor.bytes();
        let (dtype, shape) = (tensor.dtype(), tensor.shape.clone());
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    };
    let infos = drawn.iter().map(info).collect();
    let notes = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let header = written_header(path, Some(notes), infos)?;
    whole(path, |partial| {
        let mut file = File::create(partial)?;
        file.write_all(&header)?;
        let mut bytes = Vec::new();
        for Written { name, values, .. } in drawn {
            let drawn = match values {
                Values::Drawn(drawn) => drawn,
                Values::Bytes(_, bytes) => {
                    file.write_all(bytes)?;
                    watched.add(bytes.len())?;
                    continue;
                }
                Values::Packed(drawn) => {
                    write_packed(name, drawn, |bytes| {
                        file.write_all(bytes)?;
                        watched.add(bytes.len())
                    })?;
                    continue;
                }
            };
            for first in (0..drawn.len()).step_by(PIECE) {
                let values = PIECE.min(drawn.len() - first);
                match drawn.dtype() {
                    Dtype::F8_E4M3 => {
                        bytes.resize(values, 0);
                        let runs = bytes.par_chunks_mut(RUN).enumerate();
                        runs.for_each(|(nth, run)| drawn.fill_float8(first + nth * RUN, run));
                    }
                    Dtype::F32 => draw(drawn, first, values, &mut bytes, f32::to_le_bytes),
                    _ => draw(drawn, first, values, &mut bytes, bf16::to_le_bytes),
                }
                file.write_all(&bytes)?;
                watched.add(bytes.len())?;
            }
        }
        Ok(())
    })
}

/// Reads a weight in integers that is drawn.
fn reader<'a>(name: &'a str, of: &'a Integers, read: &'a AtomicU64) -> IntegerValues<'a> {
    IntegerValues { name, of, shards: &[], cut: None, lie: Lie::default(), read }
}

/// Numbers as they are packed, drawn on all cores.
fn write_packed(
    name: &str,
    drawn: &Drawn,
    mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let Some(of) = drawn.integers() else { return Ok(()) };
    let (at_once, read) = ((PIECE / of.columns).max(1), AtomicU64::new(0));
    let values = reader(name, of, &read);
    for first in (0..of.rows).step_by(at_once) {
        let rows = first..of.rows.min(first + at_once);
        let row = |row: usize| {
            let mut numbers = vec![0; of.columns];
            // As above.
            let _ = values.numbers(row..row + 1, &mut numbers);
            match of.float {
                true => mxfp4::pack(&numbers),
                false => integers::pack_rows(&numbers, of.columns, of.bits),
            }
        };
        write(&rows.into_par_iter().map(row).collect::<Vec<_>>().concat())?;
    }
    Ok(())
}

/// Values as files hold them, drawn on all cores.
fn draw<V: Value, const SIZE: usize>(
    drawn: &Drawn,
    first: usize,
    count: usize,
    bytes: &mut Vec<u8>,
    of: fn(V) -> [u8; SIZE],
) {
    bytes.resize(count * SIZE, 0);
    let runs = bytes.par_chunks_mut(RUN * SIZE).enumerate();
    runs.for_each_init(Vec::new, |values, (nth, bytes)| {
        values.resize(bytes.len() / SIZE, V::default());
        // All of a tensor is always in its range.
        drawn.fill(first + nth * RUN, values);
        for (bytes, value) in bytes.as_chunks_mut::<SIZE>().0.iter_mut().zip(values) {
            *bytes = of(*value);
        }
    });
}
