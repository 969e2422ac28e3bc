//! A step of one token a sequence as one recorded graph.

use super::pass::{Pass, device_error};
use super::recent::{Bytes, Recent};
use super::run::{Piece, Run};
use super::{CudaEngine, failed};
use crate::ModelError;
use crate::choice::Choice;
use crate::engine::{Batch, Wanted};
use crate::pages::Pages;
use device::Device;
use device::cuda::{Buffer, Cuda, CudaError, Graph, Stream};
use half::bf16;
use kernels::{DType, OpError, Tensor};

/// Blocks that a recorded step has place for at least: short sequences share their graph.
const FEWEST_BLOCKS: usize = 16;

/// Steps in flight at most: while the host delivers the tokens of one, the GPU works on the next.
pub(super) const STEPS_IN_FLIGHT: usize = 4;

/// Bytes that recorded steps may take of the GPU, their tensors and the driver's memory for their graphs: the one that was not launched
/// for longest makes room for another one.
pub(super) const RECORDED_BYTES: u64 = 128 << 20;

/// Bytes that a recorded launch is counted as at least: the driver takes memory for graphs in large pieces, and the next graph gets some
/// of what it took for this one.
const LAUNCH_BYTES: u64 = 4 << 10;

/// What a step is recorded for: sequences, blocks of each, and whether tokens are counted (0 or 1).
pub(super) type Size = [usize; 3];

/// Recorded steps.
pub(super) struct DecodeGraphs {
    graphs: Recent<Size, DecodeGraph>,
    /// Logits of the largest step `[rows, vocabulary]`, which all of them write to: they run one after the other.
    logits: Option<Tensor>,
}

impl DecodeGraphs {
    pub(super) fn new() -> Self {
        Self { graphs: Recent::new(RECORDED_BYTES), logits: None }
    }

    /// The size that is recorded for so many sequences of so many blocks each, where there are so many slots: few sizes, for each
    /// recording takes time and memory of its own.
    pub(super) fn size([sequences, blocks]: [usize; 2], slots: usize, counts: bool) -> Size {
        let width = blocks.next_power_of_two().max(FEWEST_BLOCKS);
        [sequences.next_power_of_two().min(slots), width, usize::from(counts)]
    }

    /// Whether there is one.
    pub(super) fn has(&self, key: Size) -> bool {
        self.graphs.has(key)
    }

    /// The one that is there.
    pub(super) fn get(&mut self, key: Size) -> Option<&mut DecodeGraph> {
        self.graphs.get(key)
    }

    /// Keeps one.
    pub(super) fn keep(&mut self, key: Size, graph: DecodeGraph) {
        self.graphs.keep(key, graph);
    }

    /// The one that is to be launched.
    pub(super) fn launching(&mut self, key: Size) -> Option<&mut DecodeGraph> {
        self.graphs.used(key)
    }

    /// Evicts what is over the bound, once one of them was recorded. Graphs and their memory may be dropped while they run: the driver
    /// lets a launch end first, and memory is used again in the order of the stream.
    pub(super) fn trim(&mut self) {
        self.graphs.trim();
    }

    /// Where steps of up to so many rows write their logits.
    pub(super) fn logits(
        &mut self,
        [rows, vocabulary]: [usize; 2],
        stream: &Stream,
    ) -> Result<Tensor, OpError> {
        match &self.logits {
            Some(logits) => Ok(logits.clone()),
            None => {
                let logits = Tensor::allocate(stream, &[rows, vocabulary], DType::F32)?;
                Ok(self.logits.insert(logits).clone())
            }
        }
    }
}

/// A step of up to so many sequences: planned, and then recorded.
pub(super) struct DecodeGraph {
    /// The layers up to the logits, the choice of the next tokens, and the integers of the step after it.
    step: Option<Graph>,
    /// The layers up to the logits alone, for a choice by a mask or one whose logits the host reads. Recorded on first use.
    layers: Option<Graph>,
    pass: Pass,
    /// The pass's integers.
    integers: Buffer,
    logits: Tensor,
    /// The tokens that were chosen `[rows]`, until the next launch.
    chosen: Tensor,
    /// What the graphs launch, over the memory they launch it on; that of the layers first.
    launches: Vec<Piece>,
    of_layers: usize,
    /// Bytes of tensors that no other step has, and the driver's for what is recorded.
    own: u64,
    recorded: u64,
}

impl Bytes for DecodeGraph {
    fn bytes(&self) -> u64 {
        self.own + self.recorded
    }
}

impl DecodeGraph {
    /// Plans the step of so many sequences and blocks, which counts tokens where `counts` are given. To record it takes about as
    /// long again: others may decode between the two.
    pub(super) fn plan(
        [rows, blocks, _]: Size,
        counts: Option<&Tensor>,
        logits: &Tensor,
        engine: &CudaEngine,
    ) -> Result<Self, ModelError> {
        let (device, stream) = (&engine.device, &engine.stream);
        let (pass, integers) = Pass::recorded([rows, blocks], stream).map_err(failed)?;
        let run = Run::later((device, stream), &pass, logits, engine.common());
        let mut run = run.map_err(failed)?;
        let logits = engine.plan(&mut run, Wanted::Every)?;
        let of_layers = run.kept().map_err(failed)?;
        let chosen = Tensor::allocate(stream, &[rows], DType::I32).map_err(failed)?;
        chosen.clear(stream).map_err(failed)?;
        Self::plan_choice(&run, [&logits, &chosen], counts).map_err(failed)?;
        let launches = run.into_kept().map_err(failed)?;
        let (step, layers) = (None, None);
        // Other tensors pass from one launch to the next, in memory that all steps share; a persistent kernel's are few.
        let stream_of_rows = rows * engine.architecture.hidden * size_of::<f32>();
        let own = (integers.bytes() + stream_of_rows) as u64;
        let recorded = 0;
        Ok(Self {
            step,
            layers,
            pass,
            integers,
            logits,
            chosen,
            launches,
            of_layers,
            own,
            recorded,
        })
    }

    /// Records the step, where it is not; whether it was not.
    pub(super) fn record(&mut self, device: &Device, stream: &Stream) -> Result<bool, OpError> {
        if self.step.is_some() {
            return Ok(false);
        }
        self.step = Some(self.captured(self.launches.len(), device, stream)?);
        Ok(true)
    }

    /// Records the layers alone, where they are not; whether they were not.
    pub(super) fn record_layers(
        &mut self,
        device: &Device,
        stream: &Stream,
    ) -> Result<bool, OpError> {
        if self.layers.is_some() {
            return Ok(false);
        }
        self.layers = Some(self.captured(self.of_layers, device, stream)?);
        Ok(true)
    }

    /// Records so many of the launches and uploads the graph, which its first launch does otherwise.
    fn captured(
        &mut self,
        count: usize,
        device: &Device,
        stream: &Stream,
    ) -> Result<Graph, OpError> {
        let free = || device.cuda().map_or(0, Cuda::free_bytes);
        let (launches, before) = (&self.launches[..count], free());
        let graph = capture(stream, |stream| enqueue(launches, stream))?;
        graph.upload(stream).map_err(device_error)?;
        self.recorded += before.saturating_sub(free()).max(count as u64 * LAUNCH_BYTES);
        Ok(graph)
    }

    fn plan_choice(
        run: &Run<'_>,
        [logits, chosen]: [&Tensor; 2],
        counts: Option<&Tensor>,
    ) -> Result<(), OpError> {
        let pass = run.pass;
        let Some(chooser) = &pass.chooser else { return Ok(()) };
        run.call(&chooser.call(logits, counts, chosen))?;
        run.push(pass.plan_next(run.device, [chosen, &chooser.stops], counts, logits.shape()[1])?)
    }

    /// Lays a batch where the graph reads it, and how its next tokens are chosen.
    pub(super) fn prepare(
        &self,
        batch: (&Batch, &[usize]),
        how: &[Option<Choice<'_>>],
        pages: &Pages,
        stream: &Stream,
    ) -> Result<(), OpError> {
        self.pass.write(batch, how, pages, (stream, &self.integers))
    }

    /// Runs the recorded layers up to the logits, `[rows, vocabulary]`, which the next step overwrites.
    pub(super) fn run(&self, stream: &Stream) -> Result<&Tensor, OpError> {
        recorded(&self.layers)?.launch(stream).map_err(device_error)?;
        Ok(&self.logits)
    }

    /// Runs the recorded step, from the batch that was written last or from the tokens that the launch before it chose.
    pub(super) fn launch(&self, stream: &Stream) -> Result<(), OpError> {
        recorded(&self.step)?.launch(stream).map_err(device_error)
    }

    /// The tokens that the last launch chose, `[rows]`.
    pub(super) fn chosen(&self) -> &Tensor {
        &self.chosen
    }

    /// The blocks of each sequence, `[rows, width]`.
    pub(super) fn table(&self) -> &Tensor {
        &self.pass.groups[0].table
    }
}

/// What has just been recorded.
fn recorded<T>(of: &Option<T>) -> Result<&T, OpError> {
    let what = || CudaError::Refused { what: "a step was not recorded".to_owned() };
    of.as_ref().ok_or_else(|| device_error(what()))
}

/// Gives launches to a stream.
fn enqueue(pieces: &[Piece], stream: &Stream) -> Result<(), OpError> {
    pieces.iter().try_for_each(|piece| piece.enqueue(stream))
}

/// Records what `work` gives to a stream.
fn capture(
    stream: &Stream,
    work: impl FnOnce(&Stream) -> Result<(), OpError>,
) -> Result<Graph, OpError> {
    let mut refused = None;
    let captured = stream.capture(|stream| {
        refused = work(stream).err();
        Ok(())
    });
    match refused {
        Some(error) => Err(error),
        None => captured.map_err(device_error),
    }
}

/// Values in float32, copied to the host.
pub(super) fn values(tensor: &Tensor, stream: &Stream) -> Result<Vec<f32>, OpError> {
    let host = tensor.to_host(stream)?;
    if let Some(narrow) = host.view::<bf16>() {
        return Ok(narrow.iter().map(|value| value.to_f32()).collect());
    }
    Ok(host.view::<f32>().map(<[f32]>::to_vec).unwrap_or_default())
}

/// Integers, copied to the host.
pub(super) fn integers(tensor: &Tensor, stream: &Stream) -> Result<Vec<i32>, OpError> {
    Ok(tensor.to_host(stream)?.view::<i32>().map(<[i32]>::to_vec).unwrap_or_default())
}
