//! A step of one token a sequence as one recorded graph.

use super::pass::Pass;
use super::program::{Program, Work};
use super::tensor::{GpuTensor, device_error};
use super::{CudaEngine, failed};
use crate::ModelError;
use crate::engine::{Batch, Wanted};
use crate::pages::Pages;
use device::cuda::{Buffer, Graph, Stream};
use kernels::{DType, OpError, decoder};

/// Blocks that a recorded step has place for at least: short sequences share their graph.
pub(super) const FEWEST_BLOCKS: usize = 16;

/// Steps of the longer recording: between two graphs the GPU waits for the host's word, within one it does not.
pub(super) const STEPS: usize = 8;

/// A recorded step of so many sequences.
pub(super) struct DecodeGraph {
    graph: Graph,
    /// So many steps, each from the token that the one before it chose.
    steps: Graph,
    pass: Pass,
    /// The pass's integers.
    integers: Buffer,
    logits: GpuTensor,
    chosen: GpuTensor,
    /// What each step of `steps` chose `[STEPS, rows, 2]`.
    history: GpuTensor,
    /// What the graph launches, over the memory it launches it on.
    _work: Vec<Work>,
}

impl DecodeGraph {
    /// Records the step of `[sequences, blocks]`.
    pub(super) fn record(key: [usize; 2], engine: &CudaEngine) -> Result<Self, ModelError> {
        let (device, stream) = (&engine.device, &engine.stream);
        let (pass, integers) = Pass::recorded(key, stream).map_err(failed)?;
        let mut program =
            Program::later(device, stream, &pass, &engine.architecture).map_err(failed)?;
        // Two words for each row; first of all, for no kernel's start can overlap what is no kernel.
        let chosen = program.tensor(&[key[0], 2], DType::I32).map_err(failed)?;
        program.work(Work::Clear(chosen.clone())).map_err(failed)?;
        let logits = engine.plan(&mut program, Wanted::Every)?;
        Self::choose(&mut program, [&logits, &chosen]).map_err(failed)?;
        let history = program.tensor(&[STEPS, key[0], 2], DType::I32).map_err(failed)?;
        let work = program.into_work();
        let step = |stream: &Stream| work.iter().try_for_each(|work| work.enqueue(stream));
        let graph = capture(stream, step).map_err(failed)?;
        let steps = capture(stream, |stream| {
            (0..STEPS).try_for_each(|at| {
                step(stream)?;
                keep(stream, &chosen, &history.rows(at, 1)?)
            })
        });
        let steps = steps.map_err(failed)?;
        Ok(Self { graph, steps, pass, integers, logits, chosen, history, _work: work })
    }

    /// The largest logit of each row, as [`decoder::choose`] writes it down, and the step to the token it is of.
    fn choose(program: &mut Program<'_>, [logits, chosen]: [&GpuTensor; 2]) -> Result<(), OpError> {
        let [rows, vocabulary] = [logits.shape[0], logits.shape[1]];
        let buffers = [&logits.buffer, &chosen.buffer];
        program.add(decoder::choose(program.device, buffers, [rows, vocabulary])?)?;
        program.add(program.pass.plan_next(program.device, &chosen.buffer)?)
    }

    /// Lays a batch where the graph reads it.
    pub(super) fn prepare(
        &self,
        batch: (&Batch, &[usize]),
        pages: &Pages,
        stream: &Stream,
    ) -> Result<(), OpError> {
        self.pass.write(batch, pages, (stream, &self.integers))
    }

    /// Runs the step, and gives its logits.
    pub(super) fn logits(&self, stream: &Stream) -> Result<Vec<f32>, OpError> {
        self.graph.launch(stream).map_err(device_error)?;
        self.logits.read(stream)
    }

    /// Runs so many steps, each from the token that the one before it chose; gives the tokens of each sequence.
    pub(super) fn tokens(&self, count: usize, stream: &Stream) -> Result<Vec<Vec<u32>>, OpError> {
        let rows = self.chosen.shape[0];
        let all = GpuTensor::allocate(stream, &[count, rows, 2], DType::I32)?;
        for first in (0..count).step_by(STEPS) {
            let some = STEPS.min(count - first);
            if some == STEPS {
                self.steps.launch(stream).map_err(device_error)?;
                keep(stream, &self.history, &all.rows(first, STEPS)?)?;
                continue;
            }
            for step in first..count {
                self.graph.launch(stream).map_err(device_error)?;
                keep(stream, &self.chosen, &all.rows(step, 1)?)?;
            }
        }
        let host = all.to_host(stream)?;
        let words = host.view::<i32>().unwrap_or_default().as_chunks::<2>().0;
        let of_row = |row: usize| {
            let words = words.iter().skip(row).step_by(rows.max(1));
            words.map(|[low, _]| decoder::chosen_token(*low)).collect()
        };
        Ok((0..rows).map(of_row).collect())
    }
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

/// Copies the whole of a tensor to where it is not overwritten.
fn keep(stream: &Stream, from: &GpuTensor, to: &GpuTensor) -> Result<(), OpError> {
    stream.copy(&from.buffer, &to.buffer, from.bytes()).map_err(device_error)
}
