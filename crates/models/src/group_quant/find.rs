//! Finds the tensors that make up an integer weight in a checkpoint.

use super::{IntegerSource, Integers, words};
use crate::ModelError;
use crate::checkpoint::{Shard, TensorLocation};
use architectures::{GroupQuantization, Packing};
use ops::DType;
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;

/// The integer weight of a module, and the names of its tensors.
///
/// # Errors
/// [`ModelError::Weights`] naming a tensor that is missing or of the wrong shape.
pub(crate) fn find(
    module: &str,
    int: GroupQuantization,
    tensors: &BTreeMap<String, TensorLocation>,
    shards: &[Shard],
) -> Result<(Integers, Vec<String>), ModelError> {
    Finder { module, int, tensors, shards, names: Vec::new() }.find()
}

struct Finder<'a> {
    module: &'a str,
    int: GroupQuantization,
    tensors: &'a BTreeMap<String, TensorLocation>,
    shards: &'a [Shard],
    names: Vec<String>,
}

impl<'a> Finder<'a> {
    fn find(mut self) -> Result<(Integers, Vec<String>), ModelError> {
        let GroupQuantization { bits, packing, .. } = self.int;
        let in_word = 32 / bits;
        let of_rows = packing == Packing::Rows;
        let [numbers, scales, zeros, groups] = match of_rows {
            true => ["weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"],
            false => ["qweight", "scales", "qzeros", "g_idx"],
        };
        let (numbers, numbers_name) = self.wanted(numbers)?;
        let (scales, scales_name) = self.wanted(scales)?;
        let zeros = self.optional(zeros);
        let groups_of = self.optional(groups);
        let shape = match (packing, &numbers.shape[..]) {
            (Packing::Rows, _) => {
                let (shape, name) = self.wanted("weight_shape")?;
                self.sizes(shape, &name)?
            }
            (Packing::Gptq { .. }, [words, outputs]) => vec![*outputs, words * in_word],
            (Packing::Awq, [inputs, words]) => vec![words * in_word, *inputs],
            _ => return Err(self.shaped(numbers, &numbers_name, "a matrix")),
        };
        let columns = shape.last().copied().unwrap_or(0);
        let rows: usize = shape.iter().rev().skip(1).product();
        if shape.len() < 2 || columns == 0 || rows == 0 {
            return Err(self.shaped(numbers, &numbers_name, "numbers of a matrix"));
        }
        let leading = &shape[..shape.len() - 1];
        let wanted = match packing {
            Packing::Rows => [leading, &[columns.div_ceil(in_word)]].concat(),
            _ => numbers.shape.clone(),
        };
        if numbers.shape != wanted || numbers.dtype != Dtype::I32 {
            return Err(self.shaped(numbers, &numbers_name, &format!("{wanted:?} in I32")));
        }
        let count = match (of_rows, &scales.shape[..]) {
            (true, [.., count]) if scales.shape[..scales.shape.len() - 1] == *leading => *count,
            (false, [count, outputs]) if *outputs == rows => *count,
            _ => return Err(self.shaped(scales, &scales_name, "a scale for each group of a row")),
        };
        let group = match (count, self.int.group) {
            (1, _) => columns,
            (_, Some(group)) => group,
            _ => 0,
        };
        if group == 0 || columns.div_ceil(group) != count {
            let wanted = format!("scales of groups as the config has them, {:?}", self.int.group);
            return Err(self.shaped(scales, &scales_name, &wanted));
        }
        let scale_type = match scales.dtype {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::Bf16,
            Dtype::F16 => DType::F16,
            _ => return Err(self.shaped(scales, &scales_name, "F32, BF16 or F16")),
        };
        if let Some((zeros, name)) = &zeros {
            let wanted = match of_rows {
                true => {
                    let (outer, inner) = leading.split_at(leading.len() - 1);
                    [outer, &[inner[0].div_ceil(in_word), count]].concat()
                }
                false => vec![count, rows.div_ceil(in_word)],
            };
            if zeros.shape != wanted || zeros.dtype != Dtype::I32 {
                return Err(self.shaped(zeros, name, &format!("{wanted:?} in I32")));
            }
        } else if !of_rows || !self.int.symmetric {
            let name = if of_rows { "weight_zero_point" } else { "qzeros" };
            return Err(self.missing(name));
        }
        let groups_of = match groups_of {
            Some((groups_of, name)) => self.unsorted(groups_of, &name, [columns, group, count])?,
            None => None,
        };
        let order = groups_of.as_ref().and_then(|groups| order(groups, group));
        let zeros = zeros.map(|(zeros, _)| zeros);
        let is_middle = zeros.is_none_or(|zeros| self.are_middle(zeros));
        let of = Integers {
            bits,
            float: false,
            rows,
            columns,
            group,
            zeros: !is_middle,
            order,
            groups_of,
            scale_type,
            held: IntegerSource::File {
                numbers: numbers.clone(),
                scales: scales.clone(),
                zeros: zeros.cloned(),
                packing,
                of_tensor: None,
            },
            shape,
        };
        Ok((of, self.names))
    }

    /// Whether every zero point is the middle of the range, as for symmetric quantization.
    fn are_middle(&self, zeros: &TensorLocation) -> bool {
        let middle = 1u32 << (self.int.bits - 1);
        let middle = match self.int.packing {
            Packing::Gptq { zeros_minus_one: true } => middle - 1,
            _ => middle,
        };
        let all = (0..32 / self.int.bits).fold(0, |word, at| word | middle << (at * self.int.bits));
        // Unused bits of the last word are zero.
        words(self.bytes(zeros)).all(|word| word == all)
    }

    /// The group of each column, unless columns are sorted by group.
    fn unsorted(
        &self,
        of: &TensorLocation,
        name: &str,
        [columns, group, count]: [usize; 3],
    ) -> Result<Option<Vec<u32>>, ModelError> {
        if of.shape != [columns] || of.dtype != Dtype::I32 {
            return Err(self.shaped(of, name, &format!("[{columns}] in I32")));
        }
        let groups: Vec<u32> = words(self.bytes(of)).collect();
        // compressed-tensors' value for unset.
        if groups.iter().all(|group| *group == u32::MAX) {
            return Ok(None);
        }
        if groups.iter().any(|group| *group as usize >= count) {
            return Err(self.shaped(of, name, &format!("groups below {count}")));
        }
        let sorted = groups.iter().enumerate().all(|(at, of)| *of as usize == at / group);
        Ok((!sorted).then_some(groups))
    }

    fn sizes(&self, of: &TensorLocation, name: &str) -> Result<Vec<usize>, ModelError> {
        let bytes = self.bytes(of);
        let size = |size: i64| usize::try_from(size).ok().filter(|size| *size < 1 << 32);
        let sizes: Option<Vec<usize>> = match of.dtype {
            Dtype::I64 => {
                bytes.as_chunks().0.iter().map(|bytes| size(i64::from_le_bytes(*bytes))).collect()
            }
            Dtype::I32 => words(bytes).map(|word| size(i64::from(word.cast_signed()))).collect(),
            _ => None,
        };
        sizes.ok_or_else(|| self.shaped(of, name, "sizes in I64 or I32"))
    }

    /// A tensor's bytes. Its range was checked against the file's length when its header was read.
    fn bytes(&self, of: &TensorLocation) -> &'a [u8] {
        self.shards[of.shard].file.get(of.bytes.clone()).unwrap_or_default()
    }

    fn optional(&mut self, end: &str) -> Option<(&'a TensorLocation, String)> {
        let name = format!("{}.{end}", self.module);
        let found = self.tensors.get(&name)?;
        self.names.push(name.clone());
        Some((found, name))
    }

    fn wanted(&mut self, end: &str) -> Result<(&'a TensorLocation, String), ModelError> {
        self.optional(end).ok_or_else(|| self.missing(end))
    }

    fn missing(&self, end: &str) -> ModelError {
        let there = self.names.first().map_or(self.module, String::as_str);
        let path = self.tensors.get(there).map(|found| &*self.shards[found.shard].path);
        let what = format!("tensor `{there}` is packed without `{}.{end}`", self.module);
        ModelError::weights(path.unwrap_or("weights".as_ref()), what)
    }

    fn shaped(&self, of: &TensorLocation, name: &str, wanted: &str) -> ModelError {
        let what = format!("tensor `{name}` is {:?} {:?}, expected {wanted}", of.dtype, of.shape);
        ModelError::weights(&self.shards[of.shard].path, what)
    }
}

/// The permutation that sorts columns by group, if groups have equal sizes.
fn order(groups: &[u32], size: usize) -> Option<Vec<u32>> {
    let mut order: Vec<u32> = (0..groups.len() as u32).collect();
    order.sort_by_key(|column| groups[*column as usize]);
    let fits = |(at, column): (usize, &u32)| groups[*column as usize] as usize == at / size;
    order.iter().enumerate().all(fits).then_some(order)
}
