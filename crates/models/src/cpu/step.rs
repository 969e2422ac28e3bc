//! What every layer of one step shares.

use crate::engine::Batch;
use crate::pages::Pages;
use device::{Device, HostBuffer};
use kernels::{DType, Element, Op, OpError, Settings, Tensor, TensorMap};

/// One step: which tokens belong to which sequence, and where their states and caches lie.
pub(super) struct Step<'a> {
    pub(super) device: &'a Device,
    /// For each token its position in its sequence.
    pub(super) positions: Vec<usize>,
    /// For each token its row of the key/value pools.
    pub(super) cache_rows: Vec<usize>,
    cu_seqlens: Tensor,
    state_indices: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
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
            cu_seqlens: integers(
                &[count + 1],
                batch.offsets.iter().map(|offset| *offset as i32).collect(),
            ),
            state_indices: integers(
                &[count],
                batch.sequences.iter().map(|sequence| *sequence as i32).collect(),
            ),
            block_table: integers(&table_shape, table),
            cache_seqlens: integers(&[count], lengths.collect()),
        }
    }

    /// Number of tokens.
    pub(super) fn tokens(&self) -> usize {
        self.positions.len()
    }

    /// Adds what tells an op with recurrent states which tokens and states belong together.
    pub(super) fn name_states(&self, inputs: &mut TensorMap) {
        inputs.insert("cu_seqlens".to_owned(), self.cu_seqlens.clone());
        inputs.insert("state_indices".to_owned(), self.state_indices.clone());
    }

    /// Adds what tells attention which queries and cached keys belong together.
    pub(super) fn name_cache(&self, inputs: &mut TensorMap) {
        inputs.insert("cu_seqlens".to_owned(), self.cu_seqlens.clone());
        inputs.insert("block_table".to_owned(), self.block_table.clone());
        inputs.insert("cache_seqlens".to_owned(), self.cache_seqlens.clone());
    }

    /// Runs an op once by the variant that its selection takes, into tensors that are kept for the next step. The pools of
    /// states or caches are the engine's own, and not searched for NaN in every step.
    pub(super) fn run(
        &self,
        op: &dyn Op,
        (inputs, pools): (&TensorMap, &[&str]),
        settings: &Settings,
        outputs: &mut TensorMap,
    ) -> Result<(), OpError> {
        let call = op.bind_trusting(inputs, settings, pools)?;
        let chosen = call.select(self.device, None)?.chosen;
        call.run_into(self.device, chosen, outputs)
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
