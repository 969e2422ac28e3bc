//! The partial sum that one rank of a split model adds to the residual stream on its GPU.

use super::experts::CudaExperts;
use super::failed;
use super::pass::{Pass, device_error};
use super::run::Run;
use super::sequence_parallel::{self, DividedRows, Parts, ReceiveBuffers};
use super::weights::CudaProjection;
use crate::program::{Input, RmsNorm};
use crate::{Architecture, ModelError, Ranks};
use device::cuda::{
    Buffer, Communicator, Cuda, IPC_HANDLE_BYTES, NCCL_ID_BYTES, Nccl, PeerBuffer, Stream,
};
use ops::linear::{Epilogue, LinearCall, NormPrologue, OutputType};
use ops::{DType, OpError, Tensor};
use ops_cuda::decoder;
use ops_cuda::decoder::{Inboxes, PEERS};
use std::sync::Arc;

/// The connected GPUs of a model's ranks.
#[derive(Clone)]
pub(super) struct ConnectedGpus {
    pub(super) communicator: Arc<Communicator>,
    /// Buffers that ranks write partial sums to, if every GPU has peer access to all others.
    inboxes: Option<Inboxes>,
    /// Receive buffers for sequence parallelism.
    owners: Option<Arc<ReceiveBuffers>>,
    /// Keeps the mapped memory of other processes alive.
    _opened: Arc<Vec<PeerBuffer>>,
}

/// Connects the GPUs of a model's ranks, for passes of up to `tokens` tokens; rank 0 distributes the NCCL id.
pub(super) fn join(
    ranks: &Ranks,
    cuda: &Cuda,
    of: &Architecture,
    tokens: usize,
) -> Result<ConnectedGpus, ModelError> {
    let nccl = Nccl::find()?;
    let place = ranks.place();
    let version = nccl.version().map(u32::to_le_bytes).concat();
    let own = if place.rank == 0 { [&nccl.id()?[..], &version].concat() } else { Vec::new() };
    let given = ranks.broadcast(own)?;
    let Some((id, others)) = given.split_first_chunk::<NCCL_ID_BYTES>() else {
        return Err(ModelError::rank(0, "sent no NCCL id"));
    };
    if others != version {
        return Err(ModelError::Device(format!(
            "rank 0 has another version than {}",
            nccl.describe()
        )));
    }
    let communicator = Arc::new(Communicator::new(nccl, cuda, id, [place.rank, place.ranks])?);
    let (max_tokens, more) = sequence_parallel::receive_buffers_size(of, tokens).unzip();
    let more = more.unwrap_or(0);
    let (inboxes, opened) = inboxes(ranks, cuda, more)?
        .map_or((None, Vec::new()), |(inboxes, opened)| (Some(inboxes), opened));
    let owners =
        max_tokens.zip(inboxes.as_ref()).map(|(tokens, inboxes)| -> Result<_, ModelError> {
            let areas = inboxes.of.iter().map(|of| of.part(inbox_size(place.ranks), more));
            let areas = areas.collect::<Result<_, _>>()?;
            Ok(Arc::new(ReceiveBuffers::new(cuda, areas, place.rank, [tokens, of.hidden])?))
        });
    let owners = owners.transpose()?;
    Ok(ConnectedGpus { communicator, inboxes, owners, _opened: Arc::new(opened) })
}

/// Device memory that [`join`] allocates for the model's lifetime.
pub(super) fn bytes(of: &Architecture, tokens: usize) -> u64 {
    let ranks = of.place.ranks;
    if !(2..=PEERS).contains(&ranks) {
        return 0;
    }
    let more = sequence_parallel::receive_buffers_size(of, tokens)
        .map_or(0, |(_, bytes)| bytes + ReceiveBuffers::FLAG_VALUE_BYTES);
    (inbox_size(ranks) + Inboxes::TURNS + more) as u64
}

/// Bytes of an inbox, rounded up to the offset of the memory that follows it.
fn inbox_size(ranks: usize) -> usize {
    Inboxes::bytes(ranks).next_multiple_of(512)
}

/// Maps all ranks' inboxes on every rank, with `more` bytes after each; `None` if some GPU lacks peer access, or the
/// system does not share memory.
fn inboxes(
    ranks: &Ranks,
    cuda: &Cuda,
    more: usize,
) -> Result<Option<(Inboxes, Vec<PeerBuffer>)>, ModelError> {
    let (place, stream) = (ranks.place(), cuda.stream());
    if place.ranks > PEERS {
        return Ok(None);
    }
    let bytes = inbox_size(place.ranks) + more;
    let [own, turns] = [bytes, Inboxes::TURNS].map(|bytes| -> Result<_, ModelError> {
        let buffer = stream.allocate(bytes)?;
        stream.fill32(&buffer, 0)?;
        Ok(Arc::new(buffer))
    });
    let (own, turns) = (own?, turns?);
    stream.synchronize()?;
    // All-gathers the handles, one byte per value, as a sum: each rank contributes only its own.
    let mut handles = vec![0.0; place.ranks * IPC_HANDLE_BYTES];
    let handle = cuda.ipc_handle(&own);
    if let Ok(handle) = &handle {
        let to = handles.chunks_mut(IPC_HANDLE_BYTES).nth(place.rank).into_iter().flatten();
        to.zip(handle).for_each(|(to, byte)| *to = f32::from(*byte));
    }
    ranks.all_reduce(&mut handles)?;
    let mut opened = Vec::new();
    let of = handles.as_chunks::<IPC_HANDLE_BYTES>().0.iter().enumerate().map(|(rank, handle)| {
        if rank == place.rank {
            return Some(Arc::clone(&own));
        }
        let peer = cuda.open_ipc_handle(handle.map(|byte| byte as u8), bytes).ok()?;
        let buffer = Arc::clone(peer.buffer());
        opened.push(peer);
        Some(buffer)
    });
    let of = of.collect::<Option<Vec<_>>>();
    let mut reached = [if of.is_some() && handle.is_ok() { 1.0 } else { 0.0 }];
    ranks.all_reduce(&mut reached)?;
    let all = reached[0] as usize == place.ranks;
    Ok(of.filter(|_| all).map(|of| (Inboxes { of, turns, rank: place.rank }, opened)))
}

/// A collective, run by NCCL.
pub(super) enum Collective {
    /// All-reduces a number of values in place.
    Sum(Arc<Buffer>, usize),
    /// All-gathers a number of values of each rank.
    Gather([Arc<Buffer>; 2], usize),
}

impl Collective {
    pub(super) fn enqueue(&self, by: &Communicator, stream: &Stream) -> Result<(), OpError> {
        let done = match self {
            Self::Sum(values, count) => by.sum(values, *count, stream),
            Self::Gather([from, to], count) => by.gather([from, to], *count, stream),
        };
        done.map_err(device_error)
    }
}

/// This rank's partial sum.
pub(super) struct Share {
    pub(super) together: ConnectedGpus,
    /// Whether ranks exchange bfloat16: for long prompts the sums are a quarter of the time. Decoding steps, of which
    /// there are many, use float32.
    narrow: bool,
    /// The division of a prompt's rows among the GPUs.
    pub(super) owned: Option<DividedRows>,
    /// The partial sums that are exchanged.
    parts: Option<Parts>,
    added: Option<Contribution>,
    /// Whether several projections are added before the next sum.
    pub(super) several: bool,
    /// The pending norm: the full row's width, and the epsilon.
    norm: Option<(usize, f64)>,
    /// The rows `[tokens, width]` if the sum's kernel computes their squares.
    rows: Option<Tensor>,
    /// Number of ranks, and of all ranks' vocabulary.
    ranks: usize,
    vocabulary: usize,
}

/// This rank's contribution since the last sum.
struct Contribution {
    /// `[tokens, hidden]` in float32; in bfloat16 if nothing else is added before the sum.
    sums: Tensor,
    /// Sums of squares of rows `[tokens]` in float32, stored after float32 sums.
    squares: Tensor,
    /// The memory of both.
    all: Tensor,
}

impl Share {
    pub(super) fn new(together: &ConnectedGpus, of: &Architecture, pass: &Pass) -> Self {
        let together = together.clone();
        let (ranks, vocabulary) = (of.place.ranks, of.vocabulary);
        let many = together.inboxes.as_ref().is_some_and(|inboxes| inboxes.take_many(of.hidden));
        let prompt = !pass.one_token && !Inboxes::take(pass.tokens, of.hidden);
        let owners = together.owners.as_ref().filter(|_| prompt);
        let owned = owners.and_then(|owners| DividedRows::new(owners, [pass.tokens, of.hidden]));
        let narrow = owned.is_some() || many && prompt;
        let (parts, added, norm, rows) = (None, None, None, None);
        let several = false;
        Self { together, narrow, owned, parts, added, several, norm, rows, ranks, vocabulary }
    }
}

impl Share {
    /// Whether the fused all-reduce kernel handles this number of tokens.
    fn few(&self, tokens: usize, hidden: usize) -> bool {
        self.together.inboxes.is_some() && !self.narrow && Inboxes::take(tokens, hidden)
    }
}

impl Run<'_> {
    /// Memory for this rank's contribution.
    fn adding(&self, dtype: DType) -> Result<Contribution, OpError> {
        let (tokens, hidden) = (self.pass.tokens, self.x.shape()[1]);
        let all = self.tensor(&[tokens * (hidden + 1)], DType::F32)?;
        let sums = Tensor::on_gpu(Arc::clone(all.on()?), &[tokens, hidden], dtype)?;
        Ok(Contribution { sums, squares: all.rows(tokens * hidden, tokens)?, all })
    }

    /// Zeros for the first addition: the kernels that add are built in for any number of tokens.
    pub(super) fn zeros(&mut self) -> Result<Tensor, OpError> {
        if let Some(zeros) = &self.zeros {
            return Ok(zeros.clone());
        }
        // For a captured step they must stay zero between runs.
        let zeros = match self.is_recorded() {
            true => Tensor::zeros(self.stream, self.x.shape(), DType::F32)?,
            false => {
                let zeros = self.tensor(self.x.shape(), DType::F32)?;
                zeros.clear(self.stream)?;
                zeros
            }
        };
        self.zeros = Some(zeros.clone());
        Ok(zeros)
    }

    /// Adds a projection to this rank's contribution.
    pub(super) fn add_to_share(
        &mut self,
        share: &mut Share,
        of: &CudaProjection,
        x: Input<'_>,
    ) -> Result<(), OpError> {
        // The contribution of shared experts is added to that of routed ones.
        let one = share.added.is_none() && !share.several;
        let owned = share.owned.as_ref().filter(|_| one);
        let scale = x.factor;
        let parts = owned.map(|owned| self.parts(owned)).transpose()?;
        if let Some(mut parts) = parts {
            let (x, norm) = self.finished_later(share, x, &parts.squares)?;
            let call = LinearCall { norm, scale, ..of.of(&x) };
            if let Some(owned) = &share.owned {
                self.add_by_owner(owned, &mut parts, &call)?;
            }
            share.parts = Some(parts);
            return Ok(());
        }
        let before = share.added.take();
        let narrow = share.narrow && one;
        let (added, before) = match before {
            Some(added) => (added, None),
            None if narrow => (self.adding(DType::Bf16)?, None),
            None => (self.adding(DType::F32)?, Some(self.zeros()?)),
        };
        let (x, norm) = self.finished_later(share, x, std::slice::from_ref(&added.squares))?;
        let call = LinearCall { norm, scale, ..of.of(&x) };
        let epilogue = Epilogue::Residual(before.as_ref().unwrap_or(&added.sums));
        let call = if narrow { call } else { LinearCall { epilogue, ..call } };
        self.call(&call.into([&added.sums]))?;
        share.added = Some(added);
        Ok(())
    }

    /// Adds this rank's experts, as the first contribution to a sum.
    pub(super) fn add_experts_to_share(
        &mut self,
        share: &mut Share,
        of: &CudaExperts,
        given: [&Tensor; 2],
    ) -> Result<(), OpError> {
        let (added, zeros) = (self.adding(DType::F32)?, self.zeros()?);
        self.call(&of.call(given, 1.0, (Some(&zeros), &added.sums)))?;
        share.added = Some(added);
        Ok(())
    }

    /// The rows as a projection reads them. A norm whose row is split over ranks is completed by the sum.
    fn finished_later<'t>(
        &self,
        share: &mut Share,
        x: Input<'t>,
        squares: &[Tensor],
    ) -> Result<(Tensor, Option<NormPrologue<'t>>), OpError> {
        let (Some(norm), Some(rows)) = (x.norm.filter(|norm| norm.ranks > 1), x.rows) else {
            return self.taken(x);
        };
        let (count, width) = (self.pass.tokens, norm.weight.len());
        share.norm = Some((width * norm.ranks, norm.norm.eps));
        if !share.few(count, self.x.shape()[1]) {
            return Ok((self.spread(rows, norm, squares)?, None));
        }
        let rows = rows.shaped(&[count, width])?;
        share.rows = Some(rows.clone());
        Ok((rows, Some(norm.prologue())))
    }

    /// Rows times their norm's weight `[tokens, width]`, and their sums of squares in consecutive pieces.
    fn spread(&self, rows: &Tensor, norm: &RmsNorm, squares: &[Tensor]) -> Result<Tensor, OpError> {
        let (tokens, width) = (self.pass.tokens, norm.weight.len());
        let (rows, all) =
            (rows.shaped(&[tokens, width])?, self.tensor(&[tokens, width], DType::Bf16)?);
        let mut first = 0;
        for squares in squares {
            let count = squares.len();
            let (x, o) = (rows.rows(first, count)?, all.rows(first, count)?);
            let (x, w, o, squares) = (x.on()?, norm.weight.on()?, o.on()?, squares.on()?);
            let spread =
                decoder::ShardedNorm { dtype: DType::Bf16, x, w, o, squares, count, width };
            self.push(decoder::spread(self.device, &spread)?)?;
            first += count;
        }
        Ok(all)
    }

    /// All-reduces the contributions and adds them to the stream.
    pub(super) fn sum_share(&mut self, share: &mut Share) -> Result<(), OpError> {
        share.several = false;
        if let (Some(owned), Some(parts)) = (&share.owned, share.parts.take()) {
            return self.send_parts(owned, parts, share.norm.take());
        }
        let Some(Contribution { sums, squares, all }) = share.added.take() else { return Ok(()) };
        if let Some(owned) = &share.owned {
            let parts = self.convert_by_owner(owned, &sums)?;
            return self.send_parts(owned, parts, share.norm.take());
        }
        let (count, hidden) = (self.pass.tokens, self.x.shape()[1]);
        let (norm, rows) = (share.norm.take(), share.rows.take());
        let by_squares = norm.filter(|_| rows.is_none());
        let by_squares = by_squares.map(|(width, eps)| Ok((squares.on()?, width, eps)));
        let squares = by_squares.transpose()?;
        let join = decoder::ResidualSum {
            added: all.on()?,
            squares,
            x: self.x.on()?,
            count,
            hidden,
            factor: self.residual,
        };
        match &share.together.inboxes {
            Some(inboxes) if share.narrow => {
                return self.push(decoder::join_many(self.device, &join, sums.dtype(), inboxes)?);
            }
            Some(inboxes) if share.few(count, hidden) => {
                let rows = match (&rows, norm) {
                    (Some(rows), Some((whole, eps))) => {
                        let (of, width) = (rows.on()?, rows.shape()[1]);
                        Some(decoder::Rows { of, width, whole, eps })
                    }
                    _ => None,
                };
                return self.push(decoder::join_peers(self.device, &join, rows, inboxes)?);
            }
            _ => {}
        }
        let values = if norm.is_some() { count * (hidden + 1) } else { count * hidden };
        self.run_collective(share, Collective::Sum(Arc::clone(all.on()?), values))?;
        self.push(decoder::join(self.device, &join)?)
    }

    /// Projects rows of which this rank has some columns, all-reduces, and splits the columns into parts of these
    /// dimensions.
    pub(super) fn project_to_sum(
        &self,
        share: &Share,
        of: &CudaProjection,
        x: Input<'_>,
        parts: &[&[usize]],
    ) -> Result<Vec<Tensor>, OpError> {
        let tokens = self.pass.tokens;
        // Concatenated, each aligned to 16 bytes.
        let mut count = 0;
        let places = parts.iter().map(|part| {
            let (first, width) = (count, part.iter().product::<usize>());
            count += (tokens * width).next_multiple_of(8);
            (first, width)
        });
        let places: Vec<_> = places.collect();
        let [sums, narrowed] = [DType::F32, DType::Bf16].map(|dtype| self.tensor(&[count], dtype));
        let (sums, narrowed) = (sums?, narrowed?);
        let of_part = |all: &Tensor, (first, width): &(usize, usize)| {
            all.rows(*first, tokens * width)?.shaped(&[tokens, *width])
        };
        let made = places.iter().map(|place| of_part(&sums, place));
        let made = made.collect::<Result<Vec<_>, _>>()?;
        self.project_rows(of, x, (Epilogue::Identity, Some(OutputType::F32)), &made)?;
        self.run_collective(share, Collective::Sum(Arc::clone(sums.on()?), count))?;
        self.push(decoder::narrow(self.device, [sums.on()?, narrowed.on()?], count)?)?;
        let shaped = places.iter().zip(parts);
        shaped
            .map(|(place, part)| of_part(&narrowed, place)?.shaped(&self.pass.shape(part)))
            .collect()
    }

    /// Logits of the whole vocabulary `[rows, vocabulary]`, gathered from each rank's projection.
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
        self.run_collective(share, Collective::Gather(both, room))?;
        let whole = self.logits_tensor([rows, vocabulary])?;
        let buffers = [parts.on()?, whole.on()?];
        self.push(decoder::gather(self.device, buffers, [ranks, room], [rows, vocabulary])?)?;
        Ok(whole)
    }
}

/// Runs a small and a large all-reduce once: NCCL allocates on the first of each, which a graph capture cannot contain.
pub(super) fn warm_up(by: &Communicator, stream: &Stream) -> Result<(), ModelError> {
    for values in [1 << 10, 1 << 20] {
        let buffer = Tensor::zeros(stream, &[values], DType::F32).map_err(failed)?;
        by.sum(buffer.on().map_err(failed)?, values, stream)?;
    }
    stream.synchronize().map_err(|error| failed(device_error(error)))
}
