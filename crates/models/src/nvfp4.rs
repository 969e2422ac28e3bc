//! NVFP4: 4-bit floats (E2M1), a float8 scale (E4M3) per 16 values and a float32 scale of the tensor, as modelopt and
//! compressed-tensors write it.

use crate::ModelError;
use crate::checkpoint::{Shard, TensorLocation};
use crate::group_quant::{IntegerSource, Integers};
use architectures::Packing;
use ops::{DType, E4m3};
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;

/// Values per group.
const GROUP: usize = 16;
/// Name suffix of float8 scales.
const SCALE: &str = ".weight_scale";
/// Name suffix of modelopt's scale of the tensor.
const FACTOR: &str = ".weight_scale_2";
/// Name suffix of compressed-tensors' scale of the tensor, which values are divided by.
const DIVISOR: &str = ".weight_global_scale";

/// The scale of a tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TensorScale {
    /// modelopt's, which scales of groups are multiplied by.
    Factor(f32),
    /// compressed-tensors', which they are divided by.
    Divisor(f32),
}

impl TensorScale {
    /// The factor of doubled values, from the bits of a group's scale.
    pub(crate) fn scale(self, bits: u8) -> f32 {
        let of_group = E4m3::from_bits(bits).to_f32();
        0.5 * match self {
            Self::Factor(factor) => of_group * factor,
            Self::Divisor(divisor) => of_group / divisor,
        }
    }
}

/// Whether a tensor has the scales of such a weight.
pub(crate) fn is_scale(name: &str, tensors: &BTreeMap<String, TensorLocation>) -> bool {
    let has = |module: &str| {
        [FACTOR, DIVISOR].iter().any(|end| tensors.contains_key(&format!("{module}{end}")))
    };
    name.strip_suffix(SCALE).is_some_and(has)
}

/// The module of a packed weight in modelopt's format, under the name of an unpacked one.
pub(crate) fn packed_module<'a>(
    name: &'a str,
    tensors: &BTreeMap<String, TensorLocation>,
) -> Option<&'a str> {
    let module = name.strip_suffix(".weight")?;
    let packed = tensors.get(name).is_some_and(|found| found.dtype == Dtype::U8);
    (packed && tensors.contains_key(&format!("{module}{FACTOR}"))).then_some(module)
}

/// A weight `[rows, columns / 2]` with scales `[rows, columns / 16]`, and the names of its tensors.
///
/// # Errors
/// [`ModelError::Weights`] naming a tensor that is missing or of the wrong shape.
pub(crate) fn find(
    name: &str,
    module: &str,
    tensors: &BTreeMap<String, TensorLocation>,
    shards: &[Shard],
) -> Result<(Integers, Vec<String>), ModelError> {
    let packed = &tensors[name];
    let wrong = |name: &str, of: &TensorLocation, wanted: String| {
        let what = format!("tensor `{name}` is {:?} {:?}, expected {wanted}", of.dtype, of.shape);
        ModelError::weights(&shards[of.shard].path, what)
    };
    let [rows, bytes] = packed.shape[..] else {
        return Err(wrong(name, packed, "a matrix in NVFP4".to_owned()));
    };
    let columns = 2 * bytes;
    if rows * columns == 0 || !columns.is_multiple_of(GROUP) || packed.dtype != Dtype::U8 {
        return Err(wrong(name, packed, "rows of groups of 16 values in NVFP4, U8".to_owned()));
    }
    let wanted = |end: &str| {
        let other = format!("{module}{end}");
        let missing = || {
            let what = format!("tensor `{name}` is packed without `{other}`");
            ModelError::weights(&shards[packed.shard].path, what)
        };
        tensors.get(&other).map(|found| (found, other.clone())).ok_or_else(missing)
    };
    let (scales, scales_name) = wanted(SCALE)?;
    let groups = columns / GROUP;
    if scales.shape != [rows, groups] || scales.dtype != Dtype::F8_E4M3 {
        return Err(wrong(&scales_name, scales, format!("[{rows}, {groups}] in F8_E4M3")));
    }
    let (found, found_name) = match wanted(FACTOR) {
        Ok(found) => found,
        Err(_) => wanted(DIVISOR)?,
    };
    let bytes = shards[found.shard].file.get(found.bytes.clone()).unwrap_or_default();
    let of_tensor = match bytes.as_chunks().0 {
        [value] if found.dtype == Dtype::F32 && found_name.ends_with(FACTOR) => {
            TensorScale::Factor(f32::from_le_bytes(*value))
        }
        [value] if found.dtype == Dtype::F32 => TensorScale::Divisor(f32::from_le_bytes(*value)),
        _ => return Err(wrong(&found_name, found, "one number in F32".to_owned())),
    };
    let of = Integers {
        bits: 4,
        float: true,
        rows,
        columns,
        shape: vec![rows, columns],
        group: GROUP,
        zeros: false,
        order: None,
        groups_of: None,
        scale_type: DType::F32,
        held: IntegerSource::File {
            numbers: packed.clone(),
            scales: scales.clone(),
            zeros: None,
            packing: Packing::Nvfp4,
            of_tensor: Some(of_tensor),
        },
    };
    Ok((of, vec![name.to_owned(), scales_name, found_name]))
}

#[cfg(test)]
mod tests;
