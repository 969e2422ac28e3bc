//! Prompts over several GPUs, each of which keeps the residual stream of a part of the rows: what it has made of the other ones' rows it
//! sends to them, and what it makes of its own, normalised, goes to all. Copies run beside the products of the rows that need none of them.
//!
//! Of each sum, on GPU r of n, whose turns are those of the rows of r + 1, r + 2, .., r + n - 1 and r itself, counted around:
//!
//! ```text
//! kernels     add, rows of r + 1 | add, r + 2 | .. | add, own | sum and norm, own | product, own      | product, r - 1 | product, r - 2 | ..
//! copies                         | parts to r + 1 | to r + 2 | ..                 | norms to r + 1 | to r + 2 | ..
//! ```
//!
//! At each turn every GPU sends to one and receives from one: links between all of them are used alike. The kernel of the sum waits for
//! the parts that the other GPUs copy here, a kernel before the product of another one's rows for its norm.
//! Neither waits for ever: the copy that a kernel waits for here was asked for before any kernel there that waits for this GPU, and a kernel
//! that waits leaves room for others, so that it holds up no copy, whatever the driver makes one by. One place of each kind for each other GPU
//! is enough: a GPU copies parts again when it has read the norms that were made of the last ones, and its next norms when the next parts are
//! there, which were made of the last norms.

mod layout;
mod owners;

pub(super) use owners::{Owners, room};

use super::pass::device_error;
use super::run::Run;
use super::weights::CudaProjection;
use crate::program::{Input, RmsNorm};
use device::cuda::{Buffer, CudaError, Event};
use kernels::decoder::{JoinOwn, Made};
use kernels::linear::{Finish, LinearCall, Out};
use kernels::{DType, OpError, Tensor, decoder};
use layout::{Layout, Part};
use owners::{Sent, least, part};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// The rows of a pass, of which each GPU owns a part.
pub(super) struct Owned {
    owners: Arc<Owners>,
    layout: Layout,
    stream: RefCell<Kept>,
}

/// Where the residual stream is.
enum Kept {
    /// Here, all of it.
    Whole,
    /// Its parts are under way, in a turn of theirs: the sum of its own rows is taken when somebody reads it.
    Parts(Parts, u32, Option<(usize, f64)>),
    /// Its own rows are here, and the norm of them that was asked for, by the address of its weight. What was sent stays until the other
    /// GPUs' rows, in a turn of theirs, are waited for, which says that it has arrived.
    Normed { by: u64, theirs: Option<(u32, Parts)> },
}

/// What this GPU has made of all rows, until the sum of its own is taken.
pub(super) struct Parts {
    all: Buffer,
    /// Of all rows, f32, in pieces one behind another.
    pub(super) squares: Vec<Tensor>,
    /// When other GPUs' are there.
    sent: Vec<(usize, Event)>,
}

impl Owned {
    /// The parts of so many tokens, where they are worth it.
    pub(super) fn new(owners: &Arc<Owners>, size @ [tokens, _]: [usize; 2]) -> Option<Self> {
        let ranks = owners.places.len();
        let worth = (least(ranks)..=owners.tokens).contains(&tokens);
        worth.then(|| Self {
            owners: Arc::clone(owners),
            layout: Layout::new(size, ranks),
            stream: RefCell::new(Kept::Whole),
        })
    }

    /// Whether all rows of the norm are there.
    fn has_met(&self) -> bool {
        matches!(&*self.stream.borrow(), Kept::Normed { theirs: None, .. })
    }

    /// This GPU's rows.
    fn own(&self) -> &Part {
        &self.layout.parts[self.owners.rank]
    }

    /// All ranks in the order in which their rows are made: this one's last.
    fn made(&self) -> impl Iterator<Item = (usize, &Part)> {
        let ranks = self.owners.others().chain([self.owners.rank]);
        ranks.map(|rank| (rank, &self.layout.parts[rank]))
    }
}

fn refused(what: &str) -> OpError {
    device_error(CudaError::Refused { what: what.to_owned() })
}

impl Run<'_> {
    /// Memory for what this GPU makes of rows.
    pub(super) fn parts(&self, owned: &Owned) -> Result<Parts, OpError> {
        let layout = &owned.layout;
        let all = self.stream.allocate_transient(layout.bytes()).map_err(device_error)?;
        let squares = layout.squares();
        let squares = squares
            .map(|(rows, bytes)| Tensor::on_gpu(part(&all, bytes)?, &[rows], DType::F32))
            .collect::<Result<_, _>>()?;
        Ok(Parts { all, squares, sent: Vec::new() })
    }

    /// Remembers that what another GPU gets of these parts is there.
    fn is_made(&self, owned: &Owned, parts: &mut Parts, rank: usize) -> Result<(), OpError> {
        if rank != owned.owners.rank {
            parts.sent.push((rank, self.stream.record().map_err(device_error)?));
        }
        Ok(())
    }

    /// Makes them by a projection of rows x of all tokens, those of the other GPUs first.
    pub(super) fn add_by_owner(
        &self,
        owned: &Owned,
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

    /// Makes them of sums `[tokens, hidden]` in float32, those of the other GPUs first.
    pub(super) fn narrow_by_owner(&self, owned: &Owned, all: &Tensor) -> Result<Parts, OpError> {
        let mut parts = self.parts(owned)?;
        for (rank, Part { rows, sums, .. }) in owned.made() {
            let from = all.rows(rows.start, rows.len())?;
            let both = [from.on()?, &part(&parts.all, sums.clone())?];
            self.push(decoder::narrow(self.device, both, rows.len() * owned.layout.hidden)?)?;
            self.is_made(owned, &mut parts, rank)?;
        }
        Ok(parts)
    }

    /// Sends the other GPUs' to them; the norm is that of the rows they were made of.
    pub(super) fn send_parts(
        &self,
        owned: &Owned,
        parts: Parts,
        norm: Option<(usize, f64)>,
    ) -> Result<(), OpError> {
        let owners = &owned.owners;
        let turn = owners.next_turn(Sent::Parts);
        for (rank, made) in &parts.sent {
            let (sent, there) = (owned.layout.parts[*rank].sent(), &owners.places[*rank]);
            let nth = there.nth(owners.rank);
            let both = [&*part(&parts.all, sent.clone())?, &*there.parts(nth, 0..sent.len(), nth)?];
            owners.copies.wait(made).map_err(device_error)?;
            owners.send((Sent::Parts, turn), *rank, both)?;
        }
        *owned.stream.borrow_mut() = Kept::Parts(parts, turn, norm);
        Ok(())
    }

    /// The residual stream, normalised, where this GPU keeps a part of it: its rows are there, another one's from [`Self::meet`] on.
    fn owned(&self, x: Input<'_>) -> Result<Option<(&Owned, Tensor)>, OpError> {
        let owned = self.share.as_ref().and_then(|share| share.owned.as_ref());
        let Some(owned) = owned.filter(|_| x.rows.is_none()) else { return Ok(None) };
        let Some(norm) = x.norm else {
            return Err(refused("parts of a stream are read by a norm"));
        };
        let by = norm.weight.on()?.address();
        let kept = &mut *owned.stream.borrow_mut();
        let (owners, own) = (&owned.owners, &owned.own().rows);
        match std::mem::replace(kept, Kept::Whole) {
            Kept::Whole => return Ok(None),
            Kept::Parts(parts, turn, squares) => {
                self.join_own(owned, &parts, (turn, squares), norm)?;
                let done = self.stream.record().map_err(device_error)?;
                let (turn, from) =
                    (owners.next_turn(Sent::Norms), owners.here().rows(own.clone())?);
                owners.copies.wait(&done).map_err(device_error)?;
                for rank in owners.others() {
                    let to = owners.places[rank].rows(own.clone())?;
                    owners.send((Sent::Norms, turn), rank, [&from, &to])?;
                }
                *kept = Kept::Normed { by, theirs: Some((turn, parts)) };
            }
            // Another norm of the same rows would be written where other GPUs may still read this one.
            Kept::Normed { by: other, .. } if other != by => {
                return Err(refused("two norms read the same parts of a stream"));
            }
            normed => *kept = normed,
        }
        let rows = owners.here().rows(0..self.pass.tokens)?;
        let rows = Tensor::on_gpu(rows, self.x.shape(), DType::Bf16)?;
        Ok(Some((owned, rows)))
    }

    /// The sum of this GPU's rows, and their norm.
    fn join_own(
        &self,
        owned: &Owned,
        parts: &Parts,
        (turn, squares): (u32, Option<(usize, f64)>),
        norm: &RmsNorm,
    ) -> Result<(), OpError> {
        let (owners, own, here) = (&owned.owners, owned.own(), owned.owners.here());
        let (ranks, sent) = (here.place.ranks, own.sent());
        // What came lies from the start on as it was sent.
        let made = |bytes: &Range<usize>| -> Result<_, OpError> {
            let came = bytes.start - sent.start..bytes.end - sent.start;
            Ok([part(&parts.all, bytes.clone())?, here.parts(0, came, ranks - 2)?])
        };
        let (sums, both_squares) = (made(&own.sums)?, made(&own.squares)?);
        let [added, their_squares] =
            [&sums, &both_squares].map(|[own, theirs]| Made { own, theirs });
        let x = self.x.rows(own.rows.start, own.rows.len())?;
        let join = JoinOwn {
            added,
            squares: squares.map(|(width, eps)| (their_squares, width, eps)),
            apart: here.apart(),
            mark: &owners.mark((Sent::Parts, turn), 0)?,
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

    /// From here on another GPU's rows of the norm are there.
    fn meet(&self, owned: &Owned, rank: usize) -> Result<(), OpError> {
        let Kept::Normed { theirs: Some((turn, _)), .. } = &*owned.stream.borrow() else {
            return Ok(());
        };
        let owners = &owned.owners;
        let mark = owners.mark((Sent::Norms, *turn), owners.here().nth(rank))?;
        self.push(decoder::meet(self.device, &mark)?)
    }

    /// All of them are. The parts' memory is free for what stands behind this in the stream.
    fn all_met(&self, owned: &Owned) {
        if let Kept::Normed { theirs, .. } = &mut *owned.stream.borrow_mut() {
            *theirs = None;
        }
    }

    /// All rows of the residual stream, normalised, where this GPU keeps a part of it.
    pub(super) fn whole_norm(&self, x: Input<'_>) -> Result<Option<Tensor>, OpError> {
        let Some((owned, rows)) = self.owned(x)? else { return Ok(None) };
        owned.owners.others().rev().try_for_each(|rank| self.meet(owned, rank))?;
        self.all_met(owned);
        Ok(Some(rows))
    }

    /// Projects rows into tensors of all tokens: where this GPU keeps a part of the stream, its own rows first, and those of others as
    /// they come.
    pub(super) fn project_rows(
        &self,
        of: &CudaProjection,
        x: Input<'_>,
        (finish, out): (Finish<'_>, Option<Out>),
        made: &[Tensor],
    ) -> Result<(), OpError> {
        let scale = x.factor;
        let Some((owned, h)) = self.owned(x)? else {
            let (x, norm) = self.taken(x)?;
            return self.call(&LinearCall { norm, scale, finish, out, ..of.of(&x) }.into(made));
        };
        // What another projection has waited for is all there.
        if owned.has_met() {
            return self.call(&LinearCall { scale, finish, out, ..of.of(&h) }.into(made));
        }
        let own = owned.owners.rank;
        for rank in [own].into_iter().chain(owned.owners.others().rev()) {
            if rank != own {
                self.meet(owned, rank)?;
            }
            let rows = &owned.layout.parts[rank].rows;
            let of_rows = |all: &Tensor| all.rows(rows.start, rows.len());
            let x = of_rows(&h)?;
            let made = made.iter().map(of_rows).collect::<Result<Vec<_>, _>>()?;
            self.call(&LinearCall { scale, finish, out, ..of.of(&x) }.into(&made))?;
        }
        self.all_met(owned);
        Ok(())
    }
}
