//! GGUF: a model in one file, as llama.cpp's converter writes it.
//!
//! The metadata are translated to the config of the original model, tensors to that config's parameters, and the
//! vocabulary to a tokenizer.json, so that code that reads a model's folder also reads GGUF files.

mod blocks;
mod config;
mod file;
mod names;
mod rows;
mod text;

use facts::CompactCollect;
pub use file::is_gguf;
pub(crate) use rows::GgufParam;
pub(crate) use text::{settings, tokenizer};

use crate::checkpoint::Shard;
use crate::group_quant::{IntegerSource, Integers};
use crate::{Architecture, Config, ModelError};
use file::{Header, Tensor};
use ops::DType;
use rows::RowLayout;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// The config of a file.
///
/// # Errors
/// [`ModelError`] naming what is missing or unsupported.
pub(crate) fn config(path: &Path) -> Result<Config, ModelError> {
    config::read(&Header::read(path)?)
}

/// The tokens that end an answer.
///
/// # Errors
/// [`ModelError`] of a file that cannot be read.
pub(crate) fn stop_ids(path: &Path) -> Result<Vec<u32>, ModelError> {
    Ok(text::stop_ids(&Header::read(path)?))
}

/// The weights of a file.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) shards: Vec<Shard>,
    params: BTreeMap<String, GgufParam>,
    integers: BTreeMap<String, Integers>,
    bytes: u64,
    parameters: u64,
}

impl Weights {
    /// Maps a file and compares its tensors with the architecture that its metadata describe.
    ///
    /// # Errors
    /// [`ModelError`] naming the file or the tensor.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let header = Header::read(path)?;
        let architecture = Architecture::describe(&config::read(&header)?)?;
        let params: BTreeMap<String, GgufParam> =
            names::place(&header, &architecture)?.into_iter().compact_map();
        let integers = architecture.params.iter().filter_map(|param| {
            let placed = &params[&param.name];
            Some((param.name.clone(), integers(placed, &param.shape)?))
        });
        let integers = integers.collect();
        let tensors = header.tensors.iter().filter(|(name, _)| *name != names::BESIDE);
        let bytes = tensors.map(|(_, tensor)| tensor.bytes.len() as u64).sum();
        let parameters = architecture.params.count();
        Ok(Self { shards: header.shards, params, integers, bytes, parameters })
    }

    /// A parameter by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&GgufParam> {
        self.params.get(name)
    }

    /// A parameter whose values are quantized to integers.
    pub(crate) fn integers(&self, name: &str) -> Option<&Integers> {
        self.integers.get(name)
    }

    /// Bytes of all tensors.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Values of all parameters.
    pub(crate) fn parameters(&self) -> u64 {
        self.parameters
    }

    /// Bytes of a parameter, and its number of values.
    pub(crate) fn size(&self, name: &str) -> Option<(usize, usize)> {
        let placed = self.get(name)?;
        let all: (usize, usize) = placed
            .tensors()
            .iter()
            .fold((0, 0), |all, of| (all.0 + of.bytes.len(), all.1 + of.len()));
        Some(all)
    }
}

/// The integer format of a parameter in blocks.
fn integers(placed: &GgufParam, shape: &[usize]) -> Option<Integers> {
    let int = placed.block()?.int();
    let columns = placed.columns;
    Some(Integers {
        bits: int.bits,
        float: int.is_float(),
        shape: shape.to_vec(),
        rows: shape.iter().product::<usize>() / columns,
        columns,
        group: int.group.unwrap_or(columns),
        zeros: !int.symmetric,
        order: None,
        groups_of: None,
        // The product of a K-quant block's scales has more bits than float16, and MXFP4 scales exceed its range.
        scale_type: match int.has_wide_scales() {
            true => DType::F32,
            false if int.is_mxfp4() => DType::Bf16,
            false => DType::F16,
        },
        held: IntegerSource::Blocks(placed.clone()),
    })
}

/// Integer values of some rows `[rows, columns]`.
pub(crate) fn numbers(
    placed: &GgufParam,
    from: (&[Shard], &AtomicU64),
    rows: Range<usize>,
    into: &mut [i8],
) -> Result<(), ModelError> {
    let mut rest = into;
    placed.blocks(from, rows, |block, bytes| {
        let (own, behind) = std::mem::take(&mut rest).split_at_mut(block.values());
        blocks::numbers(block, bytes, own);
        let group = block.group();
        blocks::scales_and_zeros(block, bytes, |nth, [scale, _]| {
            // Any value works with scale 0: `scales_and_zeros` returns another scale for such a group, so that its zero point
            // can represent the offset.
            if scale == 0.0 {
                own[nth * group..(nth + 1) * group].fill(0);
            }
        });
        rest = behind;
    })
}

/// Scales and zero points of some rows `[rows, groups]`: a value is `scale (number - zero)`.
pub(crate) fn scales_and_zeros(
    placed: &GgufParam,
    from: (&[Shard], &AtomicU64),
    rows: Range<usize>,
    (scales, zeros): (&mut [f32], &mut [f32]),
) -> Result<(), ModelError> {
    let mut first = 0;
    placed.blocks(from, rows, |block, bytes| {
        let (symmetric, above) = (block.int().symmetric, f32::from(block.above_zero()));
        blocks::scales_and_zeros(block, bytes, |group, [scale, least]| {
            let (scale, zero) = match scale {
                0.0 => (1.0, least),
                _ if symmetric => (scale, 0.0),
                _ => (scale, least / scale - above),
            };
            scales[first + group] = scale;
            zeros.iter_mut().skip(first + group).take(1).for_each(|into| *into = zero);
        });
        first += block.values() / block.group();
    })
}

/// Scales and offsets of some rows `[rows, groups]` as in the file: a value is `scale (number + 8) - offset`.
pub(crate) fn offsets(
    placed: &GgufParam,
    from: (&[Shard], &AtomicU64),
    rows: Range<usize>,
    (scales, offsets): (&mut [f32], &mut [f32]),
) -> Result<(), ModelError> {
    let mut both = scales.iter_mut().zip(offsets);
    placed.blocks(from, rows, |block, bytes| {
        let rest = 8.0 - f32::from(block.above_zero());
        blocks::scales_and_zeros(block, bytes, |_, [scale, least]| {
            if let Some((scales, offsets)) = both.next() {
                (*scales, *offsets) = (scale, scale * rest + least);
            }
        });
    })
}

/// All values of a tensor.
fn fill(header: &Header, tensor: &Tensor, into: &mut [f32]) -> Result<(), ModelError> {
    let placed =
        GgufParam { layout: RowLayout::Rows(tensor.clone(), 0), columns: 1, exponential: false };
    placed.fill((&header.shards, &AtomicU64::new(0)), 0, into)
}

#[cfg(test)]
mod tests;
