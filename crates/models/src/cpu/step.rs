//! What every layer of one step shares.

use crate::engine::Batch;
use crate::pages::Pages;
use device::{Device, HostBuffer};
use half::bf16;
use kernels::attention::Keys;
use kernels::{Element, OpError, Tensor, TensorMap, Typed};

/// One step: which tokens belong to which sequence, and where their states and caches lie.
pub(super) struct Step<'a> {
    pub(super) device: &'a Device,
    /// For each token its position in its sequence.
    pub(super) positions: Vec<usize>,
    /// For each token its row of the key/value pools.
    pub(super) cache_rows: Vec<usize>,
    /// Where each sequence begins `[sequences + 1]`.
    pub(super) offsets: Tensor,
    /// The slot of each sequence `[sequences]`.
    pub(super) slots: Tensor,
    table: Tensor,
    lengths: Tensor,
}

impl<'a> Step<'a> {
    /// The step of a batch for which the pages have grown already.
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

    /// The shape of a tensor over the step's tokens, of which each has these dimensions.
    pub(super) fn shape(&self, part: &[usize]) -> Vec<usize> {
        [&[self.tokens()], part].concat()
    }

    /// Where the cached keys of each sequence lie.
    pub(super) fn cache(&self) -> Keys<'_> {
        Keys::Paged { table: &self.table, lengths: &self.lengths }
    }

    /// Runs an op once by the variant that its selection takes, into tensors that are kept for the next step.
    pub(super) fn run<C: Typed>(&self, call: &C, outputs: &mut TensorMap) -> Result<(), OpError> {
        call.run(self.device, outputs)
    }
}

/// Takes a tensor from among an op's outputs, in float32; an op always gives what its table says.
pub(super) fn in_f32(outputs: &mut TensorMap, name: &str) -> Tensor {
    let tensor = outputs.remove(name).unwrap_or_else(|| Tensor::new(&[0], Vec::<f32>::new()));
    let Some(narrow) = tensor.view::<bf16>() else { return tensor };
    let mut wide = HostBuffer::filled(0f32, narrow.len());
    bf16::widen(narrow, &mut wide);
    f32::tensor(tensor.shape(), wide)
}
