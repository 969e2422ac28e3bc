//! What every layer of one step shares: which tokens belong to which sequence, and where their states and caches lie.

use super::call::OpCall;
use super::tensor::device_error;
use crate::engine::Batch;
use crate::pages::{BLOCK, Pages};
use device::Device;
use device::cuda::{Buffer, Stream};
use kernels::cuda::Planned;
use kernels::{OpError, Tensor, decoder};
use std::sync::Arc;

/// One step's integers, on the host as ops plan with them and on the GPU as kernels read them.
#[derive(Debug)]
pub(super) struct Pass {
    /// Tokens of all sequences.
    pub(super) tokens: usize,
    /// Sequences.
    pub(super) sequences: usize,
    /// Whether each sequence has one token.
    pub(super) one_token: bool,
    /// Whether no sequence had a token before.
    pub(super) fresh: bool,
    /// Place of each sequence; empty where the GPU alone knows.
    pub(super) places: Vec<usize>,
    /// Token ids `[tokens]`.
    pub(super) ids: Arc<Buffer>,
    /// Where each token stands in its sequence `[tokens]`.
    pub(super) positions: Arc<Buffer>,
    /// The row of the key/value pools that each token has `[tokens]`.
    pub(super) rows: Arc<Buffer>,
    /// The last token of each sequence `[sequences]`.
    pub(super) last: Arc<Buffer>,
    offsets: Vec<i32>,
    lengths: Vec<i32>,
    table: Vec<i32>,
    table_width: usize,
    gpu_offsets: Arc<Buffer>,
    gpu_places: Arc<Buffer>,
    gpu_lengths: Arc<Buffer>,
    gpu_table: Arc<Buffer>,
}

/// Integers that go to the GPU in one piece, each list at 64 bytes.
#[derive(Debug, Default)]
struct Packed {
    all: Vec<i32>,
    starts: Vec<usize>,
}

impl Packed {
    fn push(&mut self, values: impl IntoIterator<Item = i32>) {
        self.all.resize(self.all.len().next_multiple_of(16), 0);
        self.starts.push(self.all.len());
        self.all.extend(values);
    }

    /// The lists behind each other.
    fn whole(&self) -> Tensor {
        Tensor::new(&[self.all.len()], self.all.clone())
    }

    /// List `index` in the buffer that the whole was written to.
    fn list(&self, whole: &Buffer, index: usize) -> Result<Arc<Buffer>, OpError> {
        let end = self.starts.get(index + 1).copied().unwrap_or(self.all.len());
        let start = self.starts[index];
        whole.part(4 * start, 4 * (end - start)).map(Arc::new).map_err(device_error)
    }
}

/// The integers of a batch whose sequences have so many tokens before it.
fn pack(batch: &Batch, before: &[usize], pages: &Pages, width: usize) -> Packed {
    let mut packed = Packed::default();
    let integer = |value: usize| value as i32;
    let lengths = || batch.lengths().into_iter().zip(before);
    let tokens = || {
        lengths().flat_map(|((sequence, tokens), before)| {
            (*before..before + tokens).map(move |token| (sequence, token))
        })
    };
    packed.push(batch.tokens.iter().map(|id| id.cast_signed()));
    packed.push(tokens().map(|(_, token)| integer(token)));
    packed.push(tokens().map(|(sequence, token)| integer(pages.row(sequence, token))));
    packed.push(batch.offsets[1..].iter().map(|end| integer(*end) - 1));
    packed.push(batch.offsets.iter().copied().map(integer));
    packed.push(batch.sequences.iter().copied().map(integer));
    packed.push(lengths().map(|((_, tokens), before)| integer(before + tokens)));
    packed.push(pages.table_of_width(&batch.sequences, width));
    packed
}

impl Pass {
    /// The pass of a batch for which the pages have grown already.
    pub(super) fn of(batch: &Batch, pages: &Pages, stream: &Stream) -> Result<Self, OpError> {
        let lengths = batch.sequences.iter().map(|sequence| pages.len(*sequence));
        let before: Vec<usize> = batch
            .lengths()
            .into_iter()
            .map(|(sequence, tokens)| pages.len(sequence) - tokens)
            .collect();
        let width = batch.sequences.iter().map(|sequence| pages.blocks_of(*sequence)).max();
        let width = width.unwrap_or(0);
        let packed = pack(batch, &before, pages, width);
        let whole = stream.upload(packed.whole().bytes()).map_err(device_error)?;
        Ok(Self {
            one_token: false,
            fresh: before.iter().all(|before| *before == 0),
            places: batch.sequences.clone(),
            lengths: lengths.map(|length| length as i32).collect(),
            table: pages.table_of_width(&batch.sequences, width),
            offsets: batch.offsets.iter().map(|offset| *offset as i32).collect(),
            ..Self::over(&packed, &whole, [batch.sequences.len(), width], batch.tokens.len())?
        })
    }

    /// A pass of one token of each of so many sequences, of up to `width` blocks: any of them, as [`Self::write`] says
    /// before each time it runs.
    pub(super) fn recorded(
        [sequences, width]: [usize; 2],
        stream: &Stream,
    ) -> Result<(Self, Buffer), OpError> {
        let mut packed = Packed::default();
        for length in [1, 1, 1, 1, 0, 1, 1, width] {
            // Offsets have one more than there are sequences.
            let length = if length == 0 { sequences + 1 } else { length * sequences };
            packed.push(std::iter::repeat_n(0, length));
        }
        let whole = stream.upload(packed.whole().bytes()).map_err(device_error)?;
        let keys = (width * BLOCK) as i32;
        let pass = Self {
            one_token: true,
            fresh: false,
            lengths: vec![keys; sequences],
            // Ops look whether blocks are in the pools, nothing else: the GPU reads the real ones.
            table: vec![0; sequences * width],
            offsets: (0..=sequences as i32).collect(),
            ..Self::over(&packed, &whole, [sequences, width], sequences)?
        };
        Ok((pass, whole))
    }

    /// Lays a batch into the buffer of a recorded pass.
    pub(super) fn write(
        &self,
        (batch, before): (&Batch, &[usize]),
        pages: &Pages,
        (stream, whole): (&Stream, &Buffer),
    ) -> Result<(), OpError> {
        let packed = pack(batch, before, pages, self.table_width);
        stream.write(whole, packed.whole().bytes()).map_err(device_error)
    }

    fn over(
        packed: &Packed,
        whole: &Buffer,
        [sequences, table_width]: [usize; 2],
        tokens: usize,
    ) -> Result<Self, OpError> {
        let list = |index| packed.list(whole, index);
        Ok(Self {
            tokens,
            sequences,
            one_token: false,
            fresh: false,
            places: Vec::new(),
            ids: list(0)?,
            positions: list(1)?,
            rows: list(2)?,
            last: list(3)?,
            gpu_offsets: list(4)?,
            gpu_places: list(5)?,
            gpu_lengths: list(6)?,
            gpu_table: list(7)?,
            offsets: Vec::new(),
            lengths: Vec::new(),
            table: Vec::new(),
            table_width,
        })
    }

    /// Plans the step from a recorded pass to the one behind it, whose tokens were chosen on the GPU.
    pub(super) fn plan_next(
        &self,
        device: &Device,
        chosen: &Arc<Buffer>,
    ) -> Result<Planned, OpError> {
        let next = decoder::Next {
            chosen,
            ids: &self.ids,
            positions: &self.positions,
            rows: &self.rows,
            lengths: &self.gpu_lengths,
            table: &self.gpu_table,
            count: self.sequences,
            table_width: self.table_width,
            block: BLOCK,
        };
        decoder::next(device, &next)
    }

    /// The leading dimensions of tensors over tokens: dense for one token a sequence and for one sequence, packed else.
    pub(super) fn shape(&self, rest: &[usize]) -> Vec<usize> {
        let leading: &[usize] = match (self.one_token, self.sequences) {
            (true, sequences) => &[sequences, 1],
            (false, 1) => &[1, self.tokens],
            (false, _) => &[self.tokens],
        };
        [leading, rest].concat()
    }

    /// Tells an op which tokens of packed sequences belong together.
    pub(super) fn name_sequences(&self, call: OpCall) -> OpCall {
        if self.one_token || self.sequences == 1 {
            return call;
        }
        let planned = (&[self.sequences + 1][..], self.offsets.clone());
        call.integers("cu_seqlens", planned, &self.gpu_offsets)
    }

    /// Tells an op with a pool of states which one each sequence has.
    pub(super) fn name_places(&self, call: OpCall) -> OpCall {
        let planned = (0..self.sequences as i32).collect();
        call.integers("state_indices", (&[self.sequences], planned), &self.gpu_places)
    }

    /// Tells attention where the keys and values of each sequence lie.
    pub(super) fn name_cache(&self, call: OpCall) -> OpCall {
        let table = (&[self.sequences, self.table_width][..], self.table.clone());
        let lengths = (&[self.sequences][..], self.lengths.clone());
        call.integers("block_table", table, &self.gpu_table).integers(
            "cache_seqlens",
            lengths,
            &self.gpu_lengths,
        )
    }
}
