//! Decoding steps of one token per sequence as CUDA graphs.

use super::lru_map::{Bytes, LruMap};
use super::pass::{Pass, device_error};
use super::run::{Piece, Run};
use super::{CudaEngine, failed};
use crate::ModelError;
use crate::choice::Choice;
use crate::engine::{Batch, LogitsSelection};
use crate::pages::Pages;
use device::Device;
use device::cuda::{Buffer, Cuda, DeviceError, Graph, Stream};
use half::bf16;
use ops::{DType, OpError, Tensor};

/// Minimum blocks per sequence of a graph, so that short sequences share one.
const FEWEST_BLOCKS: usize = 16;

/// Maximum steps in flight: while the host delivers the tokens of one, the GPU runs the next.
pub(super) const STEPS_IN_FLIGHT: usize = 4;

/// Device memory for graphs: their tensors and the driver's memory. The least recently launched graph is evicted.
pub(super) const GRAPH_BYTES: u64 = 128 << 20;

/// Minimum bytes counted per captured launch: the driver allocates graph memory in large pieces that graphs share.
const LAUNCH_BYTES: u64 = 4 << 10;

/// The size of a graph: sequences, blocks per sequence, and whether tokens are counted (0 or 1).
pub(super) type Size = [usize; 3];

/// The captured graphs by size.
pub(super) struct DecodeGraphs {
    graphs: LruMap<Size, DecodeGraph>,
    /// Logits of the largest step `[rows, vocabulary]`, shared by all graphs, which run one after another.
    logits: Option<Tensor>,
}

impl DecodeGraphs {
    pub(super) fn new() -> Self {
        Self { graphs: LruMap::new(GRAPH_BYTES), logits: None }
    }

    /// The graph size for a batch. There are few sizes, because each capture takes time and memory.
    pub(super) fn size([sequences, blocks]: [usize; 2], slots: usize, counts: bool) -> Size {
        let width = blocks.next_power_of_two().max(FEWEST_BLOCKS);
        [sequences.next_power_of_two().min(slots), width, usize::from(counts)]
    }

    /// Whether a graph of this size exists.
    pub(super) fn has(&self, key: Size) -> bool {
        self.graphs.has(key)
    }

    /// The graph of a size.
    pub(super) fn get(&mut self, key: Size) -> Option<&mut DecodeGraph> {
        self.graphs.get(key)
    }

    /// Adds a graph.
    pub(super) fn keep(&mut self, key: Size, graph: DecodeGraph) {
        self.graphs.keep(key, graph);
    }

    /// The graph of a size, marked as used.
    pub(super) fn launching(&mut self, key: Size) -> Option<&mut DecodeGraph> {
        self.graphs.used(key)
    }

    /// Evicts graphs that exceed the memory limit, after one was captured. A graph may be dropped while it runs: the
    /// driver waits for the launch, and memory is reused in stream order.
    pub(super) fn trim(&mut self) {
        self.graphs.trim();
    }

    /// The tensor that steps of up to `rows` rows write their logits to.
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

/// A decoding step for up to `rows` sequences: planned first, captured later.
pub(super) struct DecodeGraph {
    /// The whole step: layers, sampling, and the integer inputs of the next step.
    step: Option<Graph>,
    /// The layers up to the logits, used if tokens are masked or the host reads logits. Captured on first use.
    layers: Option<Graph>,
    pass: Pass,
    /// The integer inputs of the pass.
    integers: Buffer,
    logits: Tensor,
    /// The chosen tokens `[rows]`, valid until the next launch.
    chosen: Tensor,
    /// The launches that are captured, with their memory; those of the layers are first.
    launches: Vec<Piece>,
    of_layers: usize,
    /// Bytes of tensors that only this graph uses, and of the driver for its captures.
    own: u64,
    recorded: u64,
}

impl Bytes for DecodeGraph {
    fn bytes(&self) -> u64 {
        self.own + self.recorded
    }
}

impl DecodeGraph {
    /// Plans the step for a number of sequences and blocks, with token counting if `counts` is given. Capturing takes
    /// about as long again; other steps can run between the two.
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
        let logits = engine.plan(&mut run, LogitsSelection::Every)?;
        let of_layers = run.recorded_count().map_err(failed)?;
        let chosen = Tensor::allocate(stream, &[rows], DType::I32).map_err(failed)?;
        chosen.clear(stream).map_err(failed)?;
        Self::plan_choice(&run, [&logits, &chosen], counts).map_err(failed)?;
        let launches = run.into_recorded().map_err(failed)?;
        let (step, layers) = (None, None);
        // Other tensors are transient and shared by all steps; a persistent kernel needs few.
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

    /// Captures the step; false if it was captured before.
    pub(super) fn record(&mut self, device: &Device, stream: &Stream) -> Result<bool, OpError> {
        if self.step.is_some() {
            return Ok(false);
        }
        self.step = Some(self.captured(self.launches.len(), device, stream)?);
        Ok(true)
    }

    /// Captures the layers alone; false if they were captured before.
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

    /// Captures the first launches and uploads the graph, which its first launch would do otherwise.
    fn captured(
        &mut self,
        count: usize,
        device: &Device,
        stream: &Stream,
    ) -> Result<Graph, OpError> {
        let free = || Cuda::of(device).map_or(0, Cuda::free_bytes);
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

    /// Writes a batch and its sampling parameters into the graph's inputs.
    pub(super) fn prepare(
        &self,
        batch: (&Batch, &[usize]),
        how: &[Option<Choice<'_>>],
        pages: &Pages,
        stream: &Stream,
    ) -> Result<(), OpError> {
        self.pass.write(batch, how, pages, (stream, &self.integers))
    }

    /// Runs the captured layers and returns the logits `[rows, vocabulary]`, which the next step overwrites.
    pub(super) fn run(&self, stream: &Stream) -> Result<&Tensor, OpError> {
        recorded(&self.layers)?.launch(stream).map_err(device_error)?;
        Ok(&self.logits)
    }

    /// Launches the captured step on the batch written last, or on the tokens that the previous launch chose.
    pub(super) fn launch(&self, stream: &Stream) -> Result<(), OpError> {
        recorded(&self.step)?.launch(stream).map_err(device_error)
    }

    /// The tokens chosen by the last launch `[rows]`.
    pub(super) fn chosen(&self) -> &Tensor {
        &self.chosen
    }

    /// The block table `[rows, width]`.
    pub(super) fn table(&self) -> &Tensor {
        &self.pass.groups[0].table
    }
}

/// A graph that was just captured.
fn recorded<T>(of: &Option<T>) -> Result<&T, OpError> {
    let what = || DeviceError::Refused { what: "a step was not recorded".to_owned() };
    of.as_ref().ok_or_else(|| device_error(what()))
}

/// Enqueues launches on a stream.
fn enqueue(pieces: &[Piece], stream: &Stream) -> Result<(), OpError> {
    pieces.iter().try_for_each(|piece| piece.enqueue(stream))
}

/// Captures what `work` enqueues on a stream.
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

/// Copies float32 values to the host.
pub(super) fn values(tensor: &Tensor, stream: &Stream) -> Result<Vec<f32>, OpError> {
    let host = tensor.to_host(stream)?;
    if let Some(narrow) = host.view::<bf16>() {
        return Ok(narrow.iter().map(|value| value.to_f32()).collect());
    }
    Ok(host.view::<f32>().map(<[f32]>::to_vec).unwrap_or_default())
}

/// Copies integers to the host.
pub(super) fn integers(tensor: &Tensor, stream: &Stream) -> Result<Vec<i32>, OpError> {
    Ok(tensor.to_host(stream)?.view::<i32>().map(<[i32]>::to_vec).unwrap_or_default())
}
