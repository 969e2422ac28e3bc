//! bitsandbytes weights: 4-bit codebook indices with block scales, or 8-bit integers with row scales. They are
//! dequantized while loading.

use crate::ModelError;
use crate::checkpoint::{Located, Shard};
use safetensors::tensor::Dtype;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The suffix after a 4-bit weight's name, followed by the codebook's name.
const STATE: &str = ".quant_state.bitsandbytes__";

/// A bitsandbytes weight.
#[derive(Debug)]
pub(crate) struct BitsAndBytes {
    /// Shape of the dequantized weight.
    pub(crate) shape: Vec<usize>,
    numbers: Located,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// The first of two indices is in the high nibble. Blocks continue across rows.
    Blocks { table: Vec<f32>, block: usize, scales: Scales },
    /// A value is `number * scale / 127`.
    Rows { scales: Located },
}

/// Block scales.
#[derive(Debug)]
enum Scales {
    /// In float32.
    Wide(Located),
    /// 8-bit codebook indices with block scales, minus an offset (double quantization).
    Nested { numbers: Located, table: Vec<f32>, block: usize, scales: Located, offset: f32 },
}

/// The weights of a bitsandbytes checkpoint by name, and the names of their other tensors.
pub(crate) type BitsAndBytesTensors = (BTreeMap<String, BitsAndBytes>, Vec<String>);

/// Finds the weights.
///
/// # Errors
/// [`ModelError::Weights`] naming a tensor that is missing or of the wrong shape.
pub(crate) fn find(
    tensors: &BTreeMap<String, Located>,
    shards: &[Shard],
) -> Result<BitsAndBytesTensors, ModelError> {
    let (mut found, mut beside) = (BTreeMap::new(), Vec::new());
    for (name, numbers) in tensors {
        let finder = Finder { name, numbers, tensors, shards };
        let state = format!("{name}{STATE}");
        let of_state =
            tensors.range(state.clone()..).next().filter(|(of, _)| of.starts_with(&state));
        let of = match (of_state, numbers.dtype) {
            (Some((of, state)), _) => {
                beside.push(of.clone());
                finder.blocks(state, &mut beside)?
            }
            (None, Dtype::I8) => finder.rows(&mut beside)?,
            _ => continue,
        };
        found.insert(name.clone(), of);
    }
    Ok((found, beside))
}

struct Finder<'a> {
    name: &'a str,
    numbers: &'a Located,
    tensors: &'a BTreeMap<String, Located>,
    shards: &'a [Shard],
}

impl<'a> Finder<'a> {
    fn blocks(
        &self,
        state: &Located,
        beside: &mut Vec<String>,
    ) -> Result<BitsAndBytes, ModelError> {
        let bytes = bytes(self.shards, state);
        let Ok(state) = serde_json::from_slice::<Value>(bytes) else {
            return Err(self.wrong("has a state that is no JSON"));
        };
        let count = |key: &str| state[key].as_u64().and_then(|count| usize::try_from(count).ok());
        let shape = state["shape"].as_array().map(|sides| {
            let side = |side: &Value| {
                side.as_u64().filter(|side| *side < 1 << 32).map(|side| side as usize)
            };
            sides.iter().map(side).collect::<Option<Vec<_>>>()
        });
        let (Some(Some(shape)), Some(block @ 1..)) = (shape, count("blocksize")) else {
            return Err(self.wrong("has a state without a shape and a block's size"));
        };
        let len = shape.iter().try_fold(1usize, |all, side| all.checked_mul(*side));
        let Some(len) = len.filter(|len| len.div_ceil(2) == self.numbers.bytes.len()) else {
            return Err(self.wrong(&format!("has bytes of another shape than {shape:?}")));
        };
        let blocks = len.div_ceil(block);
        let table = self.floats("quant_map", 16, beside)?;
        let absmax = self.part("absmax", beside)?;
        let scales = match absmax.dtype {
            Dtype::F32 => {
                self.hold("absmax", absmax, 4 * blocks)?;
                Scales::Wide(absmax.clone())
            }
            Dtype::U8 => {
                self.hold("absmax", absmax, blocks)?;
                let Some(nested @ 1..) = count("nested_blocksize") else {
                    return Err(self.wrong("has nested scales without a block's size"));
                };
                let offset = state["nested_offset"].as_f64();
                let offset =
                    offset.ok_or_else(|| self.wrong("has nested scales without an offset"))?;
                let scales = self.part("nested_absmax", beside)?;
                self.hold("nested_absmax", scales, 4 * blocks.div_ceil(nested))?;
                Scales::Nested {
                    numbers: absmax.clone(),
                    table: self.floats("nested_quant_map", 256, beside)?,
                    block: nested,
                    scales: scales.clone(),
                    offset: offset as f32,
                }
            }
            other => {
                return Err(self.wrong(&format!("has scales in {other:?}, expected F32 or U8")));
            }
        };
        let form = Form::Blocks { table, block, scales };
        Ok(BitsAndBytes { shape, numbers: self.numbers.clone(), form })
    }

    fn rows(&self, beside: &mut Vec<String>) -> Result<BitsAndBytes, ModelError> {
        let module = self.name.strip_suffix(".weight").unwrap_or(self.name);
        let name = format!("{module}.SCB");
        let Some(scales) = self.tensors.get(&name) else {
            return Err(self.wrong(&format!("is I8 without `{name}`")));
        };
        let rows = self.numbers.shape.first().copied().unwrap_or(0);
        if scales.dtype != Dtype::F32
            || scales.bytes.len() != 4 * rows
            || self.numbers.shape.len() != 2
        {
            return Err(self.wrong(&format!("wants {rows} scales in F32, `{name}` has others")));
        }
        // The layout on a GPU, which is not needed here.
        let format = format!("{module}.weight_format");
        if let Some(of) = self.tensors.get(&format) {
            if bytes(self.shards, of).iter().any(|byte| *byte != 0) {
                return Err(self.wrong(&format!("is not in row-major layout (`{format}`)")));
            }
            beside.push(format);
        }
        beside.push(name);
        let form = Form::Rows { scales: scales.clone() };
        Ok(BitsAndBytes { shape: self.numbers.shape.clone(), numbers: self.numbers.clone(), form })
    }

    fn part(&self, end: &str, beside: &mut Vec<String>) -> Result<&'a Located, ModelError> {
        let name = format!("{}.{end}", self.name);
        let found = self.tensors.get(&name);
        beside.push(name.clone());
        found.ok_or_else(|| self.wrong(&format!("is packed without `{name}`")))
    }

    fn floats(
        &self,
        end: &str,
        count: usize,
        beside: &mut Vec<String>,
    ) -> Result<Vec<f32>, ModelError> {
        let found = self.part(end, beside)?;
        if found.dtype != Dtype::F32 {
            return Err(self.wrong(&format!("has `{end}` in {:?}, expected F32", found.dtype)));
        }
        self.hold(end, found, 4 * count)?;
        Ok(floats(bytes(self.shards, found)).collect())
    }

    fn hold(&self, end: &str, found: &Located, wanted: usize) -> Result<(), ModelError> {
        match found.bytes.len() {
            there if there == wanted => Ok(()),
            there => Err(self.wrong(&format!("has `{end}` of {there} bytes, expected {wanted}"))),
        }
    }

    fn wrong(&self, what: &str) -> ModelError {
        let path = &self.shards[self.numbers.shard].path;
        ModelError::weights(path, format!("tensor `{}` {what}", self.name))
    }
}

impl BitsAndBytes {
    /// Dequantized values starting at `first`, before bitsandbytes rounds them to its output type. The range is valid.
    pub(crate) fn fill(
        &self,
        (shards, read): (&[Shard], &AtomicU64),
        first: usize,
        into: &mut [f32],
    ) -> bool {
        let len = self.shape.iter().product::<usize>();
        if first.checked_add(into.len()).is_none_or(|end| end > len) {
            return false;
        }
        let numbers = bytes(shards, &self.numbers);
        match &self.form {
            Form::Blocks { table, block, scales } => {
                read.fetch_add(into.len().div_ceil(2) as u64, Ordering::Relaxed);
                let mut at = first;
                let mut rest = into;
                while !rest.is_empty() {
                    let count = rest.len().min(block - at % block);
                    let (own, behind) = rest.split_at_mut(count);
                    let scale = scales.at(shards, at / block);
                    for (at, into) in (at..).zip(own) {
                        // The first of two values is in the high nibble.
                        let number = numbers[at / 2] >> (4 * (1 - at % 2)) & 15;
                        *into = table[usize::from(number)] * scale;
                    }
                    (rest, at) = (behind, at + count);
                }
            }
            Form::Rows { scales } => {
                read.fetch_add(into.len() as u64, Ordering::Relaxed);
                // The float32 that bitsandbytes writes as 7.874015718698502e-3.
                const SHARE: f32 = 1.0 / 127.0;
                let columns = self.shape[1];
                let scales: Vec<f32> = floats(bytes(shards, scales)).collect();
                for (at, into) in (first..).zip(into) {
                    *into = f32::from(numbers[at].cast_signed()) * scales[at / columns] * SHARE;
                }
            }
        }
        true
    }
}

impl Scales {
    fn at(&self, shards: &[Shard], block: usize) -> f32 {
        let float = |of: &Located, at: usize| {
            floats(&bytes(shards, of)[4 * at..]).next().unwrap_or(f32::NAN)
        };
        match self {
            Self::Wide(scales) => float(scales, block),
            Self::Nested { numbers, table, block: size, scales, offset } => {
                let number = bytes(shards, numbers)[block];
                table[usize::from(number)] * float(scales, block / size) + offset
            }
        }
    }
}

/// The bytes of a tensor. Its range was checked against the file's length when its header was read.
fn bytes<'a>(shards: &'a [Shard], of: &Located) -> &'a [u8] {
    let Range { start, end } = of.bytes;
    shards[of.shard].file.get(start..end).unwrap_or_default()
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests;
