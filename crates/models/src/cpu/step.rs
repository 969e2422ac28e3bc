//! Data shared by every layer of one step.

use crate::engine::Batch;
use crate::pages::Pages;
use device::{Device, HostBuffer};
use half::bf16;
use ops::attention::Keys;
use ops::{Element, OpError, Tensor, TensorMap, Typed};

/// One step: which tokens belong to which sequence, and the location of their states and caches.
pub(super) struct Step<'a> {
    pub(super) device: &'a Device,
    /// The position of each token in its sequence.
    pub(super) positions: Vec<usize>,
    /// The cache row of each token.
    pub(super) cache_rows: Vec<usize>,
    /// First token of each sequence `[sequences + 1]`.
    pub(super) offsets: Tensor,
    /// The slot of each sequence `[sequences]`.
    pub(super) slots: Tensor,
    table: Tensor,
    lengths: Tensor,
}

impl<'a> Step<'a> {
    /// The step of a batch, after the pages have grown.
    pub(super) fn new(device: &'a Device, batch: &Batch, pages: &Pages) -> Self {
        let (mut positions, mut cache_rows) = (Vec::new(), Vec::new());
        for (sequence, tokens) in batch.lengths() {
            let end = pages.len(sequence);
            positions.extend(end - tokens..end);
            cache_rows.extend((end - tokens..end).map(|token| pages.row(sequence, token)));
        }
        let list = |values: &mut dyn Iterator<Item = usize>| {
            let values: Vec<i32> = values.map(|value| value as i32).collect();
            Tensor::new(&[values.len()], values)
        };
        let (table_shape, table) = pages.table(&batch.sequences);
        Self {
            device,
            positions,
            cache_rows,
            offsets: list(&mut batch.offsets.iter().copied()),
            slots: list(&mut batch.sequences.iter().copied()),
            table: Tensor::new(&table_shape, table),
            lengths: list(&mut batch.sequences.iter().map(|sequence| pages.len(*sequence))),
        }
    }

    /// Number of tokens.
    pub(super) fn tokens(&self) -> usize {
        self.positions.len()
    }

    /// The shape of a tensor with these dimensions per token.
    pub(super) fn shape(&self, part: &[usize]) -> Vec<usize> {
        [&[self.tokens()], part].concat()
    }

    /// The location of each sequence's cached keys.
    pub(super) fn cache(&self) -> Keys<'_> {
        Keys::Paged { table: &self.table, lengths: &self.lengths }
    }

    /// Runs the selected variant of an op into tensors that are reused by the next step.
    pub(super) fn run<C: Typed>(&self, call: &C, outputs: &mut TensorMap) -> Result<(), OpError> {
        call.run(self.device, outputs)
    }
}

/// Takes a tensor from an op's outputs, as float32. The op's contract guarantees that it is there.
pub(super) fn in_f32(outputs: &mut TensorMap, name: &str) -> Tensor {
    let tensor = outputs.remove(name).unwrap_or_else(|| Tensor::new(&[0], Vec::<f32>::new()));
    let Some(narrow) = tensor.view::<bf16>() else { return tensor };
    let mut wide = HostBuffer::filled(0f32, narrow.len());
    bf16::widen(narrow, &mut wide);
    f32::tensor(tensor.shape(), wide)
}
