//! Data shared by every layer of one step: which tokens belong to which sequence, and the location of their states and
//! caches.

use super::group::Group;
use super::sampling_inputs::SamplingInputs;
use crate::choice::{Choice, MAX_STOPS};
use crate::engine::Batch;
use crate::pages::{BLOCK, Pages};
use device::Device;
use device::cuda::{Buffer, DeviceError, Stream};
use ops::{DType, OpError, Tensor};
use ops_cuda::{PlannedLaunches, decoder};
use std::ops::Range;
use std::sync::Arc;

/// Converts a device error outside of any op.
pub(super) fn device_error(error: DeviceError) -> OpError {
    OpError::Device { op: "model", error }
}

/// The integer inputs of one step: on the host, where ops plan with them, and on the GPU.
#[derive(Debug)]
pub(super) struct Pass {
    /// Total number of tokens.
    pub(super) tokens: usize,
    /// Sequences.
    pub(super) sequences: usize,
    /// Whether each sequence has one token and the pass is captured.
    pub(super) one_token: bool,
    /// Token ids `[tokens]`.
    pub(super) ids: Arc<Buffer>,
    /// Position of each token in its sequence `[tokens]`.
    pub(super) positions: Arc<Buffer>,
    /// KV cache row of each token `[tokens]`.
    pub(super) rows: Arc<Buffer>,
    /// Index of the last token of each sequence `[sequences]`.
    pub(super) last: Arc<Buffer>,
    /// The sequences in order, grouped into those that decode one token each and those that prefill.
    pub(super) groups: Vec<Group>,
    /// Sampling inputs, if sampling is captured with the pass.
    pub(super) chooser: Option<SamplingInputs>,
}

/// The host's values of a group's integer inputs, for planning.
struct GroupInputs {
    /// Range of its sequences in the pass, and of its tokens.
    sequences: Range<usize>,
    rows: Range<usize>,
    offsets: Vec<i32>,
    lengths: Vec<i32>,
    /// Row width of the block table.
    width: usize,
    table: Vec<i32>,
}

/// Number of lists over all tokens; the lists of each group follow.
const OF_TOKENS: usize = 4;
const OF_GROUP: usize = 4;

/// Integer inputs that are uploaded in one copy; each list is aligned to 64 bytes.
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

    /// The concatenated lists.
    pub(super) fn whole(&self) -> Tensor {
        Tensor::new(&[self.all.len()], self.all.clone())
    }

    /// List `index` in the uploaded buffer.
    pub(super) fn list(&self, whole: &Buffer, index: usize) -> Result<Arc<Buffer>, OpError> {
        let end = self.starts.get(index + 1).copied().unwrap_or(self.all.len());
        let start = self.starts[index];
        whole.part(4 * start, 4 * (end - start)).map(Arc::new).map_err(device_error)
    }
}

/// Group boundaries of a batch's sequences: leading sequences of one token are a separate group if others have more.
fn groups(batch: &Batch) -> Vec<Range<usize>> {
    let all = batch.sequences.len();
    let single = batch.lengths().iter().take_while(|(_, tokens)| *tokens == 1).count();
    let ends = if single == 0 || single == all { vec![0, all] } else { vec![0, single, all] };
    ends.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

/// Packs the integer inputs of a batch, given each sequence's tokens before it. `padding` sequences are appended to the
/// last group: one token each, no state, keys in the padding block.
fn pack(
    (batch, before): (&Batch, &[usize]),
    groups: &[Range<usize>],
    pages: &Pages,
    width: impl Fn(&[usize]) -> usize,
    padding: usize,
) -> Packed {
    let mut packed = Packed::default();
    let integer = |value: usize| value as i32;
    let padded = |value: i32| std::iter::repeat_n(value, padding);
    let block = integer(pages.padding());
    let lengths: Vec<_> = batch.lengths().into_iter().zip(before).collect();
    let tokens = || {
        let of = |((sequence, tokens), before): &((usize, usize), &usize)| {
            let (sequence, before) = (*sequence, **before);
            (before..before + tokens).map(move |token| (sequence, token))
        };
        lengths.iter().flat_map(of)
    };
    packed.push(batch.tokens.iter().map(|id| id.cast_signed()).chain(padded(0)));
    packed.push(tokens().map(|(_, token)| integer(token)).chain(padded(0)));
    let rows = tokens().map(|(sequence, token)| integer(pages.row(sequence, token)));
    packed.push(rows.chain(padded(block * BLOCK as i32)));
    let ends = (1..=padding).map(|more| batch.tokens.len() + more);
    packed.push(batch.offsets[1..].iter().copied().chain(ends).map(|end| integer(end) - 1));
    for group in groups {
        let padding = if group.end == batch.sequences.len() { padding } else { 0 };
        let padded = |value: i32| std::iter::repeat_n(value, padding);
        let [first, end] = [group.start, group.end].map(|at| batch.offsets[at]);
        let offsets = batch.offsets[group.start..=group.end].iter().map(|offset| offset - first);
        packed.push(offsets.chain((1..=padding).map(|more| end - first + more)).map(integer));
        let sequences = &batch.sequences[group.clone()];
        packed.push(sequences.iter().copied().map(integer).chain(padded(-1)));
        let lengths = lengths[group.clone()].iter();
        let lengths = lengths.map(|((_, tokens), before)| integer(*before + tokens));
        packed.push(lengths.chain(padded(1)));
        // All entries are the padding block, so that no padding row reads another block.
        let width = width(sequences);
        let table = pages.table_of_width(sequences, width).into_iter();
        packed.push(table.chain(std::iter::repeat_n(block, padding * width)));
    }
    packed
}

impl Pass {
    /// The pass of a batch, after the pages have grown.
    pub(super) fn of(batch: &Batch, pages: &Pages, stream: &Stream) -> Result<Self, OpError> {
        let before: Vec<usize> = batch
            .lengths()
            .into_iter()
            .map(|(sequence, tokens)| pages.len(sequence) - tokens)
            .collect();
        let width = |sequences: &[usize]| {
            sequences.iter().map(|sequence| pages.blocks_of(*sequence)).max().unwrap_or(0)
        };
        let groups = groups(batch);
        let packed = pack((batch, &before), &groups, pages, width, 0);
        let whole = stream.upload_transient(packed.whole().bytes()).map_err(device_error)?;
        let known = |group: &Range<usize>| {
            let sequences = &batch.sequences[group.clone()];
            let offsets = &batch.offsets[group.start..=group.end];
            GroupInputs {
                sequences: group.clone(),
                rows: offsets[0]..offsets[group.len()],
                offsets: offsets.iter().map(|offset| (offset - offsets[0]) as i32).collect(),
                lengths: sequences.iter().map(|sequence| pages.len(*sequence) as i32).collect(),
                width: width(sequences),
                table: pages.table_of_width(sequences, width(sequences)),
            }
        };
        let known: Vec<GroupInputs> = groups.iter().map(known).collect();
        let mut pass = Self::over(&packed, &whole, known)?;
        let several = pass.groups.len() > 1;
        for (group, of) in pass.groups.iter_mut().zip(groups) {
            group.one_token = several && of.start == 0;
            group.fresh = before[of.clone()].iter().all(|before| *before == 0);
            group.slots_known = batch.sequences[of].to_vec();
            if let [sequence] = group.slots_known[..] {
                group.keys_known = Some(pages.len(sequence));
            }
        }
        Ok(pass)
    }

    /// A pass of one token for each of up to `sequences` sequences with up to `width` blocks, whose inputs
    /// [`Self::write`] sets before each run. Missing sequences are padding.
    pub(super) fn recorded(
        [sequences, width]: [usize; 2],
        stream: &Stream,
    ) -> Result<(Self, Buffer), OpError> {
        let mut packed = Packed::default();
        let lists = [1, 1, 1, 1, 0, 1, 1, width].into_iter().chain(SamplingInputs::ROWS);
        for length in lists {
            // Offsets have one more entry than there are sequences.
            let length = if length == 0 { sequences + 1 } else { length * sequences };
            packed.push(std::iter::repeat_n(0, length));
        }
        let whole = stream.upload(packed.whole().bytes()).map_err(device_error)?;
        let keys = (width * BLOCK) as i32;
        let known = GroupInputs {
            sequences: 0..sequences,
            rows: 0..sequences,
            lengths: vec![keys; sequences],
            width,
            // Planning only checks that blocks are within the pools; the GPU reads the real ones.
            table: vec![0; sequences * width],
            offsets: (0..=sequences as i32).collect(),
        };
        let mut pass = Self::over(&packed, &whole, vec![known])?;
        pass.one_token = true;
        pass.groups[0].one_token = true;
        // The position in the sequence is the index of the random draw.
        let draw = Tensor::on_gpu(Arc::clone(&pass.positions), &[sequences], DType::I32)?;
        let slots = pass.groups[0].slots.on()?;
        let slots = Tensor::on_gpu(Arc::clone(slots), &[sequences], DType::I32)?;
        let first = OF_TOKENS + OF_GROUP;
        let chooser = SamplingInputs::over((&packed, &whole), first, sequences, draw, slots)?;
        Ok((Self { chooser: Some(chooser), ..pass }, whole))
    }

    /// Writes a batch and its sampling parameters into a captured pass.
    pub(super) fn write(
        &self,
        (batch, before): (&Batch, &[usize]),
        how: &[Option<Choice<'_>>],
        pages: &Pages,
        (stream, whole): (&Stream, &Buffer),
    ) -> Result<(), OpError> {
        let padding = self.sequences.saturating_sub(batch.sequences.len());
        let (all, width) = (0..batch.sequences.len(), self.groups[0].table_width());
        let mut packed = pack((batch, before), &[all], pages, |_| width, padding);
        SamplingInputs::push(&mut packed, how, self.sequences.saturating_sub(how.len()));
        stream.write(whole, packed.whole().bytes()).map_err(device_error)
    }

    fn over(packed: &Packed, whole: &Buffer, known: Vec<GroupInputs>) -> Result<Self, OpError> {
        let list = |index| packed.list(whole, index);
        let group = |(at, known): (usize, GroupInputs)| -> Result<Group, OpError> {
            let integers = |index, shape: &[usize], known: Vec<i32>| {
                let index = OF_TOKENS + OF_GROUP * at + index;
                Tensor::integers(list(index)?, shape, known.into())
            };
            let sequences = known.sequences.len();
            Ok(Group {
                rows: known.rows,
                sequences,
                one_token: false,
                fresh: false,
                keys_known: None,
                slots_known: Vec::new(),
                offsets: integers(0, &[sequences + 1], known.offsets)?,
                slots: integers(1, &[sequences], (0..sequences as i32).collect())?,
                lengths: integers(2, &[sequences], known.lengths)?,
                table: integers(3, &[sequences, known.width], known.table)?,
            })
        };
        let groups = known.into_iter().enumerate().map(group).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            tokens: groups.iter().map(|group| group.rows.len()).sum(),
            sequences: groups.iter().map(|group| group.sequences).sum(),
            one_token: false,
            ids: list(0)?,
            positions: list(1)?,
            rows: list(2)?,
            last: list(3)?,
            groups,
            chooser: None,
        })
    }

    /// Plans the update of a captured pass's inputs for the next step, whose tokens the GPU chose; sequences may end by
    /// a stop token.
    pub(super) fn plan_next(
        &self,
        device: &Device,
        [chosen, stops]: [&Tensor; 2],
        counts: Option<&Tensor>,
        vocabulary: usize,
    ) -> Result<PlannedLaunches, OpError> {
        let group = &self.groups[0];
        let next = decoder::DecodeIndices {
            chosen: chosen.on()?,
            stops: stops.on()?,
            most: MAX_STOPS,
            counts: counts.map(Tensor::on).transpose()?,
            slots: group.slots.on()?,
            vocabulary,
            ids: &self.ids,
            positions: &self.positions,
            rows: &self.rows,
            lengths: group.lengths.on()?,
            table: group.table.on()?,
            count: self.sequences,
            table_width: group.table_width(),
            block: BLOCK,
        };
        decoder::next(device, &next)
    }

    /// Shape of tensors over tokens: dense for one token per sequence and for a single sequence, packed otherwise.
    pub(super) fn shape(&self, rest: &[usize]) -> Vec<usize> {
        match &self.groups[..] {
            [group] => group.shape(rest),
            _ => [&[self.tokens], rest].concat(),
        }
    }
}
