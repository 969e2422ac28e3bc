//! What one rank of a split model adds to the residual stream on its GPU, until the ranks' sum of it is there.

use super::experts::CudaExperts;
use super::failed;
use super::own::{self, Owned, Owners, Parts};
use super::pass::{Pass, device_error};
use super::run::Run;
use super::weights::CudaProjection;
use crate::program::{Input, RmsNorm};
use crate::{Architecture, ModelError, Ranks};
use device::cuda::{
    Buffer, Communicator, Cuda, NCCL_ID_BYTES, Nccl, PeerBuffer, SHARED_HANDLE_BYTES, Stream,
};
use kernels::decoder::{Inboxes, PEERS};
use kernels::linear::{Finish, LinearCall, Normed, Out};
use kernels::{DType, OpError, Tensor, decoder};
use std::sync::Arc;

/// The GPUs of a model's ranks, joined.
#[derive(Clone)]
pub(super) struct Together {
    pub(super) communicator: Arc<Communicator>,
    /// Where ranks write what they add themselves, if each GPU reaches all others.
    inboxes: Option<Inboxes>,
    /// Where they copy to one another their parts of prompts.
    owners: Option<Arc<Owners>>,
    /// What of them is other processes'.
    _opened: Arc<Vec<PeerBuffer>>,
}

/// Joins the GPUs of a model's ranks, for passes of so many tokens at most; rank 0 says by what they find one another.
pub(super) fn join(
    ranks: &Ranks,
    cuda: &Cuda,
    of: &Architecture,
    tokens: usize,
) -> Result<Together, ModelError> {
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
    let communicator = Arc::new(Communicator::new(nccl, cuda, id, [place.rank, place.ranks])?);
    let (room, more) = own::room(of, tokens).unzip();
    let more = more.unwrap_or(0);
    let (inboxes, opened) = inboxes(ranks, cuda, more)?
        .map_or((None, Vec::new()), |(inboxes, opened)| (Some(inboxes), opened));
    let owners = room.zip(inboxes.as_ref()).map(|(tokens, inboxes)| -> Result<_, ModelError> {
        let areas = inboxes.of.iter().map(|of| of.part(behind(place.ranks), more));
        let areas = areas.collect::<Result<_, _>>()?;
        Ok(Arc::new(Owners::new(cuda, areas, place.rank, [tokens, of.hidden])?))
    });
    let owners = owners.transpose()?;
    Ok(Together { communicator, inboxes, owners, _opened: Arc::new(opened) })
}

/// Bytes of a GPU that [`join`] takes for as long as the model is there.
pub(super) fn bytes(of: &Architecture, tokens: usize) -> u64 {
    let ranks = of.place.ranks;
    if !(2..=PEERS).contains(&ranks) {
        return 0;
    }
    let more = own::room(of, tokens).map_or(0, |(_, bytes)| bytes + Owners::TURNS);
    (behind(ranks) + Inboxes::TURNS + more) as u64
}

/// Where what stands behind an inbox begins.
fn behind(ranks: usize) -> usize {
    Inboxes::bytes(ranks).next_multiple_of(512)
}

/// Opens all ranks' inboxes to one another, and so many bytes behind each; none where some GPU does not reach another, or a system shares
/// no memory.
fn inboxes(
    ranks: &Ranks,
    cuda: &Cuda,
    more: usize,
) -> Result<Option<(Inboxes, Vec<PeerBuffer>)>, ModelError> {
    let (place, stream) = (ranks.place(), cuda.stream());
    if place.ranks > PEERS {
        return Ok(None);
    }
    let bytes = behind(place.ranks) + more;
    let [own, turns] = [bytes, Inboxes::TURNS].map(|bytes| -> Result<_, ModelError> {
        let buffer = stream.allocate(bytes)?;
        stream.fill32(&buffer, 0)?;
        Ok(Arc::new(buffer))
    });
    let (own, turns) = (own?, turns?);
    stream.synchronize()?;
    // Every rank's handle, a byte a value: a sum of what each has of its own is what all have.
    let mut handles = vec![0.0; place.ranks * SHARED_HANDLE_BYTES];
    let handle = cuda.share(&own);
    if let Ok(handle) = &handle {
        let to = handles.chunks_mut(SHARED_HANDLE_BYTES).nth(place.rank).into_iter().flatten();
        to.zip(handle).for_each(|(to, byte)| *to = f32::from(*byte));
    }
    ranks.sum(&mut handles)?;
    let mut opened = Vec::new();
    let of =
        handles.as_chunks::<SHARED_HANDLE_BYTES>().0.iter().enumerate().map(|(rank, handle)| {
            if rank == place.rank {
                return Some(Arc::clone(&own));
            }
            let peer = cuda.open_shared(handle.map(|byte| byte as u8), bytes).ok()?;
            let buffer = Arc::clone(peer.buffer());
            opened.push(peer);
            Some(buffer)
        });
    let of = of.collect::<Option<Vec<_>>>();
    let mut reached = [if of.is_some() && handle.is_ok() { 1.0 } else { 0.0 }];
    ranks.sum(&mut reached)?;
    let all = reached[0] as usize == place.ranks;
    Ok(of.filter(|_| all).map(|of| (Inboxes { of, turns, rank: place.rank }, opened)))
}

/// A call of all ranks by their library.
pub(super) enum Called {
    /// The sum in the place of so many values.
    Sum(Arc<Buffer>, usize),
    /// So many values of each rank, behind one another.
    Gather([Arc<Buffer>; 2], usize),
}

impl Called {
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
    pub(super) together: Together,
    /// What of a prompt goes from GPU to GPU is bfloat16: a quarter of what ranks do with a long one is to wait for sums. Steps of one
    /// token, which are many, keep float32.
    narrow: bool,
    /// The parts of a prompt, where each GPU keeps one.
    pub(super) owned: Option<Owned>,
    /// What goes between them.
    parts: Option<Parts>,
    added: Option<Added>,
    /// Whether more projections than one are added before the next sum.
    pub(super) several: bool,
    /// What the first of a sum is added to in float32 `[tokens, hidden]`.
    zeros: Option<Tensor>,
    /// Where the squares count: the rows' whole width, and what is added to their mean.
    norm: Option<(usize, f64)>,
    /// The rows `[tokens, width]`, where the kernel of the sum takes the squares.
    rows: Option<Tensor>,
    /// The ranks, and all tokens that have logits.
    ranks: usize,
    vocabulary: usize,
}

/// What this rank has added since the last sum.
struct Added {
    /// `[tokens, hidden]` in float32; in bfloat16 where nothing more is added before the sum.
    sums: Tensor,
    /// Squares of rows `[tokens]` in float32, behind float32 sums.
    squares: Tensor,
    /// The memory of both.
    all: Tensor,
}

impl Share {
    pub(super) fn new(together: &Together, of: &Architecture, pass: &Pass) -> Self {
        let together = together.clone();
        let (ranks, vocabulary) = (of.place.ranks, of.vocabulary);
        let many = together.inboxes.as_ref().is_some_and(|inboxes| inboxes.take_many(of.hidden));
        let prompt = !pass.one_token && !Inboxes::take(pass.tokens, of.hidden);
        let owners = together.owners.as_ref().filter(|_| prompt);
        let owned = owners.and_then(|owners| Owned::new(owners, [pass.tokens, of.hidden]));
        let narrow = owned.is_some() || many && prompt;
        let (parts, added, zeros, norm, rows) = (None, None, None, None, None);
        let several = false;
        Self {
            together,
            narrow,
            owned,
            parts,
            added,
            several,
            zeros,
            norm,
            rows,
            ranks,
            vocabulary,
        }
    }
}

impl Share {
    /// Whether a kernel that ranks meet in sums so many tokens.
    fn few(&self, tokens: usize, hidden: usize) -> bool {
        self.together.inboxes.is_some() && !self.narrow && Inboxes::take(tokens, hidden)
    }
}

impl Run<'_> {
    /// Memory for what this rank adds.
    fn adding(&self, dtype: DType) -> Result<Added, OpError> {
        let (tokens, hidden) = (self.pass.tokens, self.x.shape()[1]);
        let all = self.tensor(&[tokens * (hidden + 1)], DType::F32)?;
        let sums = Tensor::on_gpu(Arc::clone(all.on()?), &[tokens, hidden], dtype)?;
        Ok(Added { sums, squares: all.rows(tokens * hidden, tokens)?, all })
    }

    /// What the first of a sum is added to: the kernels that add are built in, for whatever number of tokens.
    fn zeros(&self, share: &mut Share) -> Result<Tensor, OpError> {
        if let Some(zeros) = &share.zeros {
            return Ok(zeros.clone());
        }
        // Of a recorded step they are zeros whenever it runs.
        let zeros = match self.is_recorded() {
            true => Tensor::zeros(self.stream, self.x.shape(), DType::F32)?,
            false => {
                let zeros = self.tensor(self.x.shape(), DType::F32)?;
                zeros.clear(self.stream)?;
                zeros
            }
        };
        share.zeros = Some(zeros.clone());
        Ok(zeros)
    }

    /// Adds a projection to what this rank adds.
    pub(super) fn add_to_share(
        &mut self,
        share: &mut Share,
        of: &CudaProjection,
        x: Input<'_>,
    ) -> Result<(), OpError> {
        // What stands beside experts is added to theirs.
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
            None => (self.adding(DType::F32)?, Some(self.zeros(share)?)),
        };
        let (x, norm) = self.finished_later(share, x, std::slice::from_ref(&added.squares))?;
        let call = LinearCall { norm, scale, ..of.of(&x) };
        let finish = Finish::Added(before.as_ref().unwrap_or(&added.sums));
        let call = if narrow { call } else { LinearCall { finish, ..call } };
        self.call(&call.into([&added.sums]))?;
        share.added = Some(added);
        Ok(())
    }

    /// Adds what this rank's experts make, before anything else of a sum.
    pub(super) fn add_experts_to_share(
        &mut self,
        share: &mut Share,
        of: &CudaExperts,
        given: [&Tensor; 2],
    ) -> Result<(), OpError> {
        let (added, zeros) = (self.adding(DType::F32)?, self.zeros(share)?);
        self.call(&of.call(given, 1.0, (Some(&zeros), &added.sums)))?;
        share.added = Some(added);
        Ok(())
    }

    /// Rows as a projection takes them and, of a norm of which this rank has a part, what the sum finishes it by.
    fn finished_later<'t>(
        &self,
        share: &mut Share,
        x: Input<'t>,
        squares: &[Tensor],
    ) -> Result<(Tensor, Option<Normed<'t>>), OpError> {
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
        Ok((rows, Some(norm.normed())))
    }

    /// Rows times their norm's weight `[tokens, width]`, and their squares, in pieces one behind another.
    fn spread(&self, rows: &Tensor, norm: &RmsNorm, squares: &[Tensor]) -> Result<Tensor, OpError> {
        let (tokens, width) = (self.pass.tokens, norm.weight.len());
        let (rows, all) =
            (rows.shaped(&[tokens, width])?, self.tensor(&[tokens, width], DType::Bf16)?);
        let mut first = 0;
        for squares in squares {
            let count = squares.len();
            let (x, o) = (rows.rows(first, count)?, all.rows(first, count)?);
            let (x, w, o, squares) = (x.on()?, norm.weight.on()?, o.on()?, squares.on()?);
            let spread = decoder::Spread { dtype: DType::Bf16, x, w, o, squares, count, width };
            self.push(decoder::spread(self.device, &spread)?)?;
            first += count;
        }
        Ok(all)
    }

    /// Adds the ranks' sum to the stream.
    pub(super) fn sum_share(&mut self, share: &mut Share) -> Result<(), OpError> {
        share.several = false;
        if let (Some(owned), Some(parts)) = (&share.owned, share.parts.take()) {
            return self.send_parts(owned, parts, share.norm.take());
        }
        let Some(Added { sums, squares, all }) = share.added.take() else { return Ok(()) };
        if let Some(owned) = &share.owned {
            let parts = self.narrow_by_owner(owned, &sums)?;
            return self.send_parts(owned, parts, share.norm.take());
        }
        let (count, hidden) = (self.pass.tokens, self.x.shape()[1]);
        let (norm, rows) = (share.norm.take(), share.rows.take());
        let by_squares = norm.filter(|_| rows.is_none());
        let by_squares = by_squares.map(|(width, eps)| Ok((squares.on()?, width, eps)));
        let squares = by_squares.transpose()?;
        let join = decoder::Join {
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
        self.together(share, Called::Sum(Arc::clone(all.on()?), values))?;
        self.push(decoder::join(self.device, &join)?)
    }

    /// Columns of a projection of rows of which this rank has a part, in parts of these dimensions: all ranks' sum of them.
    pub(super) fn project_to_sum(
        &self,
        share: &Share,
        of: &CudaProjection,
        x: Input<'_>,
        parts: &[&[usize]],
    ) -> Result<Vec<Tensor>, OpError> {
        let tokens = self.pass.tokens;
        // One behind another, from multiples of 16 bytes on.
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
        self.project_rows(of, x, (Finish::Stored, Some(Out::F32)), &made)?;
        self.together(share, Called::Sum(Arc::clone(sums.on()?), count))?;
        self.push(decoder::narrow(self.device, [sums.on()?, narrowed.on()?], count)?)?;
        let shaped = places.iter().zip(parts);
        shaped
            .map(|(place, part)| of_part(&narrowed, place)?.shaped(&self.pass.shape(part)))
            .collect()
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
        self.together(share, Called::Gather(both, room))?;
        let whole = self.logits_tensor([rows, vocabulary])?;
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
