//! What one rank of a split model adds to the residual stream on its GPU, until the ranks' sum of it is there.

use super::failed;
use super::pass::device_error;
use super::run::Run;
use super::weights::CudaProjection;
use crate::program::{Input, RmsNorm};
use crate::{Architecture, ModelError, Ranks};
use device::cuda::{Buffer, Communicator, NCCL_ID_BYTES, Nccl, Stream};
use kernels::linear::{Finish, LinearCall};
use kernels::{DType, OpError, Tensor, decoder};
use std::sync::Arc;

/// Joins the GPUs of a model's ranks; rank 0 says by what they find one another.
pub(super) fn join(
    ranks: &Ranks,
    architecture: &Architecture,
    cuda: &device::cuda::Cuda,
) -> Result<Arc<Communicator>, ModelError> {
    if architecture.is_routed() {
        let what = "experts are split over processors alone so far, not over GPUs".to_owned();
        return Err(ModelError::Device(what));
    }
    let nccl = Nccl::find()?;
    let place = ranks.place();
    let version = nccl.version().map(u32::to_le_bytes).concat();
    let own = if place.rank == 0 { [&nccl.id()?[..], &version].concat() } else { Vec::new() };
    let given = ranks.hand_out(own)?;
    let Some((id, others)) = given.split_first_chunk::<NCCL_ID_BYTES>() else {
        return Err(ModelError::rank(0, "hands out no NCCL id"));
    };
    if others != version {
        return Err(ModelError::Device(format!("rank 0 has another version than {}", nccl.told())));
    }
    Ok(Arc::new(Communicator::new(nccl, cuda, id, [place.rank, place.ranks])?))
}

/// A call of all ranks together.
pub(super) enum Together {
    /// The sum in the place of so many values.
    Sum(Arc<Buffer>, usize),
    /// So many values of each rank, behind one another.
    Gather([Arc<Buffer>; 2], usize),
}

impl Together {
    pub(super) fn enqueue(&self, by: &Communicator, stream: &Stream) -> Result<(), OpError> {
        let done = match self {
            Self::Sum(values, count) => by.sum(values, *count, stream),
            Self::Gather([from, to], count) => by.gather([from, to], *count, stream),
        };
        done.map_err(device_error)
    }
}

/// What this rank adds.
pub(super) struct Share {
    pub(super) communicator: Arc<Communicator>,
    /// Added since the last sum: `[tokens, hidden]`, and the squares of rows behind it `[tokens]`.
    added: Option<Tensor>,
    /// What the first of them is added to `[tokens, hidden]`.
    zeros: Option<Tensor>,
    /// Where the squares count: the rows' whole width, and what is added to their mean.
    norm: Option<(usize, f64)>,
    /// The ranks, and all tokens that have logits.
    ranks: usize,
    vocabulary: usize,
}

impl Share {
    pub(super) fn new(communicator: &Arc<Communicator>, of: &Architecture) -> Self {
        let communicator = Arc::clone(communicator);
        let (ranks, vocabulary) = (of.place.ranks, of.vocabulary);
        Self { communicator, added: None, zeros: None, norm: None, ranks, vocabulary }
    }
}

impl Run<'_> {
    /// Adds a projection to what this rank adds.
    pub(super) fn add_to_share(
        &mut self,
        share: &mut Share,
        of: &CudaProjection,
        x: Input<'_>,
    ) -> Result<(), OpError> {
        let (tokens, hidden) = (self.pass.tokens, self.x.shape()[1]);
        let first = share.added.is_none();
        let all = match share.added.take() {
            Some(all) => all,
            None => self.tensor(&[tokens * (hidden + 1)], DType::F32)?,
        };
        let sums = all.rows(0, tokens * hidden)?.shaped(&[tokens, hidden])?;
        let (x, norm) = match (x.norm.filter(|norm| norm.ranks > 1), x.rows) {
            (Some(norm), Some(rows)) => {
                share.norm = Some((norm.weight.len() * norm.ranks, norm.norm.eps));
                let squares = all.rows(tokens * hidden, tokens)?;
                (self.spread(rows, norm, &squares)?, None)
            }
            _ => self.taken(x)?,
        };
        // What comes first is added to zeros: the kernels that add are built in, for whatever number of tokens.
        let before = match (first, &share.zeros) {
            (false, _) => sums.clone(),
            (true, Some(zeros)) => zeros.clone(),
            (true, None) => Tensor::zeros(self.stream, &[tokens, hidden], DType::F32)?,
        };
        let finish = Finish::Added(&before);
        self.call(&LinearCall { norm, finish, ..of.of(&x) }.into([&sums]))?;
        if first {
            share.zeros = Some(before);
        }
        share.added = Some(all);
        Ok(())
    }

    /// Rows times their norm's weight `[tokens, width]`, and their squares.
    fn spread(&self, rows: &Tensor, norm: &RmsNorm, squares: &Tensor) -> Result<Tensor, OpError> {
        let (count, width) = (self.pass.tokens, norm.weight.len());
        let o = self.tensor(&[count, width], DType::Bf16)?;
        let spread = decoder::Spread {
            dtype: DType::Bf16,
            x: rows.on()?,
            w: norm.weight.on()?,
            o: o.on()?,
            squares: squares.on()?,
            count,
            width,
        };
        self.push(decoder::spread(self.device, &spread)?)?;
        Ok(o)
    }

    /// Adds the ranks' sum to the stream.
    pub(super) fn sum_share(&mut self, share: &mut Share) -> Result<(), OpError> {
        let Some(all) = share.added.take() else { return Ok(()) };
        let (count, hidden) = (self.pass.tokens, self.x.shape()[1]);
        let sums = count * hidden;
        let norm = share.norm.take();
        let squares = all.rows(sums, count)?;
        let squares = norm.map(|(width, eps)| Ok((squares.on()?, width, eps))).transpose()?;
        let values = if norm.is_some() { sums + count } else { sums };
        self.together(share, Together::Sum(Arc::clone(all.on()?), values))?;
        let join = decoder::Join {
            added: all.on()?,
            squares,
            x: self.x.on()?,
            count,
            hidden,
            factor: self.residual,
        };
        self.push(decoder::join(self.device, &join)?)
    }

    /// Logits of all tokens `[rows, vocabulary]`, of which a projection makes this rank's.
    pub(super) fn whole_rows(
        &self,
        share: &Share,
        call: LinearCall<'_>,
        [rows, width]: [usize; 2],
    ) -> Result<Tensor, OpError> {
        let Share { ranks, vocabulary, .. } = *share;
        let room = rows * vocabulary.div_ceil(ranks);
        let own = self.tensor(&[room], DType::F32)?;
        self.call(&call.into([&own.rows(0, rows * width)?.shaped(&[rows, width])?]))?;
        let parts = self.tensor(&[ranks, room], DType::F32)?;
        let both = [Arc::clone(own.on()?), Arc::clone(parts.on()?)];
        self.together(share, Together::Gather(both, room))?;
        let whole = self.tensor(&[rows, vocabulary], DType::F32)?;
        let buffers = [parts.on()?, whole.on()?];
        self.push(decoder::gather(self.device, buffers, [ranks, room], [rows, vocabulary])?)?;
        Ok(whole)
    }
}

/// Sums small and large ones once: what NCCL takes for itself at the first of each, no recording may wait for.
pub(super) fn warm_up(by: &Communicator, stream: &Stream) -> Result<(), ModelError> {
    for values in [1 << 10, 1 << 20] {
        let buffer = Tensor::zeros(stream, &[values], DType::F32).map_err(failed)?;
        by.sum(buffer.on().map_err(failed)?, values, stream)?;
    }
    stream.synchronize().map_err(|error| failed(device_error(error)))
}
