//! Quantizes the projections of a checkpoint to float8 or integers, round to nearest.

mod integers;

use crate::checkpoint::{Checkpoint, Files, INDEX, Shard, TensorLocation};
use crate::convert::shard::written_header;
use crate::files::{FileProgress, TemporaryFiles, room, whole, write_text};
use crate::{Architecture, Config, ModelError, read_config};
use architectures::{SCALE, StorageFormat, with_fp8_weights, with_int_weights};
use facts::{CompactCollect, CompactSort};
use ops::E4m3;
use rayon::prelude::*;
use safetensors::tensor::{Dtype, TensorInfo};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The target format of projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizedFormat {
    /// float8 E4M3 with one scale per row.
    Fp8,
    /// 8-bit integers with one scale per 128 columns.
    Int8,
    /// 4-bit integers with one scale per 128 columns.
    Int4,
}

impl QuantizedFormat {
    /// The config of a model with such weights, as compressed-tensors writes it.
    ///
    /// # Errors
    /// [`ModelError::Config`] when it does not describe a model.
    pub fn of(self, config: Config) -> Result<Config, ModelError> {
        Ok(match self {
            Self::Fp8 => with_fp8_weights(config),
            Self::Int8 => with_int_weights(config, 8)?,
            Self::Int4 => with_int_weights(config, 4)?,
        })
    }
}

/// The result of quantizing a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// The quantized tensors, sorted by name.
    pub tensors: Vec<QuantizedTensor>,
    /// Bytes of all tensors before and after.
    pub bytes: [u64; 2],
}

/// A quantized tensor and its error.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedTensor {
    /// Its name.
    pub name: String,
    /// `||w - w'|| / ||w||`, with w' the dequantized weight.
    pub relative_error: f64,
}

/// Writes a model's folder with quantized linear modules in compressed-tensors' format: round to nearest, with a scale
/// per row for float8, which maps the row's largest weight to the largest value, or per group of columns for integers,
/// which maps it to the end of their range. Head, embedding and routers are unchanged. The folder has to be empty or
/// absent; config.json is written last, and an incomplete result is removed.
///
/// # Errors
/// [`ModelError`] when the model is already quantized or of an unsupported family, a weight is NaN, the disk is too
/// small, or a file cannot be written.
pub fn quantize(
    model: &Path,
    folder: &Path,
    to: QuantizedFormat,
    watched: &FileProgress,
) -> Result<Quantized, ModelError> {
    let config = read_config(model)?;
    if config.is_quantised() {
        let what = format!("the weights of {} are quantised already", model.display());
        return Err(ModelError::convert(what, "name the model that was quantised"));
    }
    let config = to.of(config)?;
    let architecture = Architecture::of(&config)?;
    let checkpoint = Checkpoint::open(model)?;
    checkpoint.check(&architecture).map_err(|reason| match checkpoint.describe(&config) {
        Ok(_) => ModelError::convert(
            format!(
                "the tensors of {} do not have the names they were published with",
                model.display()
            ),
            "transformers' save_pretrained writes those, with save_original_format=True",
        ),
        Err(_) => reason,
    })?;
    let files = Files::open(model)?;
    let narrow = architecture.params.iter().filter(|param| param.stored != StorageFormat::Wide);
    let narrow: BTreeMap<&str, StorageFormat> =
        narrow.map(|param| (&*param.name, param.stored)).compact_map();
    let mut made = TemporaryFiles::folder(folder)?;
    room(folder, files.bytes())?;
    let (mut places, mut total, mut tensors) = (serde_json::Map::new(), 0, Vec::new());
    for (shard, inside) in files.by_shard() {
        let name = shard.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut written = Vec::new();
        for (tensor, located) in inside {
            let made = match narrow.get(tensor).copied().unwrap_or_default() {
                StorageFormat::Wide => {
                    written.push(OutputTensor::copied(tensor, located));
                    continue;
                }
                StorageFormat::Fp8(_) => rounded(&checkpoint, tensor, located)?,
                StorageFormat::Int(int) => integers::rounded(&checkpoint, tensor, located, int)?,
            };
            let (own, relative_error) = made;
            tensors.push(QuantizedTensor { name: tensor.to_owned(), relative_error });
            written.extend(own);
        }
        // The order of safetensors' own writer: wider types first, so that each tensor is aligned, then by name.
        written.compact_sort_by(|one, other| {
            other.dtype.cmp(&one.dtype).then_with(|| one.name.cmp(&other.name))
        });
        places.extend(written.iter().map(|tensor| (tensor.name.clone(), json!(name))));
        total += written.iter().map(OutputTensor::bytes).sum::<usize>();
        write(made.file(folder.join(&name)), shard, &written, watched)?;
    }
    if model.join(INDEX).exists() {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": places });
        write_text(made.file(folder.join(INDEX)), &format!("{index:#}\n"))?;
    }
    copy_others(model, folder, &mut made)?;
    write_text(made.file(folder.join("config.json")), &config.to_text())?;
    made.keep();
    tensors.compact_sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Quantized { tensors, bytes: [files.bytes(), total as u64] })
}

/// A tensor of the new files.
#[derive(Clone)]
struct OutputTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    content: Content,
}

#[derive(Clone)]
enum Content {
    /// Bytes of the source file.
    Copied(std::ops::Range<usize>),
    Made(Vec<u8>),
}

impl OutputTensor {
    fn copied(name: &str, located: &TensorLocation) -> Self {
        let content = Content::Copied(located.bytes.clone());
        let (dtype, shape) = (located.dtype, located.shape.clone());
        Self { name: name.to_owned(), dtype, shape, content }
    }

    fn bytes(&self) -> usize {
        match &self.content {
            Content::Copied(range) => range.len(),
            Content::Made(bytes) => bytes.len(),
        }
    }
}

/// A tensor's float8 values and scales, and the relative error.
fn rounded(
    checkpoint: &Checkpoint,
    name: &str,
    located: &TensorLocation,
) -> Result<(Vec<OutputTensor>, f64), ModelError> {
    let shape = &located.shape;
    let width = shape.last().copied().unwrap_or(1).max(1);
    let len: usize = shape.iter().product();
    let (mut numbers, mut scales) = (vec![0u8; len], vec![0f32; len / width]);
    let values = checkpoint.values(name)?;
    let rows = numbers.par_chunks_mut(width).zip(&mut scales).enumerate();
    let row = |weights: &mut Vec<f32>, (row, (numbers, scale)): (usize, (&mut [u8], &mut f32))| {
        weights.resize(width, 0.0);
        values.fill(row * width, weights)?;
        let largest = weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
        // The scale of a row of zeros is arbitrary but must not be zero.
        *scale = if largest > 0.0 { largest / E4m3::MAX } else { 1.0 };
        let (mut off, mut all) = (0.0, 0.0);
        for (number, weight) in numbers.iter_mut().zip(weights) {
            let nearest = E4m3::from_f32(*weight / *scale);
            *number = nearest.to_bits();
            off += f64::from(nearest.to_f32() * *scale - *weight).powi(2);
            all += f64::from(*weight).powi(2);
        }
        Ok::<_, ModelError>([off, all])
    };
    let add = |one: [f64; 2], other: [f64; 2]| Ok([one[0] + other[0], one[1] + other[1]]);
    let [off, all] = rows.map_init(Vec::new, row).try_reduce(|| [0.0; 2], add)?;
    let error = if all > 0.0 { (off / all).sqrt() } else { 0.0 };
    let scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let mut of_scales = shape.clone();
    if let Some(last) = of_scales.last_mut() {
        *last = 1;
    }
    let weight = OutputTensor {
        name: name.to_owned(),
        dtype: Dtype::F8_E4M3,
        shape: shape.clone(),
        content: Content::Made(numbers),
    };
    let scale = OutputTensor {
        name: format!("{name}{SCALE}"),
        dtype: Dtype::F32,
        shape: of_scales,
        content: Content::Made(scales),
    };
    Ok((vec![weight, scale], error))
}

/// Bytes copied at a time.
const PIECE: usize = 4 << 20;

fn write(
    path: &Path,
    from: &Shard,
    tensors: &[OutputTensor],
    watched: &FileProgress,
) -> Result<(), ModelError> {
    let mut end = 0;
    let info = |tensor: &OutputTensor| {
        let start = end;
        end += tensor.bytes();
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    };
    let infos = tensors.iter().map(info).collect();
    let notes = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let header = written_header(path, Some(notes), infos)?;
    whole(path, |partial| {
        let mut file = File::create(partial)?;
        file.write_all(&header)?;
        let mut buffer = vec![0; PIECE];
        for tensor in tensors {
            match &tensor.content {
                Content::Made(bytes) => file.write_all(bytes)?,
                Content::Copied(range) => {
                    for start in range.clone().step_by(PIECE) {
                        let piece = &mut buffer[..PIECE.min(range.end - start)];
                        from.file.read_at(start, piece)?;
                        file.write_all(piece)?;
                    }
                }
            }
            watched.add(tensor.bytes())?;
        }
        Ok(())
    })
}

/// Copies the files other than weights and config.
fn copy_others(model: &Path, folder: &Path, made: &mut TemporaryFiles) -> Result<(), ModelError> {
    let failed = |error: io::Error| ModelError::file(model, error);
    for entry in std::fs::read_dir(model).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let known = name == INDEX || name == "config.json" || name.starts_with('.');
        let weight = [".safetensors", ".bin", ".part"].iter().any(|end| name.ends_with(end));
        if path.is_file() && !known && !weight {
            let to = folder.join(&name);
            std::fs::copy(&path, made.file(to.clone()))
                .map_err(|error| ModelError::written(&to, error))?;
        }
    }
    Ok(())
}

/// The document that the command prints.
impl Quantized {
    /// As JSON.
    pub fn document(&self) -> Value {
        let tensor =
            |of: &QuantizedTensor| json!({ "name": of.name, "relative_error": of.relative_error });
        json!({
            "tensors": self.tensors.iter().map(tensor).collect::<Vec<_>>(),
            "bytes_before": self.bytes[0],
            "bytes_after": self.bytes[1],
        })
    }
}
