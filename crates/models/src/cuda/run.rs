//! The work of one step on the GPU, in order: launched while planned, or recorded for capture.

use super::Memory;
use super::copy_lists::CopyLists;
use super::gather::StepLaunches;
use super::group::Group;
use super::pass::Pass;
use super::share::{Collective, ConnectedGpus, Share};
use super::states::Part;
use crate::Architecture;
use device::Device;
use device::cuda::{Communicator, Stream};
use ops::{DType, OpError, Tensor, Typed};
use ops_cuda::{PlannedLaunches, Plans};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The KV cache of one layer.
pub(super) struct Cache {
    /// `[blocks, BLOCK, kv_heads, dim]`.
    pub(super) keys: Tensor,
    /// `[blocks, BLOCK, kv_heads, dim]`; `None` if values are the first `value_dim` channels of the keys.
    pub(super) values: Option<Tensor>,
    pub(super) value_dim: usize,
}

/// Data shared by the steps of an engine.
#[derive(Clone, Copy)]
pub(super) struct Common<'a> {
    pub(super) architecture: &'a Architecture,
    pub(super) memory: &'a Memory,
    /// Cached plans of calls.
    pub(super) plans: &'a RefCell<Plans>,
    /// The GPUs that the model is split over.
    pub(super) ranks: Option<&'a ConnectedGpus>,
}

/// A recorded piece of work.
pub(super) enum Piece {
    /// On this GPU only.
    Alone(PlannedLaunches),
    /// A collective of all ranks' GPUs.
    Collective(Collective, Arc<Communicator>),
}

impl Piece {
    /// Enqueues it on a stream.
    pub(super) fn enqueue(&self, stream: &Stream) -> Result<(), OpError> {
        match self {
            Self::Alone(planned) => planned.enqueue(stream),
            Self::Collective(call, by) => call.enqueue(by, stream),
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
    /// A second buffer, for operations that are not in place.
    pub(super) spare: Option<Tensor>,
    /// Zeros `[tokens, hidden]` in float32 that a first addition starts from.
    pub(super) zeros: Option<Tensor>,
    /// Whether the residual stream is these zeros, which are not written.
    pub(super) is_zero: bool,
    /// States and caches.
    pub(super) memory: &'a Memory,
    /// Multiplier of what layers add to x.
    pub(super) residual: f64,
    /// Multiplier of logits.
    pub(super) logits_scale: f64,
    plans: &'a RefCell<Plans>,
    /// Cached copy lists of states, by shape and parts.
    moves: RefCell<BTreeMap<Vec<usize>, Arc<CopyLists>>>,
    /// The recorded pieces, if the step is to be captured.
    kept: Option<RefCell<StepLaunches>>,
    /// The tensor for the logits of a step to be captured; as many of its rows are used as the step has.
    logits: Option<Tensor>,
    /// This rank's partial sum, for a split model.
    pub(super) share: Option<Share>,
}

impl<'a> Run<'a> {
    /// A run that launches each piece immediately, while the next is planned.
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
            zeros: None,
            is_zero: false,
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

    /// A run that records its pieces. Its logits are written to memory that outlives the step.
    pub(super) fn later(
        (device, stream): (&'a Device, &'a Stream),
        pass: &'a Pass,
        logits: &Tensor,
        of: Common<'a>,
    ) -> Result<Self, OpError> {
        let now = Self::now(device, stream, pass, of)?;
        let kept = StepLaunches::new(pass.one_token && pass.tokens == 1 && now.share.is_none());
        Ok(Self { kept: Some(RefCell::new(kept)), logits: Some(logits.clone()), ..now })
    }

    /// Launches or records a call of an op.
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

    /// Whether some variant supports a call on this device.
    pub(super) fn is_possible<C: Typed>(&self, call: &C) -> Result<bool, OpError> {
        match self.plans.borrow_mut().of(call, self.device) {
            Ok(_) => Ok(true),
            Err(OpError::NoVariant { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Launches or records planned launches.
    pub(super) fn push(&self, planned: PlannedLaunches) -> Result<(), OpError> {
        match &self.kept {
            Some(kept) => kept.borrow_mut().push(Piece::Alone(planned), self.on()),
            None => planned.enqueue(self.stream),
        }
    }

    /// Launches or records a collective.
    pub(super) fn run_collective(&self, share: &Share, call: Collective) -> Result<(), OpError> {
        let piece = Piece::Collective(call, Arc::clone(&share.together.communicator));
        match &self.kept {
            Some(kept) => kept.borrow_mut().push(piece, self.on()),
            None => piece.enqueue(self.stream),
        }
    }

    /// The copy lists of states for a group's sequences.
    pub(super) fn moves(
        &self,
        pool: &Tensor,
        parts: &[Part],
        group: &Group,
    ) -> Result<Arc<CopyLists>, OpError> {
        let mut key = pool.shape().to_vec();
        key.push(group.rows.start);
        key.extend(parts.iter().flat_map(|(first, count)| [*first, *count]));
        if let Some(moves) = self.moves.borrow().get(&key) {
            return Ok(Arc::clone(moves));
        }
        let moves = Arc::new(CopyLists::new(pool, parts, &group.slots_known, self.stream)?);
        self.moves.borrow_mut().insert(key, Arc::clone(&moves));
        Ok(moves)
    }

    /// A transient tensor. Its memory is reused in stream order once it is dropped; recorded pieces hold it.
    pub(super) fn tensor(&self, shape: &[usize], dtype: DType) -> Result<Tensor, OpError> {
        Tensor::transient(self.stream, shape, dtype)
    }

    /// Whether pieces are recorded for capture.
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

    /// Number of recorded pieces so far.
    pub(super) fn recorded_count(&self) -> Result<usize, OpError> {
        self.kept.as_ref().map_or(Ok(0), |kept| kept.borrow_mut().count(self.on()))
    }

    /// The recorded pieces.
    pub(super) fn into_recorded(self) -> Result<Vec<Piece>, OpError> {
        let on = (self.device, self.stream);
        self.kept.map_or(Ok(Vec::new()), |kept| kept.into_inner().into_pieces(on))
    }

    /// The device and stream it runs on.
    fn on(&self) -> (&Device, &Stream) {
        (self.device, self.stream)
    }
}
