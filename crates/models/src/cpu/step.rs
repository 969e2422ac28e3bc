//! What every layer of one step shares.

use crate::engine::Batch;
use crate::pages::Pages;
use device::{Device, HostBuffer};
use kernels::attention::Keys;
use kernels::{DType, Element, OpError, States, Tensor, TensorMap, Typed};

/// One step: which tokens belong to which sequence, and where their states and caches lie.
pub(super) struct Step<'a> {
    pub(super) device: &'a Device,
    /// For each token its position in its sequence.
    pub(super) positions: Vec<usize>,
    /// For each token its row of the key/value pools.
    pub(super) cache_rows: Vec<usize>,
    /// Where each sequence begins `[sequences + 1]`.
    pub(super) offsets: Tensor,
    slots: Tensor,
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
        let integers = |shape: &[usize], values: Vec<i32>| Tensor::new(shape, values);
        let count = batch.sequences.len();
        let lengths = batch.sequences.iter().map(|sequence| pages.len(*sequence) as i32);
        let (table_shape, table) = pages.table(&batch.sequences);
        Self {
            device,
            positions,
            cache_rows,
            offsets: integers(
                &[count + 1],
                batch.offsets.iter().map(|offset| *offset as i32).collect(),
            ),
            slots: integers(
                &[count],
                batch.sequences.iter().map(|sequence| *sequence as i32).collect(),
            ),
            table: integers(&table_shape, table),
            lengths: integers(&[count], lengths.collect()),
        }
    }

    /// Number of tokens.
    pub(super) fn tokens(&self) -> usize {
        self.positions.len()
    }

    /// States of all places, of which each sequence has its own.
    pub(super) fn states<'t>(&'t self, pool: &'t Tensor) -> States<'t> {
        States { before: Some(pool), slots: Some(&self.slots), after: None }
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

/// Takes a tensor's values from among an op's outputs, in float32; an op always gives what its table says.
pub(super) fn take(outputs: &mut TensorMap, name: &str) -> HostBuffer<f32> {
    let tensor = outputs.remove(name).map(|tensor| match tensor.dtype() {
        DType::F32 => tensor,
        _ => tensor.cast(DType::F32),
    });
    tensor.and_then(f32::buffer).unwrap_or_else(|| HostBuffer::filled(0.0, 0))
}
