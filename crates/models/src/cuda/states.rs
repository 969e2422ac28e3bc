use super::group::Group;
use super::moves::Moves;
use super::run::Run;
use device::cuda::Stream;
use kernels::{DType, OpError, States, Tensor};
use std::sync::Arc;

/// Sequences from which on a scan of many tokens advances states where they lie. Of fewer its kernels cut a sequence into segments,
/// and a block may write the last state while another one is still to read the first.
const MANY: usize = 8;

/// A range of rows of a state, counted in its first dimension: the first, and how many.
pub(super) type Part = (usize, usize);

/// States `[slots, ..]`, zero before a sequence's first token.
pub(super) struct StatePool {
    pool: Tensor,
}

/// The states of calls over the same sequences, one call for each part of the state.
pub(super) enum Moving<'a> {
    /// Advanced where they lie.
    InPlace(States<'a>),
    /// Read and written elsewhere.
    Apart {
        /// For each part what the sequences begin with; none where they all begin with zeros.
        before: Vec<Option<Tensor>>,
        /// For each part what they end with.
        after: Vec<Tensor>,
        own: Own,
    },
}

/// What is to go from memory of a call's own to the pool.
pub(super) enum Own {
    /// It is there already.
    Nothing,
    /// The state of each sequence.
    States(Tensor),
    /// Parts of states, each of all sequences.
    Parts(Tensor, Arc<Moves>),
}

impl Moving<'_> {
    /// As the op takes them that advances part `index`.
    pub(super) fn states(&self, index: usize) -> States<'_> {
        match self {
            Self::InPlace(states) => *states,
            Self::Apart { before, after, .. } => {
                States { before: before[index].as_ref(), slots: None, after: Some(&after[index]) }
            }
        }
    }
}

impl StatePool {
    /// Of zeros.
    pub(super) fn new(
        stream: &Stream,
        slots: usize,
        state: &[usize],
        dtype: DType,
    ) -> Result<Self, OpError> {
        Ok(Self { pool: Tensor::zeros(stream, &[&[slots], state].concat(), dtype)? })
    }

    /// The states that a scan advances; [`StatePool::end`] comes behind it.
    pub(super) fn begin<'a>(
        &'a self,
        run: &Run<'_>,
        group: &'a Group,
    ) -> Result<Moving<'a>, OpError> {
        if group.one_token || group.sequences >= MANY {
            return Ok(Moving::InPlace(self.in_place(group)));
        }
        let whole = (0, self.pool.shape()[1]);
        if group.sequences == 1 {
            return self.begin_parts(run, group, &[whole]);
        }
        // Copies, and no kernel: a scan may read its states before the kernel ahead of it has ended.
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
        let own = Own::States(after.clone());
        Ok(Moving::Apart { before: vec![before], after: vec![after], own })
    }

    /// The states that convolutions of many tokens advance, each a part of it, which together are all of it in order. Many
    /// threads begin with the first state while others leave the last one, so they read and write memory of their own.
    pub(super) fn begin_parts(
        &self,
        run: &Run<'_>,
        group: &Group,
        parts: &[Part],
    ) -> Result<Moving<'static>, OpError> {
        let rest = &self.pool.shape()[2..];
        let of_part = |state: &Tensor, (first, count): Part| {
            state.rows(first, count)?.shaped(&[&[1, count], rest].concat())
        };
        if let [slot] = group.slots_known[..] {
            // What is written goes where it stays, and what is read is copied before.
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
            return Ok(Moving::Apart {
                before: before.map(Option::transpose).collect::<Result<_, _>>()?,
                after: after.collect::<Result<_, _>>()?,
                own: Own::Nothing,
            });
        }
        let moves = run.moves(&self.pool, parts, group)?;
        let own = || run.tensor(&moves.shape(), DType::F32);
        let before = if group.fresh { None } else { Some(own()?) };
        if let Some(before) = &before {
            moves.gather(run, &self.pool, before)?;
            if group.one_token {
                // That convolution reads its states before the kernel ahead of it has ended, which a copy between the two prevents.
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
        Ok(Moving::Apart {
            before: befores.map(Option::transpose).collect::<Result<_, _>>()?,
            after: each().map(|part| of_part(&after, part)).collect::<Result<_, _>>()?,
            own: Own::Parts(after, Arc::clone(&moves)),
        })
    }

    /// Keeps what the ops left.
    pub(super) fn end(
        &self,
        run: &Run<'_>,
        group: &Group,
        moving: &Moving<'_>,
    ) -> Result<(), OpError> {
        let Moving::Apart { own, .. } = moving else { return Ok(()) };
        match own {
            Own::Nothing => Ok(()),
            Own::States(own) => {
                let slots = group.slots_known.iter().enumerate();
                slots.into_iter().try_for_each(|(at, slot)| {
                    self.pool.rows(*slot, 1)?.copy_from(&own.rows(at, 1)?, run.stream)
                })
            }
            Own::Parts(own, moves) => moves.scatter(run, own, &self.pool),
        }
    }

    /// All states where they lie, for an op that advances them there.
    pub(super) fn in_place<'a>(&'a self, group: &'a Group) -> States<'a> {
        States { before: Some(&self.pool), slots: Some(&group.slots), after: Some(&self.pool) }
    }

    /// The states of every slot.
    pub(super) fn pool(&self) -> &Tensor {
        &self.pool
    }
}
