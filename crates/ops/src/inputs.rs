//! Reading an op's tensors: shapes against names, and the sequences of a dense or packed batch.

use crate::spec::TensorSpec;
use crate::{DType, OpError, OpSpec, Tensor, TensorMap};
use std::ops::Range;

/// One dimension that a tensor is wanted to have.
#[derive(Debug, Clone, Copy)]
pub struct Dim {
    name: &'static str,
    size: Option<usize>,
}

impl Dim {
    /// A dimension whose size this tensor decides.
    pub const fn free(name: &'static str) -> Self {
        Self { name, size: None }
    }

    /// A dimension whose size is already known.
    pub const fn fixed(name: &'static str, size: usize) -> Self {
        Self { name, size: Some(size) }
    }
}

fn wanted(dims: &[Dim]) -> String {
    let words: Vec<String> = dims
        .iter()
        .map(|dim| match dim.size {
            Some(size) => format!("{}={size}", dim.name),
            None => dim.name.to_owned(),
        })
        .collect();
    format!("[{}]", words.join(", "))
}

/// Maximum number of inputs, and of outputs, of an op.
pub const MAX_TENSORS: usize = 16;

/// Tensors of a call, by index in an op's table.
#[derive(Debug, Clone, Copy)]
pub struct Slots<'a> {
    table: &'static [TensorSpec],
    tensors: [Option<&'a Tensor>; MAX_TENSORS],
}

impl<'a> Slots<'a> {
    /// No tensors yet, for a table.
    pub const fn new(table: &'static [TensorSpec]) -> Self {
        assert!(table.len() <= MAX_TENSORS, "more tensors than a call has places for");
        Self { table, tensors: [None; MAX_TENSORS] }
    }

    /// The op's table of them.
    pub(crate) fn table(&self) -> &'static [TensorSpec] {
        self.table
    }

    /// The index of a tensor in the table, by its name.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.table.iter().position(|spec| spec.name == name)
    }

    /// Sets or clears the tensor at an index of the table.
    pub fn set_tensor(&mut self, place: usize, tensor: Option<&'a Tensor>) {
        self.tensors[place] = tensor;
    }

    /// A tensor, if it was given.
    pub fn get(&self, name: &str) -> Option<&'a Tensor> {
        self.tensors[self.place(name)?]
    }

    /// The tensors that were given, in the table's order, each with its index.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &'static TensorSpec, &'a Tensor)> + '_ {
        let given = self.table.iter().zip(&self.tensors).enumerate();
        given.filter_map(|(place, (spec, tensor))| Some((place, spec, (*tensor)?)))
    }
}

/// The tensors of one call, with errors that name them.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    op: &'static str,
    slots: Slots<'a>,
}

impl<'a> Inputs<'a> {
    /// The tensors of a call of an op.
    pub fn new(op: &'static str, slots: Slots<'a>) -> Self {
        Self { op, slots }
    }

    /// Tensors by name; names that the op does not know are ignored.
    pub fn of_map(spec: &'static OpSpec, tensors: &'a TensorMap) -> Self {
        let mut slots = Slots::new(spec.inputs);
        for (place, tensor) in spec.inputs.iter().enumerate() {
            slots.set_tensor(place, tensors.get(tensor.name));
        }
        Self::new(spec.name, slots)
    }

    /// Sets or clears the tensor at an index of the table.
    pub(crate) fn set_tensor(&mut self, place: usize, tensor: Option<&'a Tensor>) {
        self.slots.set_tensor(place, tensor);
    }

    /// The op.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// An optional tensor.
    pub fn get(&self, name: &str) -> Option<&'a Tensor> {
        self.slots.get(name)
    }

    /// The tensors that were given.
    pub fn slots(&self) -> &Slots<'a> {
        &self.slots
    }

    /// Bytes of all given tensors.
    pub(crate) fn bytes(&self) -> f64 {
        self.slots.iter().map(|(_, _, tensor)| tensor.dtype().bytes_of(tensor.len()) as f64).sum()
    }

    /// A tensor that is known to be present: it is required, or `get` returned it.
    ///
    /// # Panics
    /// If it is missing, which is a bug in the op's table.
    pub fn tensor(&self, name: &str) -> &'a Tensor {
        match self.get(name) {
            Some(tensor) => tensor,
            None => panic!("{}: the op's table does not require tensor `{name}`", self.op),
        }
    }

    /// Sizes of a tensor of the wanted rank, fixed sizes checked.
    ///
    /// # Errors
    /// [`OpError::Shape`] when the rank or a fixed size differs.
    pub fn dims<const RANK: usize>(
        &self,
        name: &str,
        dims: [Dim; RANK],
    ) -> Result<[usize; RANK], OpError> {
        let shape = self.tensor(name).shape();
        let fits = shape.len() == RANK
            && dims
                .iter()
                .zip(shape)
                .all(|(dim, size)| dim.size.is_none_or(|wanted| wanted == *size));
        match <[usize; RANK]>::try_from(shape) {
            Ok(sizes) if fits => Ok(sizes),
            _ => Err(self.shape_error(name, &wanted(&dims))),
        }
    }

    /// Sizes of a tensor over tokens: the `tokens` it covers and the sizes after them.
    ///
    /// Dense tensors are `[B, T, rest..]`; packed ones `[total, rest..]` (or `[1, total, rest..]`).
    ///
    /// # Errors
    /// [`OpError::Shape`] when the shape is neither, covers another number of tokens, or a fixed size differs.
    pub fn token_dims<const REST: usize>(
        &self,
        name: &str,
        sequences: &Sequences,
        rest: [Dim; REST],
    ) -> Result<[usize; REST], OpError> {
        let shape = self.tensor(name).shape();
        let leads = match sequences.dense {
            Some((batch, tokens)) => {
                shape.len() == REST + 2 && shape[0] == batch && shape[1] == tokens
            }
            None => {
                let total = sequences.total();
                (shape.len() == REST + 1 && shape[0] == total)
                    || (shape.len() == REST + 2 && shape[0] == 1 && shape[1] == total)
            }
        };
        let tail = &shape[shape.len().saturating_sub(REST)..];
        let fits = leads
            && rest
                .iter()
                .zip(tail)
                .all(|(dim, size)| dim.size.is_none_or(|wanted| wanted == *size));
        match <[usize; REST]>::try_from(tail) {
            Ok(sizes) if fits => Ok(sizes),
            _ => {
                let mut dims = match sequences.dense {
                    Some((batch, tokens)) => vec![Dim::fixed("B", batch), Dim::fixed("T", tokens)],
                    None => vec![Dim::fixed("total", sequences.total())],
                };
                dims.extend(rest);
                Err(self.shape_error(name, &wanted(&dims)))
            }
        }
    }

    /// The sequences of a call, from the shape of its leading tensor and `cu_seqlens`, if given.
    ///
    /// `rank` is the rank of the dense form of tensor `name` (`[B, T, ..]`).
    ///
    /// # Errors
    /// [`OpError`] if the rank fits neither form or the offsets do not rise from 0 to the number of tokens.
    pub fn sequences(
        &self,
        name: &str,
        rank: usize,
        cu_seqlens: &str,
    ) -> Result<Sequences, OpError> {
        let shape = self.tensor(name).shape();
        if self.get(cu_seqlens).is_none() {
            if shape.len() != rank {
                let packed = if shape.len() + 1 == rank {
                    format!(" (packed tensors need `{cu_seqlens}`)")
                } else {
                    String::new()
                };
                return Err(
                    self.shape_error(name, &format!("{rank} dimensions [B, T, ..]{packed}"))
                );
            }
            return Ok(Sequences::dense(shape[0], shape[1]));
        }
        let total = match shape.len() {
            len if len + 1 == rank => shape[0],
            len if len == rank && shape[0] == 1 => shape[1],
            _ => {
                return Err(self.shape_error(
                    name,
                    &format!("{} dimensions [total, ..] with `{cu_seqlens}`", rank - 1),
                ));
            }
        };
        let offsets = self.integers(cu_seqlens)?;
        let rising = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if offsets.first() != Some(&0)
            || offsets.last().map(|last| *last as usize) != Some(total)
            || !rising
        {
            let what = format!(
                "must rise from 0 to the {total} tokens of `{name}`, got {}",
                shorten(offsets)
            );
            return Err(self.value_error(cu_seqlens, what));
        }
        Ok(Sequences {
            offsets: offsets.iter().map(|offset| *offset as usize).collect(),
            dense: None,
        })
    }

    /// A one-dimensional tensor of 32-bit integers.
    ///
    /// # Errors
    /// [`OpError`] when it has another type or rank.
    pub fn integers(&self, name: &str) -> Result<&'a [i32], OpError> {
        let tensor = self.tensor(name);
        self.dims(name, [Dim::free("n")])?;
        tensor.view::<i32>().ok_or_else(|| self.dtype_error(name, "i32"))
    }

    /// The floating-point type of a tensor that kernels store: f32, bf16 or f16.
    ///
    /// # Errors
    /// [`OpError::DType`] for any other.
    pub fn storage(&self, name: &str) -> Result<DType, OpError> {
        match self.tensor(name).dtype() {
            dtype @ (DType::F32 | DType::Bf16 | DType::F16) => Ok(dtype),
            _ => Err(self.dtype_error(name, "f32, bf16 or f16")),
        }
    }

    /// Checks that each tensor that was given has this type.
    ///
    /// # Errors
    /// [`OpError::DType`] naming the first that differs.
    pub fn same_storage(&self, names: &[&str], dtype: DType) -> Result<(), OpError> {
        match names.iter().find(|name| self.get(name).is_some_and(|tensor| tensor.dtype() != dtype))
        {
            Some(name) => {
                Err(self.dtype_error(name, &format!("{dtype} like the op's first tensor")))
            }
            None => Ok(()),
        }
    }

    /// Checks that optional tensors are in float32 or in the type of another one.
    ///
    /// # Errors
    /// [`OpError::DType`] naming the first that is in neither.
    pub(crate) fn f32_or_like(&self, like: &str, names: &[&str]) -> Result<(), OpError> {
        let dtype = self.tensor(like).dtype();
        let fits = |given: &Tensor| [dtype, DType::F32].contains(&given.dtype());
        match names.iter().find(|name| !self.get(name).is_none_or(fits)) {
            Some(name) => Err(self.dtype_error(name, &format!("f32 or {dtype} like `{like}`"))),
            None => Ok(()),
        }
    }

    /// Checks that `initial_state`, if given, has these dimensions and is float32.
    ///
    /// # Errors
    /// [`OpError`] when either is otherwise.
    pub(crate) fn f32_state<const RANK: usize>(&self, dims: [Dim; RANK]) -> Result<(), OpError> {
        const NAME: &str = "initial_state";
        let Some(state) = self.get(NAME) else { return Ok(()) };
        self.dims(NAME, dims)?;
        match state.dtype() {
            DType::F32 => Ok(()),
            _ => Err(self.dtype_error(NAME, "f32, the storage type of states")),
        }
    }

    /// An [`OpError::Shape`] for a tensor of this call.
    pub fn shape_error(&self, name: &str, wanted: &str) -> OpError {
        OpError::Shape {
            op: self.op,
            tensor: name.to_owned(),
            shape: self.tensor(name).shape().to_vec(),
            wanted: wanted.to_owned(),
        }
    }

    /// An [`OpError::DType`] for a tensor of this call.
    pub fn dtype_error(&self, name: &str, wanted: &str) -> OpError {
        OpError::DType {
            op: self.op,
            tensor: name.to_owned(),
            dtype: self.tensor(name).dtype(),
            wanted: wanted.to_owned(),
        }
    }

    /// An [`OpError::Value`] for a tensor of this call.
    pub fn value_error(&self, name: &str, what: impl Into<String>) -> OpError {
        OpError::Value { op: self.op, tensor: name.to_owned(), what: what.into() }
    }
}

fn shorten(offsets: &[i32]) -> String {
    if offsets.len() <= 8 {
        format!("{offsets:?}")
    } else {
        format!("{:?}.. ({} offsets)", &offsets[..8], offsets.len())
    }
}

/// Token rows of each sequence in a batch. Dense `[B, T, ..]` and packed `[total, ..]` tensors have the same memory layout, so
/// kernels use only these offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequences {
    offsets: Vec<usize>,
    dense: Option<(usize, usize)>,
}

impl Sequences {
    /// `batch` sequences of `tokens` tokens each.
    pub fn dense(batch: usize, tokens: usize) -> Self {
        Self {
            offsets: (0..=batch).map(|index| index * tokens).collect(),
            dense: Some((batch, tokens)),
        }
    }

    /// Number of sequences.
    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Token rows of one sequence.
    pub fn range(&self, index: usize) -> Range<usize> {
        self.offsets[index]..self.offsets[index + 1]
    }

    /// Token rows of every sequence, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.offsets.windows(2).map(|pair| pair[0]..pair[1])
    }

    /// Tokens of all sequences.
    pub fn total(&self) -> usize {
        self.offsets[self.offsets.len() - 1]
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        self.iter().map(|range| range.len()).max().unwrap_or(0)
    }

    /// `(B, T)` when the batch is dense, `None` when it is packed.
    pub fn batch_and_tokens(&self) -> Option<(usize, usize)> {
        self.dense
    }

    /// Their dimensions by name, followed by `rest`.
    pub(crate) fn dims(&self, rest: &[(&'static str, usize)]) -> Vec<(&'static str, u64)> {
        let lead = match self.dense {
            Some((batch, tokens)) => [("B", batch), ("T", tokens)],
            None => [("Nseq", self.count()), ("total", self.total())],
        };
        lead.iter().chain(rest).map(|(name, size)| (*name, *size as u64)).collect()
    }

    /// The shape of a tensor over these tokens: `[B, T, rest..]` or `[total, rest..]`.
    pub fn shape(&self, rest: &[usize]) -> Vec<usize> {
        let mut shape = match self.dense {
            Some((batch, tokens)) => vec![batch, tokens],
            None => vec![self.total()],
        };
        shape.extend(rest);
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(shape: &[usize], offsets: Option<Vec<i32>>, expect: Result<&[usize], &str>) {
        let mut tensors = TensorMap::new();
        tensors.insert("q".into(), Tensor::poisoned(shape, DType::F32));
        if let Some(offsets) = offsets {
            tensors.insert("cu_seqlens".into(), Tensor::new(&[offsets.len()], offsets));
        }
        let spec = <crate::attention::AttentionOp as crate::Family>::SPEC;
        let got = Inputs::of_map(spec, &tensors).sequences("q", 4, "cu_seqlens");
        match expect {
            Ok(offsets) => assert_eq!(got.unwrap().offsets, offsets),
            Err(words) => assert_eq!(got.unwrap_err().to_string(), words),
        }
    }

    #[test]
    fn dense_and_packed_batches_become_sequences() {
        check(&[2, 5, 1, 4], None, Ok(&[0, 5, 10]));
        check(&[0, 5, 1, 4], None, Ok(&[0]));
        check(&[7, 1, 4], Some(vec![0, 3, 3, 7]), Ok(&[0, 3, 3, 7]));
        check(&[1, 7, 1, 4], Some(vec![0, 7]), Ok(&[0, 7]));
        check(
            &[7, 1, 4],
            None,
            Err(
                "attention: tensor `q` has shape [7, 1, 4], wanted 4 dimensions [B, T, ..] (packed tensors need `cu_seqlens`)",
            ),
        );
        check(
            &[7, 1, 4],
            Some(vec![0, 5, 3, 7]),
            Err(
                "attention: tensor `cu_seqlens` must rise from 0 to the 7 tokens of `q`, got [0, 5, 3, 7]",
            ),
        );
        check(
            &[7, 1, 4],
            Some(vec![]),
            Err("attention: tensor `cu_seqlens` must rise from 0 to the 7 tokens of `q`, got []"),
        );
    }
}
