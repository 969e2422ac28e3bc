//! What a step does on the GPU, in order: run as it is planned, or kept to be recorded.

use super::Memory;
use super::gather::Kept;
use super::group::Group;
use super::moves::Moves;
use super::pass::Pass;
use super::share::{Called, Share, Together};
use super::states::Part;
use crate::Architecture;
use device::Device;
use device::cuda::{Communicator, Stream};
use kernels::cuda::{Planned, Plans};
use kernels::{DType, OpError, Tensor, Typed};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys and values of one layer.
pub(super) struct Cache {
    /// `[blocks, BLOCK, kv_heads, dim]`.
    pub(super) keys: Tensor,
    /// `[blocks, BLOCK, kv_heads, dim]`; none where they are the first `value_dim` channels of the keys.
    pub(super) values: Option<Tensor>,
    pub(super) value_dim: usize,
}

/// What the steps of an engine have in common.
#[derive(Clone, Copy)]
pub(super) struct Common<'a> {
    pub(super) architecture: &'a Architecture,
    pub(super) memory: &'a Memory,
    /// Plans of calls that were made before.
    pub(super) plans: &'a RefCell<Plans>,
    /// The GPUs over which the model is split.
    pub(super) ranks: Option<&'a Together>,
}

/// A piece of work that was kept.
pub(super) enum Piece {
    /// Of this GPU.
    Alone(Planned),
    /// Of all ranks' GPUs.
    Called(Called, Arc<Communicator>),
}

impl Piece {
    /// Gives it to a stream.
    pub(super) fn enqueue(&self, stream: &Stream) -> Result<(), OpError> {
        match self {
            Self::Alone(planned) => planned.enqueue(stream),
            Self::Called(call, by) => call.enqueue(by, stream),
        }
    }
}

/// The work of one step over the tokens of a pass.
pub(crate) struct Run<'a> {
    pub(super) device: &'a Device,
    pub(super) stream: &'a Stream,
    pub(super) pass: &'a Pass,
    /// The residual stream `[tokens, hidden]` in float32.
    pub(super) x: Tensor,
    /// Another one, for what cannot be added in place.
    pub(super) spare: Option<Tensor>,
    /// States and caches.
    pub(super) memory: &'a Memory,
    /// Factor on what layers add to x.
    pub(super) residual: f64,
    /// Factor on logits.
    pub(super) logits_scale: f64,
    plans: &'a RefCell<Plans>,
    /// How states move that were moved before, by their shape and parts.
    moves: RefCell<BTreeMap<Vec<usize>, Arc<Moves>>>,
    /// What was planned, where it is to be recorded.
    kept: Option<RefCell<Kept>>,
    /// Where logits go, as many rows of it as there are, where that is to be recorded.
    logits: Option<Tensor>,
    /// What this rank adds, of a split model.
    pub(super) share: Option<Share>,
}

impl<'a> Run<'a> {
    /// A run that launches each piece at once, while the next is planned.
    pub(super) fn now(
        device: &'a Device,
        stream: &'a Stream,
        pass: &'a Pass,
        Common { architecture, memory, plans, ranks }: Common<'a>,
    ) -> Result<Self, OpError> {
        let x = Tensor::transient(stream, &[pass.tokens, architecture.hidden], DType::F32)?;
        Ok(Self {
            device,
            stream,
            pass,
            x,
            spare: None,
            memory,
            residual: architecture.residual_multiplier,
            logits_scale: 1.0 / architecture.logits_divisor,
            plans,
            moves: RefCell::default(),
            kept: None,
            logits: None,
            share: ranks.map(|ranks| Share::new(ranks, architecture, pass)),
        })
    }

    /// A run that keeps its pieces. Its logits go to memory of their own, which outlives a step.
    pub(super) fn later(
        (device, stream): (&'a Device, &'a Stream),
        pass: &'a Pass,
        logits: &Tensor,
        of: Common<'a>,
    ) -> Result<Self, OpError> {
        let now = Self::now(device, stream, pass, of)?;
        let kept = Kept::new(pass.one_token && pass.tokens == 1 && now.share.is_none());
        Ok(Self { kept: Some(RefCell::new(kept)), logits: Some(logits.clone()), ..now })
    }

    /// Launches or keeps a call of an op.
    pub(super) fn call<C: Typed>(&self, call: &C) -> Result<(), OpError> {
        let mut plans = self.plans.borrow_mut();
        match &self.kept {
            Some(kept) => {
                let planned = plans.keep(call, self.device, self.stream)?;
                kept.borrow_mut().call(call, planned, self.on())
            }
            None => plans.enqueue(call, self.device, self.stream),
        }
    }

    /// Whether some variant takes a call here.
    pub(super) fn is_possible<C: Typed>(&self, call: &C) -> Result<bool, OpError> {
        match self.plans.borrow_mut().of(call, self.device) {
            Ok(_) => Ok(true),
            Err(OpError::NoVariant { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Launches or keeps launches.
    pub(super) fn push(&self, planned: Planned) -> Result<(), OpError> {
        match &self.kept {
            Some(kept) => kept.borrow_mut().push(Piece::Alone(planned), self.on()),
            None => planned.enqueue(self.stream),
        }
    }

    /// Makes or keeps a call of all ranks.
    pub(super) fn together(&self, share: &Share, call: Called) -> Result<(), OpError> {
        let piece = Piece::Called(call, Arc::clone(&share.together.communicator));
        match &self.kept {
            Some(kept) => kept.borrow_mut().push(piece, self.on()),
            None => piece.enqueue(self.stream),
        }
    }

    /// How the states of a group's sequences move between a pool and memory of a call's own.
    pub(super) fn moves(
        &self,
        pool: &Tensor,
        parts: &[Part],
        group: &Group,
    ) -> Result<Arc<Moves>, OpError> {
        let mut key = pool.shape().to_vec();
        key.push(group.rows.start);
        key.extend(parts.iter().flat_map(|(first, count)| [*first, *count]));
        if let Some(moves) = self.moves.borrow().get(&key) {
            return Ok(Arc::clone(moves));
        }
        let moves = Arc::new(Moves::new(pool, parts, &group.slots_known, self.stream)?);
        self.moves.borrow_mut().insert(key, Arc::clone(&moves));
        Ok(moves)
    }

    /// A tensor for what goes from one piece to the next. Its memory is used again once it is dropped, in the order of the
    /// stream; what is kept holds it.
    pub(super) fn tensor(&self, shape: &[usize], dtype: DType) -> Result<Tensor, OpError> {
        Tensor::transient(self.stream, shape, dtype)
    }

    /// Whether it keeps its pieces to be recorded.
    pub(super) fn is_recorded(&self) -> bool {
        self.kept.is_some()
    }

    /// The tensor for a step's logits.
    pub(super) fn logits_tensor(&self, shape @ [rows, _]: [usize; 2]) -> Result<Tensor, OpError> {
        match &self.logits {
            Some(logits) => logits.rows(0, rows),
            None => self.tensor(&shape, DType::F32),
        }
    }

    /// How many pieces were kept so far.
    pub(super) fn kept(&self) -> Result<usize, OpError> {
        self.kept.as_ref().map_or(Ok(0), |kept| kept.borrow_mut().count(self.on()))
    }

    /// What was kept.
    pub(super) fn into_kept(self) -> Result<Vec<Piece>, OpError> {
        let on = (self.device, self.stream);
        self.kept.map_or(Ok(Vec::new()), |kept| kept.into_inner().into_pieces(on))
    }

    /// Where it runs.
    fn on(&self) -> (&Device, &Stream) {
        (self.device, self.stream)
    }
}
