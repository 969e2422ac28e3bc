//! What every layer of one step shares: which tokens belong to which sequence, and where their states and caches lie.

use super::choose::Chooser;
use super::group::Group;
use crate::choice::{Choice, MOST_STOPS};
use crate::engine::Batch;
use crate::pages::{BLOCK, Pages};
use device::Device;
use device::cuda::{Buffer, CudaError, Stream};
use kernels::cuda::Planned;
use kernels::{DType, OpError, Tensor, decoder};
use std::ops::Range;
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
    /// Whether each sequence has one token, and the pass is recorded.
    pub(super) one_token: bool,
    /// Token ids `[tokens]`.
    pub(super) ids: Arc<Buffer>,
    /// Where each token stands in its sequence `[tokens]`.
    pub(super) positions: Arc<Buffer>,
    /// The row of the key/value pools that each token has `[tokens]`.
    pub(super) rows: Arc<Buffer>,
    /// The last token of each sequence `[sequences]`.
    pub(super) last: Arc<Buffer>,
    /// The sequences, in order: those that decode a token each are a group of their own beside those whose prompts are read.
    pub(super) groups: Vec<Group>,
    /// How the next tokens are chosen, where that is recorded with the pass.
    pub(super) chooser: Option<Chooser>,
}

/// What the host plans with in place of a group's integers on the GPU.
struct Known {
    /// Sequences among those of the pass, and tokens likewise.
    sequences: Range<usize>,
    rows: Range<usize>,
    offsets: Vec<i32>,
    lengths: Vec<i32>,
    /// Blocks of a row of the table.
    width: usize,
    table: Vec<i32>,
}

/// Lists of all tokens, and then of each group.
const OF_TOKENS: usize = 4;
const OF_GROUP: usize = 4;

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

/// Where groups of a batch's sequences begin, and the end: those ahead that have one token each are a group if others have more.
fn groups(batch: &Batch) -> Vec<Range<usize>> {
    let all = batch.sequences.len();
    let single = batch.lengths().iter().take_while(|(_, tokens)| *tokens == 1).count();
    let ends = if single == 0 || single == all { vec![0, all] } else { vec![0, single, all] };
    ends.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

/// The integers of a batch whose sequences have so many tokens before it, and of so many sequences of padding, which stand in the
/// last group: one token each, without a state, whose keys lie in a block of their own.
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
        // All of it the one block, so that no step of theirs leads anywhere else.
        let width = width(sequences);
        let table = pages.table_of_width(sequences, width).into_iter();
        packed.push(table.chain(std::iter::repeat_n(block, padding * width)));
    }
    packed
}

impl Pass {
    /// The pass of a batch for which the pages have grown already.
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
            Known {
                sequences: group.clone(),
                rows: offsets[0]..offsets[group.len()],
                offsets: offsets.iter().map(|offset| (offset - offsets[0]) as i32).collect(),
                lengths: sequences.iter().map(|sequence| pages.len(*sequence) as i32).collect(),
                width: width(sequences),
                table: pages.table_of_width(sequences, width(sequences)),
            }
        };
        let known: Vec<Known> = groups.iter().map(known).collect();
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
            sequences: 0..sequences,
            rows: 0..sequences,
            lengths: vec![keys; sequences],
            width,
            // Ops look whether blocks are in the pools, nothing else: the GPU reads the real ones.
            table: vec![0; sequences * width],
            offsets: (0..=sequences as i32).collect(),
        };
        let mut pass = Self::over(&packed, &whole, vec![known])?;
        pass.one_token = true;
        pass.groups[0].one_token = true;
        // Of a sequence's draws each place in it has its own.
        let draw = Tensor::on_gpu(Arc::clone(&pass.positions), &[sequences], DType::I32)?;
        let slots = pass.groups[0].slots.on()?;
        let slots = Tensor::on_gpu(Arc::clone(slots), &[sequences], DType::I32)?;
        let first = OF_TOKENS + OF_GROUP;
        let chooser = Chooser::over((&packed, &whole), first, sequences, draw, slots)?;
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
        let (all, width) = (0..batch.sequences.len(), self.groups[0].table_width());
        let mut packed = pack((batch, before), &[all], pages, |_| width, padding);
        Chooser::push(&mut packed, how, self.sequences.saturating_sub(how.len()));
        stream.write(whole, packed.whole().bytes()).map_err(device_error)
    }

    fn over(packed: &Packed, whole: &Buffer, known: Vec<Known>) -> Result<Self, OpError> {
        let list = |index| packed.list(whole, index);
        let group = |(at, known): (usize, Known)| -> Result<Group, OpError> {
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

    /// Plans the step from a recorded pass to the one behind it, whose tokens were chosen on the GPU: some of them end their
    /// sequences.
    pub(super) fn plan_next(
        &self,
        device: &Device,
        [chosen, stops]: [&Tensor; 2],
        counts: Option<&Tensor>,
        vocabulary: usize,
    ) -> Result<Planned, OpError> {
        let group = &self.groups[0];
        let next = decoder::Next {
            chosen: chosen.on()?,
            stops: stops.on()?,
            most: MOST_STOPS,
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

    /// The shape of tensors over tokens that have so much of each: dense for one token a sequence and for one sequence, packed else.
    pub(super) fn shape(&self, rest: &[usize]) -> Vec<usize> {
        match &self.groups[..] {
            [group] => group.shape(rest),
            _ => [&[self.tokens], rest].concat(),
        }
    }
}
