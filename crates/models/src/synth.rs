//! Random models with real names and shapes, for tests and measurements without published weights.

use crate::checkpoint::{INDEX, SINGLE};
use crate::convert::shard::written_header;
use crate::files::{FileProgress, TemporaryFiles, room, whole, write_text};
use crate::group_quant::{self, IntegerValues, Integers};
use crate::mxfp4;
use crate::params::{MatrixLayout, Param};
use crate::random_weights::{RandomTensor, Tables};
use crate::text::tiktoken;
use crate::values::Value;
use crate::{Architecture, Checkpoint, Config, ModelError};
use architectures::{Fp8, GroupQuantization, Packing, StorageFormat};
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

/// How a random model is generated and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynthOptions {
    /// The seed determines the weights.
    pub seed: u64,
    /// Only the first layers.
    pub layers: Option<usize>,
    /// Tensor bytes after which a new shard starts.
    pub shard_bytes: usize,
}

impl Default for SynthOptions {
    fn default() -> Self {
        // The size of transformers' shards.
        Self { seed: 0, layers: None, shard_bytes: 5_000_000_000 }
    }
}

/// A chat template for a tokenizer of single bytes, which has no control tokens.
const CHAT_TEMPLATE: &str = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}\
    {% if add_generation_prompt %}[assistant]{% endif %}\n";

/// Generates random weights for a config and writes a model's folder with a tokenizer of single bytes and a chat
/// template. Tensors are written piece by piece, and config.json last, so that an incomplete folder is not a model. Returns the number of
/// parameters.
///
/// # Errors
/// As [`synth_watched`].
pub fn synth(config: Config, folder: &Path, options: &SynthOptions) -> Result<u64, ModelError> {
    synth_watched(config, folder, options, &FileProgress::default())
}

/// [`synth`] with progress that another thread may watch and cancel.
///
/// # Errors
/// [`ModelError`] when the config is of an unsupported family, the folder is not empty, the disk is too small, or a
/// file cannot be written. Incomplete files are removed.
pub fn synth_watched(
    config: Config,
    folder: &Path,
    options: &SynthOptions,
    watched: &FileProgress,
) -> Result<u64, ModelError> {
    let config = cut(config, options)?;
    let architecture = Architecture::of(&config)?;
    packing(&architecture)?;
    let mut made = TemporaryFiles::folder(folder)?;
    let shards = shards(&architecture, options);
    let total: usize = shards.iter().flatten().map(DrawnTensor::bytes).sum();
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
    text("chat_template.jinja", CHAT_TEMPLATE)?;
    text("config.json", &config.to_text())?;
    made.keep();
    Ok(architecture.params.count())
}

/// Bytes of weights that [`synth`] writes.
///
/// # Errors
/// [`ModelError`] when the config is of an unsupported family.
pub fn synth_bytes(config: &Config, options: &SynthOptions) -> Result<u64, ModelError> {
    let architecture = Architecture::of(&cut(config.clone(), options)?)?;
    Ok(Checkpoint::random(&architecture, options.seed).bytes())
}

/// Checks that integer weights have the packing that is written here.
fn packing(architecture: &Architecture) -> Result<(), ModelError> {
    let other = |stored| matches!(stored, StorageFormat::Int(GroupQuantization { packing, .. }) if !matches!(packing, Packing::Rows | Packing::Mxfp4));
    if architecture.params.iter().any(|param| other(param.stored)) {
        let what = "random weights in integers are packed as compressed-tensors does it".to_owned();
        return Err(ModelError::convert(what, "take the config of a model that is not quantised"));
    }
    Ok(())
}

/// The config reduced to the wanted layers.
fn cut(config: Config, options: &SynthOptions) -> Result<Config, ModelError> {
    match options.layers {
        Some(layers) => Ok(config.first_layers(layers)?),
        None => Ok(config),
    }
}

/// A tensor that is generated while it is written, or one that belongs to a quantized weight.
struct DrawnTensor {
    name: String,
    shape: Vec<usize>,
    values: Values,
}

enum Values {
    Random(RandomTensor),
    /// Packed integers.
    Packed(RandomTensor),
    Bytes(Dtype, Vec<u8>),
}

impl DrawnTensor {
    /// A parameter, and its scales if it has any.
    fn of(param: &Param, drawn: RandomTensor) -> Vec<Self> {
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
            (StorageFormat::Fp8(Fp8 { suffix, .. }), Some(scales)) => {
                let bytes = scales.values().iter().flat_map(|scale| scale.to_le_bytes());
                let (name, values) =
                    (format!("{}{suffix}", param.name), Values::Bytes(Dtype::F32, bytes.collect()));
                Some(Self { name, shape: scales.shape(&param.shape), values })
            }
            _ => None,
        };
        let (name, shape) = (param.name.clone(), param.laid_shape());
        [Self { name, shape, values: Values::Random(drawn) }].into_iter().chain(scales).collect()
    }

    /// The tensors of an integer weight, without its integers.
    fn packed(name: &str, of: &Integers) -> Vec<Self> {
        let (rows, groups) = (of.rows, of.groups());
        let mut scales_and_zeros = vec![0f32; 2 * rows * groups];
        let (scales, zeros) = scales_and_zeros.split_at_mut(rows * groups);
        // Random values are in no file, so reading them cannot fail.
        let _ = reader(name, of, &AtomicU64::new(0)).scales_and_zeros(0..rows, scales, zeros);
        let scales = scales.iter().flat_map(|scale| bf16::from_f32(*scale).to_le_bytes());
        let zeros: Vec<i8> = zeros.iter().map(|zero| *zero as i8).collect();
        let of_matrix = [of.shape[of.shape.len() - 2], groups];
        let bytes = [
            Vec::new(),
            scales.collect(),
            group_quant::shape_bytes(&of.shape),
            group_quant::pack_columns(&zeros, of_matrix, of.bits),
        ];
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let tensors = group_quant::packed(of).into_iter().zip(bytes);
        let tensor = |((end, dtype, shape), bytes)| {
            let (name, values) = (format!("{module}.{end}"), Values::Bytes(dtype, bytes));
            Self { name, shape, values }
        };
        tensors.map(tensor).collect()
    }

    /// The tensors of an MXFP4 weight, without its values.
    fn mxfp4(name: &str, of: &Integers) -> Vec<Self> {
        let mut scales = vec![0f32; of.rows * of.groups()];
        // Random values are in no file, so reading them cannot fail.
        let _ =
            reader(name, of, &AtomicU64::new(0)).scales_and_zeros(0..of.rows, &mut scales, &mut []);
        let scales = scales.into_iter().map(mxfp4::scale_bits).collect();
        let bytes = [Vec::new(), scales];
        let tensors = mxfp4::packed(name, &of.shape).into_iter().zip(bytes);
        let tensor =
            |((name, shape), bytes)| Self { name, shape, values: Values::Bytes(Dtype::U8, bytes) };
        tensors.map(tensor).collect()
    }

    fn dtype(&self) -> Dtype {
        match &self.values {
            Values::Random(drawn) => drawn.dtype(),
            Values::Packed(drawn) if drawn.integers().is_some_and(|of| of.float) => Dtype::U8,
            Values::Packed(_) => Dtype::I32,
            Values::Bytes(dtype, _) => *dtype,
        }
    }

    fn bytes(&self) -> usize {
        match &self.values {
            Values::Random(drawn) => drawn.bytes(),
            Values::Packed(_) => self.shape.iter().product::<usize>() * self.dtype().bitsize() / 8,
            Values::Bytes(_, bytes) => bytes.len(),
        }
    }
}

fn shards(architecture: &Architecture, options: &SynthOptions) -> Vec<Vec<DrawnTensor>> {
    let mut shards = vec![Vec::new()];
    let (mut tables, mut bytes) = (Tables::default(), 0);
    for param in architecture.params.iter() {
        let drawn = RandomTensor::new(param, options.seed, &mut tables);
        if bytes > 0 && bytes + drawn.bytes() > options.shard_bytes {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += drawn.bytes();
        if let Some(shard) = shards.last_mut() {
            shard.extend(DrawnTensor::of(param, drawn));
        }
    }
    shards
}

/// Values in memory at a time.
const PIECE: usize = 4 << 20;
/// Values that a core generates at a time.
const RUN: usize = 1 << 14;

fn write(path: &Path, drawn: &[DrawnTensor], watched: &FileProgress) -> Result<(), ModelError> {
    // The order of safetensors' own writer: wider types first, so that each tensor is aligned, then by name.
    let mut drawn: Vec<&DrawnTensor> = drawn.iter().collect();
    drawn.compact_sort_by(|one, other| {
        let wider = other.dtype().cmp(&one.dtype());
        wider.then_with(|| one.name.cmp(&other.name))
    });
    let mut end = 0;
    let info = |tensor: &&DrawnTensor| {
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
        for DrawnTensor { name, values, .. } in drawn {
            let drawn = match values {
                Values::Random(drawn) => drawn,
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

/// A reader of a random integer weight.
fn reader<'a>(name: &'a str, of: &'a Integers, read: &'a AtomicU64) -> IntegerValues<'a> {
    IntegerValues { name, of, shards: &[], cut: None, layout: MatrixLayout::default(), read }
}

/// Writes packed integers, generated on all cores.
fn write_packed(
    name: &str,
    drawn: &RandomTensor,
    mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let Some(of) = drawn.integers() else { return Ok(()) };
    let (at_once, read) = ((PIECE / of.columns).max(1), AtomicU64::new(0));
    let values = reader(name, of, &read);
    for first in (0..of.rows).step_by(at_once) {
        let rows = first..of.rows.min(first + at_once);
        let row = |row: usize| {
            let mut numbers = vec![0; of.columns];
            // Random values are in no file, so reading them cannot fail.
            let _ = values.numbers(row..row + 1, &mut numbers);
            match of.float {
                true => mxfp4::pack(&numbers),
                false => group_quant::pack_rows(&numbers, of.columns, of.bits),
            }
        };
        write(&rows.into_par_iter().map(row).collect::<Vec<_>>().concat())?;
    }
    Ok(())
}

/// Values as stored in files, generated on all cores.
fn draw<V: Value, const SIZE: usize>(
    drawn: &RandomTensor,
    first: usize,
    count: usize,
    bytes: &mut Vec<u8>,
    of: fn(V) -> [u8; SIZE],
) {
    bytes.resize(count * SIZE, 0);
    let runs = bytes.par_chunks_mut(RUN * SIZE).enumerate();
    runs.for_each_init(Vec::new, |values, (nth, bytes)| {
        values.resize(bytes.len() / SIZE, V::default());
        // The range is within the tensor.
        drawn.fill(first + nth * RUN, values);
        for (bytes, value) in bytes.as_chunks_mut::<SIZE>().0.iter_mut().zip(values) {
            *bytes = of(*value);
        }
    });
}
