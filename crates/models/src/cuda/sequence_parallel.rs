//! Sequence parallelism for prompts on several GPUs: each GPU owns a range of rows of the residual stream. It sends its
//! partial sums for other GPUs' rows to them (reduce-scatter), and the normalized rows it owns to all (all-gather).
//! Copies overlap with the GEMMs of rows that do not need them.
//!
//! Schedule of each sum on GPU r of n. The turns are the rows of r + 1, r + 2, .., r + n - 1 and r itself, modulo n:
//!
//! ```text
//! kernels     add, rows of r + 1 | add, r + 2 | .. | add, own | sum and norm, own | product, own      | product, r - 1 | product, r - 2 | ..
//! copies                         | parts to r + 1 | to r + 2 | ..                 | norms to r + 1 | to r + 2 | ..
//! ```
//!
//! In each turn every GPU sends to one and receives from one, which uses all links evenly. The kernel of the sum waits
//! for the parts that other GPUs copy here; a kernel before the GEMM of another GPU's rows waits for their norms.
//!
//! There is no deadlock: a copy that a kernel waits for is enqueued before any kernel on its GPU that waits for this
//! GPU, and a waiting kernel occupies too few SMs to block a copy, even if the driver implements copies as kernels. One
//! buffer of each kind per other GPU is enough: a GPU sends new parts only after it has read the norms made from the
//! previous ones, and new norms only after the next parts have arrived, which were made from the previous norms.

mod layout;
mod owners;

pub(super) use owners::{ReceiveBuffers, receive_buffers_size};

use super::pass::device_error;
use super::run::Run;
use super::weights::CudaProjection;
use crate::program::{Input, RmsNorm};
use device::cuda::{Buffer, DeviceError, Event};
use layout::{Layout, Part};
use ops::linear::{Epilogue, LinearCall, OutputType};
use ops::{DType, OpError, Tensor};
use ops_cuda::decoder;
use ops_cuda::decoder::{OwnedRowReduction, PartialResults};
use owners::{CopyKind, min_divided_tokens, part};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// The rows of a pass, divided among the GPUs.
pub(super) struct DividedRows {
    owners: Arc<ReceiveBuffers>,
    layout: Layout,
    stream: RefCell<StreamState>,
}

/// The state of the residual stream.
enum StreamState {
    /// All rows are here.
    Whole,
    /// Partial sums are being sent, with the turn's number. This GPU's rows are summed on the first read.
    Parts(Parts, u32, Option<(usize, f64)>),
    /// This GPU's rows are summed and normalized, identified by the address of the norm's weight. Sent buffers are kept
    /// until the other GPUs' rows have arrived, which implies that they were received.
    Normalized { by: u64, theirs: Option<(u32, Parts)> },
}

/// This GPU's partial sums of all rows, until its own are summed.
pub(super) struct Parts {
    all: Buffer,
    /// Sums of squares of all rows in f32, in consecutive pieces.
    pub(super) squares: Vec<Tensor>,
    /// Events after which other GPUs' parts are complete.
    sent: Vec<(usize, Event)>,
}

impl DividedRows {
    /// Divides a pass if it has enough tokens to gain from it.
    pub(super) fn new(
        owners: &Arc<ReceiveBuffers>,
        size @ [tokens, _]: [usize; 2],
    ) -> Option<Self> {
        let ranks = owners.places.len();
        let worth = (min_divided_tokens(ranks)..=owners.tokens).contains(&tokens);
        worth.then(|| Self {
            owners: Arc::clone(owners),
            layout: Layout::new(size, ranks),
            stream: RefCell::new(StreamState::Whole),
        })
    }

    /// Whether all rows of the norm have arrived.
    fn has_all_norms(&self) -> bool {
        matches!(&*self.stream.borrow(), StreamState::Normalized { theirs: None, .. })
    }

    /// This GPU's rows.
    fn own(&self) -> &Part {
        &self.layout.parts[self.owners.rank]
    }

    /// All ranks in the order in which their rows are computed, this one last.
    fn made(&self) -> impl Iterator<Item = (usize, &Part)> {
        let ranks = self.owners.others().chain([self.owners.rank]);
        ranks.map(|rank| (rank, &self.layout.parts[rank]))
    }
}

fn refused(what: &str) -> OpError {
    device_error(DeviceError::Refused { what: what.to_owned() })
}

impl Run<'_> {
    /// Memory for partial sums.
    pub(super) fn parts(&self, owned: &DividedRows) -> Result<Parts, OpError> {
        let layout = &owned.layout;
        let all = self.stream.allocate_transient(layout.bytes()).map_err(device_error)?;
        let squares = layout.squares();
        let squares = squares
            .map(|(rows, bytes)| Tensor::on_gpu(part(&all, bytes)?, &[rows], DType::F32))
            .collect::<Result<_, _>>()?;
        Ok(Parts { all, squares, sent: Vec::new() })
    }

    /// Records the event after which another GPU's part is complete.
    fn is_made(&self, owned: &DividedRows, parts: &mut Parts, rank: usize) -> Result<(), OpError> {
        if rank != owned.owners.rank {
            parts.sent.push((rank, self.stream.record().map_err(device_error)?));
        }
        Ok(())
    }

    /// Computes the partial sums by a projection of rows x of all tokens, those of other GPUs first.
    pub(super) fn add_by_owner(
        &self,
        owned: &DividedRows,
        parts: &mut Parts,
        call: &LinearCall<'_>,
    ) -> Result<(), OpError> {
        for (rank, Part { rows, sums, .. }) in owned.made() {
            let x = call.x.rows(rows.start, rows.len())?;
            let sums = part(&parts.all, sums.clone())?;
            let sums = Tensor::on_gpu(sums, &[rows.len(), owned.layout.hidden], DType::Bf16)?;
            self.call(&LinearCall { x: &x, ..*call }.into([&sums]))?;
            self.is_made(owned, parts, rank)?;
        }
        Ok(())
    }

    /// Converts float32 partial sums `[tokens, hidden]`, those of other GPUs first.
    pub(super) fn convert_by_owner(
        &self,
        owned: &DividedRows,
        all: &Tensor,
    ) -> Result<Parts, OpError> {
        let mut parts = self.parts(owned)?;
        for (rank, Part { rows, sums, .. }) in owned.made() {
            let from = all.rows(rows.start, rows.len())?;
            let both = [from.on()?, &part(&parts.all, sums.clone())?];
            self.push(decoder::narrow(self.device, both, rows.len() * owned.layout.hidden)?)?;
            self.is_made(owned, &mut parts, rank)?;
        }
        Ok(parts)
    }

    /// Sends the partial sums to their owners; `norm` is that of the rows they were computed from.
    pub(super) fn send_parts(
        &self,
        owned: &DividedRows,
        parts: Parts,
        norm: Option<(usize, f64)>,
    ) -> Result<(), OpError> {
        let owners = &owned.owners;
        let turn = owners.next_flag_value(CopyKind::Parts);
        for (rank, made) in &parts.sent {
            let (sent, there) = (owned.layout.parts[*rank].sent(), &owners.places[*rank]);
            let nth = there.sender_index(owners.rank);
            let both = [&*part(&parts.all, sent.clone())?, &*there.parts(nth, 0..sent.len(), nth)?];
            owners.copies.wait(made).map_err(device_error)?;
            owners.send((CopyKind::Parts, turn), *rank, both)?;
        }
        *owned.stream.borrow_mut() = StreamState::Parts(parts, turn, norm);
        Ok(())
    }

    /// The normalized residual stream, if it is divided. This GPU's rows are complete, another GPU's rows after
    /// [`Self::wait_for_norm`].
    fn owned(&self, x: Input<'_>) -> Result<Option<(&DividedRows, Tensor)>, OpError> {
        let owned = self.share.as_ref().and_then(|share| share.owned.as_ref());
        let Some(owned) = owned.filter(|_| x.rows.is_none()) else { return Ok(None) };
        let Some(norm) = x.norm else {
            return Err(refused("parts of a stream are read by a norm"));
        };
        let by = norm.weight.on()?.address();
        let kept = &mut *owned.stream.borrow_mut();
        let (owners, own) = (&owned.owners, &owned.own().rows);
        match std::mem::replace(kept, StreamState::Whole) {
            StreamState::Whole => return Ok(None),
            StreamState::Parts(parts, turn, squares) => {
                self.sum_own_rows(owned, &parts, (turn, squares), norm)?;
                let done = self.stream.record().map_err(device_error)?;
                let (turn, from) =
                    (owners.next_flag_value(CopyKind::Norms), owners.here().rows(own.clone())?);
                owners.copies.wait(&done).map_err(device_error)?;
                for rank in owners.others() {
                    let to = owners.places[rank].rows(own.clone())?;
                    owners.send((CopyKind::Norms, turn), rank, [&from, &to])?;
                }
                *kept = StreamState::Normalized { by, theirs: Some((turn, parts)) };
            }
            // A second norm would overwrite rows that other GPUs may still read.
            StreamState::Normalized { by: other, .. } if other != by => {
                return Err(refused("two norms read the same parts of a stream"));
            }
            normed => *kept = normed,
        }
        let rows = owners.here().rows(0..self.pass.tokens)?;
        let rows = Tensor::on_gpu(rows, self.x.shape(), DType::Bf16)?;
        Ok(Some((owned, rows)))
    }

    /// Sums this GPU's rows and normalizes them.
    fn sum_own_rows(
        &self,
        owned: &DividedRows,
        parts: &Parts,
        (turn, squares): (u32, Option<(usize, f64)>),
        norm: &RmsNorm,
    ) -> Result<(), OpError> {
        let (owners, own, here) = (&owned.owners, owned.own(), owned.owners.here());
        let (ranks, sent) = (here.place.ranks, own.sent());
        // Received parts have the layout in which they were sent, starting at offset 0.
        let made = |bytes: &Range<usize>| -> Result<_, OpError> {
            let came = bytes.start - sent.start..bytes.end - sent.start;
            Ok([part(&parts.all, bytes.clone())?, here.parts(0, came, ranks - 2)?])
        };
        let (sums, both_squares) = (made(&own.sums)?, made(&own.squares)?);
        let [added, their_squares] =
            [&sums, &both_squares].map(|[own, theirs]| PartialResults { own, theirs });
        let x = self.x.rows(own.rows.start, own.rows.len())?;
        let join = OwnedRowReduction {
            added,
            squares: squares.map(|(width, eps)| (their_squares, width, eps)),
            apart: here.sender_stride(),
            mark: &owners.flag((CopyKind::Parts, turn), 0)?,
            place: [owners.rank, ranks],
            x: x.on()?,
            factor: self.residual,
            norm: (norm.weight.on()?, norm.norm.eps),
            h: &here.rows(own.rows.clone())?,
            count: own.rows.len(),
            hidden: owned.layout.hidden,
        };
        self.push(decoder::join_own(self.device, &join)?)
    }

    /// Waits in the stream for another GPU's normalized rows.
    fn wait_for_norm(&self, owned: &DividedRows, rank: usize) -> Result<(), OpError> {
        let StreamState::Normalized { theirs: Some((turn, _)), .. } = &*owned.stream.borrow()
        else {
            return Ok(());
        };
        let owners = &owned.owners;
        let mark = owners.flag((CopyKind::Norms, *turn), owners.here().sender_index(rank))?;
        self.push(decoder::wait_for_mark(self.device, &mark)?)
    }

    /// Marks all rows as arrived. Later work in the stream may reuse the memory of the partial sums.
    fn mark_norms_received(&self, owned: &DividedRows) {
        if let StreamState::Normalized { theirs, .. } = &mut *owned.stream.borrow_mut() {
            *theirs = None;
        }
    }

    /// All rows of the normalized residual stream, if it is divided.
    pub(super) fn whole_norm(&self, x: Input<'_>) -> Result<Option<Tensor>, OpError> {
        let Some((owned, rows)) = self.owned(x)? else { return Ok(None) };
        owned.owners.others().rev().try_for_each(|rank| self.wait_for_norm(owned, rank))?;
        self.mark_norms_received(owned);
        Ok(Some(rows))
    }

    /// Projects the rows of all tokens. If the stream is divided, this GPU's rows are projected first, others as they
    /// arrive.
    pub(super) fn project_rows(
        &self,
        of: &CudaProjection,
        x: Input<'_>,
        (epilogue, out): (Epilogue<'_>, Option<OutputType>),
        made: &[Tensor],
    ) -> Result<(), OpError> {
        let scale = x.factor;
        let Some((owned, h)) = self.owned(x)? else {
            let (x, norm) = self.taken(x)?;
            return self.call(&LinearCall { norm, scale, epilogue, out, ..of.of(&x) }.into(made));
        };
        // An earlier projection has waited for all rows already.
        if owned.has_all_norms() {
            return self.call(&LinearCall { scale, epilogue, out, ..of.of(&h) }.into(made));
        }
        let own = owned.owners.rank;
        for rank in [own].into_iter().chain(owned.owners.others().rev()) {
            if rank != own {
                self.wait_for_norm(owned, rank)?;
            }
            let rows = &owned.layout.parts[rank].rows;
            let of_rows = |all: &Tensor| all.rows(rows.start, rows.len());
            let x = of_rows(&h)?;
            let made = made.iter().map(of_rows).collect::<Result<Vec<_>, _>>()?;
            self.call(&LinearCall { scale, epilogue, out, ..of.of(&x) }.into(&made))?;
        }
        self.mark_norms_received(owned);
        Ok(())
    }
}
