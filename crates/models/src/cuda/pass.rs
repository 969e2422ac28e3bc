//! What every layer of one step shares: which tokens belong to which sequence, and where their states and caches lie.

use super::choose::Chooser;
use crate::choice::{Choice, MOST_STOPS};
use crate::engine::Batch;
use crate::pages::{BLOCK, Pages};
use device::Device;
use device::cuda::{Buffer, CudaError, Stream};
use kernels::cuda::Planned;
use kernels::{DType, OpError, Tensor, attention, decoder};
use std::sync::Arc;

/// An error of the device outside any op.
pub(super) fn device_error(error: CudaError) -> OpError {
    OpError::Cuda { op: "model", error }
}

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
    /// Slot of each sequence; empty where the GPU alone knows.
    pub(super) slots_known: Vec<usize>,
    /// Token ids `[tokens]`.
    pub(super) ids: Arc<Buffer>,
    /// Where each token stands in its sequence `[tokens]`.
    pub(super) positions: Arc<Buffer>,
    /// The row of the key/value pools that each token has `[tokens]`.
    pub(super) rows: Arc<Buffer>,
    /// The last token of each sequence `[sequences]`.
    pub(super) last: Arc<Buffer>,
    /// Where each sequence begins `[sequences + 1]`.
    offsets: Tensor,
    /// The slot of each sequence in pools of states `[sequences]`, -1 for padding. Ops plan with others, of which there are as
    /// many.
    pub(super) slots: Tensor,
    /// Tokens of each sequence with those of the step `[sequences]`; where the GPU alone knows, the most there may be.
    lengths: Tensor,
    /// Blocks of each sequence `[sequences, table_width]`.
    table: Tensor,
    table_width: usize,
    /// How the next tokens are chosen, where that is recorded with the pass.
    pub(super) chooser: Option<Chooser>,
}

/// What the host plans with in place of integers on the GPU.
struct Known {
    offsets: Vec<i32>,
    lengths: Vec<i32>,
    table: Vec<i32>,
}

/// Lists of a pass, behind which those of its choices lie.
const LISTS: usize = 8;

/// Integers that go to the GPU in one piece, each list at 64 bytes.
#[derive(Debug, Default)]
pub(super) struct Packed {
    all: Vec<i32>,
    starts: Vec<usize>,
}

impl Packed {
    pub(super) fn push(&mut self, values: impl IntoIterator<Item = i32>) {
        self.all.resize(self.all.len().next_multiple_of(16), 0);
        self.starts.push(self.all.len());
        self.all.extend(values);
    }

    /// The lists behind each other.
    pub(super) fn whole(&self) -> Tensor {
        Tensor::new(&[self.all.len()], self.all.clone())
    }

    /// List `index` in the buffer that the whole was written to.
    pub(super) fn list(&self, whole: &Buffer, index: usize) -> Result<Arc<Buffer>, OpError> {
        let end = self.starts.get(index + 1).copied().unwrap_or(self.all.len());
        let start = self.starts[index];
        whole.part(4 * start, 4 * (end - start)).map(Arc::new).map_err(device_error)
    }
}

/// The integers of a batch whose sequences have so many tokens before it, and of so many sequences of padding: one token each,
/// without a state, whose keys lie in a block of their own.
fn pack(
    (batch, before): (&Batch, &[usize]),
    pages: &Pages,
    width: usize,
    padding: usize,
) -> Packed {
    let mut packed = Packed::default();
    let integer = |value: usize| value as i32;
    let padded = |value: i32| std::iter::repeat_n(value, padding);
    let block = integer(pages.padding());
    let ends = || (1..=padding).map(|more| integer(batch.tokens.len() + more));
    let lengths = || batch.lengths().into_iter().zip(before);
    let tokens = || {
        lengths().flat_map(|((sequence, tokens), before)| {
            (*before..before + tokens).map(move |token| (sequence, token))
        })
    };
    packed.push(batch.tokens.iter().map(|id| id.cast_signed()).chain(padded(0)));
    packed.push(tokens().map(|(_, token)| integer(token)).chain(padded(0)));
    let rows = tokens().map(|(sequence, token)| integer(pages.row(sequence, token)));
    packed.push(rows.chain(padded(block * BLOCK as i32)));
    let last = batch.offsets[1..].iter().copied().map(integer).chain(ends());
    packed.push(last.map(|end| end - 1));
    packed.push(batch.offsets.iter().copied().map(integer).chain(ends()));
    packed.push(batch.sequences.iter().copied().map(integer).chain(padded(-1)));
    let lengths = lengths().map(|((_, tokens), before)| integer(before + tokens));
    packed.push(lengths.chain(padded(1)));
    // All of it the one block, so that no step of theirs leads anywhere else.
    let table = pages.table_of_width(&batch.sequences, width).into_iter();
    packed.push(table.chain(std::iter::repeat_n(block, padding * width)));
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
        let packed = pack((batch, &before), pages, width, 0);
        let whole = stream.upload(packed.whole().bytes()).map_err(device_error)?;
        let known = Known {
            lengths: lengths.map(|length| length as i32).collect(),
            table: pages.table_of_width(&batch.sequences, width),
            offsets: batch.offsets.iter().map(|offset| *offset as i32).collect(),
        };
        let sizes = [batch.sequences.len(), width, batch.tokens.len()];
        Ok(Self {
            one_token: false,
            fresh: before.iter().all(|before| *before == 0),
            slots_known: batch.sequences.clone(),
            ..Self::over(&packed, &whole, sizes, known)?
        })
    }

    /// A pass of one token of each of up to so many sequences, of up to `width` blocks: any of them, as [`Self::write`] says
    /// before each time it runs. Of fewer sequences than that the rest is padding.
    pub(super) fn recorded(
        [sequences, width]: [usize; 2],
        stream: &Stream,
    ) -> Result<(Self, Buffer), OpError> {
        let mut packed = Packed::default();
        let lists = [1, 1, 1, 1, 0, 1, 1, width].into_iter().chain(Chooser::ROWS);
        for length in lists {
            // Offsets have one more than there are sequences.
            let length = if length == 0 { sequences + 1 } else { length * sequences };
            packed.push(std::iter::repeat_n(0, length));
        }
        let whole = stream.upload(packed.whole().bytes()).map_err(device_error)?;
        let keys = (width * BLOCK) as i32;
        let known = Known {
            lengths: vec![keys; sequences],
            // Ops look whether blocks are in the pools, nothing else: the GPU reads the real ones.
            table: vec![0; sequences * width],
            offsets: (0..=sequences as i32).collect(),
        };
        let sizes = [sequences, width, sequences];
        let pass = Self { one_token: true, ..Self::over(&packed, &whole, sizes, known)? };
        // Of a sequence's draws each place in it has its own.
        let draw = Tensor::on_gpu(Arc::clone(&pass.positions), &[sequences], DType::I32)?;
        let slots = Tensor::on_gpu(Arc::clone(pass.slots.on()?), &[sequences], DType::I32)?;
        let chooser = Chooser::over((&packed, &whole), LISTS, sequences, draw, slots)?;
        Ok((Self { chooser: Some(chooser), ..pass }, whole))
    }

    /// Lays a batch, and how its next tokens are chosen, into the buffer of a recorded pass.
    pub(super) fn write(
        &self,
        (batch, before): (&Batch, &[usize]),
        how: &[Option<Choice<'_>>],
        pages: &Pages,
        (stream, whole): (&Stream, &Buffer),
    ) -> Result<(), OpError> {
        let padding = self.sequences.saturating_sub(batch.sequences.len());
        let mut packed = pack((batch, before), pages, self.table_width, padding);
        Chooser::push(&mut packed, how, self.sequences.saturating_sub(how.len()));
        stream.write(whole, packed.whole().bytes()).map_err(device_error)
    }

    fn over(
        packed: &Packed,
        whole: &Buffer,
        [sequences, table_width, tokens]: [usize; 3],
        known: Known,
    ) -> Result<Self, OpError> {
        let list = |index| packed.list(whole, index);
        let integers = |index, shape: &[usize], known: Vec<i32>| {
            Tensor::integers(list(index)?, shape, known.into())
        };
        Ok(Self {
            tokens,
            sequences,
            one_token: false,
            fresh: false,
            slots_known: Vec::new(),
            ids: list(0)?,
            positions: list(1)?,
            rows: list(2)?,
            last: list(3)?,
            offsets: integers(4, &[sequences + 1], known.offsets)?,
            slots: integers(5, &[sequences], (0..sequences as i32).collect())?,
            lengths: integers(6, &[sequences], known.lengths)?,
            table: integers(7, &[sequences, table_width], known.table)?,
            table_width,
            chooser: None,
        })
    }

    /// Plans the step from a recorded pass to the one behind it, whose tokens were chosen on the GPU: some of them end their
    /// sequences.
    pub(super) fn plan_next(
        &self,
        device: &Device,
        [chosen, stops]: [&Tensor; 2],
        counts: Option<&Tensor>,
        vocabulary: usize,
    ) -> Result<Planned, OpError> {
        let next = decoder::Next {
            chosen: chosen.on()?,
            stops: stops.on()?,
            most: MOST_STOPS,
            counts: counts.map(Tensor::on).transpose()?,
            slots: self.slots.on()?,
            vocabulary,
            ids: &self.ids,
            positions: &self.positions,
            rows: &self.rows,
            lengths: self.lengths.on()?,
            table: self.table.on()?,
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

    /// Where each sequence of packed tokens begins; none where tokens are dense.
    pub(super) fn offsets(&self) -> Option<&Tensor> {
        (!self.one_token && self.sequences > 1).then_some(&self.offsets)
    }

    /// Where the keys and values of each sequence lie in the pools.
    pub(super) fn cache(&self) -> attention::Keys<'_> {
        attention::Keys::Paged { table: &self.table, lengths: &self.lengths }
    }
}
