use super::copy_lists::CopyLists;
use super::group::Group;
use super::run::Run;
use device::cuda::Stream;
use ops::{DType, OpError, States, Tensor};
use std::sync::Arc;

/// Minimum number of sequences of a prefill scan that updates states in place. With fewer, its kernels split a sequence into
/// segments, and one thread block could write the final state before another has read the initial one.
const MIN_IN_PLACE: usize = 8;

/// A range of rows of a state: the first, and the count.
pub(super) type Part = (usize, usize);

/// The states of all sequences, `[slots, ..]`. A state is zero before its sequence's first token.
pub(super) struct StatePool {
    pool: Tensor,
}

/// The states of calls over the same sequences, one call per part of the state.
pub(super) enum StateBuffers<'a> {
    /// Updated in place.
    InPlace(States<'a>),
    /// Read from and written to separate memory.
    Separate {
        /// Initial states of each part; `None` if all sequences start from zeros.
        before: Vec<Option<Tensor>>,
        /// Final states of each part.
        after: Vec<Tensor>,
        copy_back: CopyBack,
    },
}

/// Data to copy from separate memory to the pool.
pub(super) enum CopyBack {
    /// Nothing: it was updated in place.
    Nothing,
    /// The state of each sequence.
    States(Tensor),
    /// Parts of states, each with all sequences.
    Parts(Tensor, Arc<CopyLists>),
}

impl StateBuffers<'_> {
    /// The states of the op that updates part `index`.
    pub(super) fn states(&self, index: usize) -> States<'_> {
        match self {
            Self::InPlace(states) => *states,
            Self::Separate { before, after, .. } => {
                States { before: before[index].as_ref(), slots: None, after: Some(&after[index]) }
            }
        }
    }
}

impl StatePool {
    /// A pool of zeros.
    pub(super) fn new(
        stream: &Stream,
        slots: usize,
        state: &[usize],
        dtype: DType,
    ) -> Result<Self, OpError> {
        Ok(Self { pool: Tensor::zeros(stream, &[&[slots], state].concat(), dtype)? })
    }

    /// The states for a scan; followed by [`StatePool::end`].
    pub(super) fn begin<'a>(
        &'a self,
        run: &Run<'_>,
        group: &'a Group,
    ) -> Result<StateBuffers<'a>, OpError> {
        if group.one_token || group.sequences >= MIN_IN_PLACE {
            return Ok(StateBuffers::InPlace(self.in_place(group)));
        }
        let whole = (0, self.pool.shape()[1]);
        if group.sequences == 1 {
            return self.begin_parts(run, group, &[whole]);
        }
        // Copied by the driver, not by a kernel: with PDL a scan may read its states before the preceding kernel has
        // ended.
        let shape = [&[group.sequences], &self.pool.shape()[1..]].concat();
        let before = if group.fresh {
            None
        } else {
            let before = run.tensor(&shape, self.pool.dtype())?;
            for (at, slot) in group.slots_known.iter().enumerate() {
                before.rows(at, 1)?.copy_from(&self.pool.rows(*slot, 1)?, run.stream)?;
            }
            Some(before)
        };
        let after = run.tensor(&shape, self.pool.dtype())?;
        let copy_back = CopyBack::States(after.clone());
        Ok(StateBuffers::Separate { before: vec![before], after: vec![after], copy_back })
    }

    /// The states for prefill convolutions, each over a part of the state; together the parts cover all of it in order.
    /// Initial and final states use separate memory, because some threads write the final state while others still read the
    /// initial one.
    pub(super) fn begin_parts(
        &self,
        run: &Run<'_>,
        group: &Group,
        parts: &[Part],
    ) -> Result<StateBuffers<'static>, OpError> {
        let rest = &self.pool.shape()[2..];
        let of_part = |state: &Tensor, (first, count): Part| {
            state.rows(first, count)?.shaped(&[&[1, count], rest].concat())
        };
        if let [slot] = group.slots_known[..] {
            // The final state is written in place, the initial state is read from a copy.
            let own = self.pool.rows(slot, 1)?.shaped(&self.pool.shape()[1..])?;
            let before = if group.fresh {
                None
            } else {
                let before = run.tensor(own.shape(), own.dtype())?;
                before.copy_from(&own, run.stream)?;
                Some(before)
            };
            let before = parts.iter().map(|part| before.as_ref().map(|all| of_part(all, *part)));
            let after = parts.iter().map(|part| of_part(&own, *part));
            return Ok(StateBuffers::Separate {
                before: before.map(Option::transpose).collect::<Result<_, _>>()?,
                after: after.collect::<Result<_, _>>()?,
                copy_back: CopyBack::Nothing,
            });
        }
        let moves = run.moves(&self.pool, parts, group)?;
        let own = || run.tensor(&moves.shape(), DType::F32);
        let before = if group.fresh { None } else { Some(own()?) };
        if let Some(before) = &before {
            moves.gather(run, &self.pool, before)?;
            if group.one_token {
                // With PDL the convolution reads its states before the preceding kernel has ended; a copy between the
                // two prevents it.
                let first = before.rows(0, 1)?;
                run.tensor(first.shape(), DType::F32)?.copy_from(&first, run.stream)?;
            }
        }
        let after = own()?;
        let of_part = |all: &Tensor, (at, (_, count)): (usize, &Part)| {
            moves.part(all, at)?.shaped(&[&[group.sequences, *count], rest].concat())
        };
        let each = || parts.iter().enumerate();
        let befores = each().map(|part| before.as_ref().map(|all| of_part(all, part)));
        Ok(StateBuffers::Separate {
            before: befores.map(Option::transpose).collect::<Result<_, _>>()?,
            after: each().map(|part| of_part(&after, part)).collect::<Result<_, _>>()?,
            copy_back: CopyBack::Parts(after, Arc::clone(&moves)),
        })
    }

    /// Copies the final states to the pool.
    pub(super) fn end(
        &self,
        run: &Run<'_>,
        group: &Group,
        buffers: &StateBuffers<'_>,
    ) -> Result<(), OpError> {
        let StateBuffers::Separate { copy_back, .. } = buffers else { return Ok(()) };
        match copy_back {
            CopyBack::Nothing => Ok(()),
            CopyBack::States(own) => {
                let slots = group.slots_known.iter().enumerate();
                slots.into_iter().try_for_each(|(at, slot)| {
                    self.pool.rows(*slot, 1)?.copy_from(&own.rows(at, 1)?, run.stream)
                })
            }
            CopyBack::Parts(own, moves) => moves.scatter(run, own, &self.pool),
        }
    }

    /// All states in place, for an op that updates them.
    pub(super) fn in_place<'a>(&'a self, group: &'a Group) -> States<'a> {
        States { before: Some(&self.pool), slots: Some(&group.slots), after: Some(&self.pool) }
    }

    /// The states of every slot.
    pub(super) fn pool(&self) -> &Tensor {
        &self.pool
    }
}
