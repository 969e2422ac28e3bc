//! A step of one token a sequence as one recorded graph.

use super::pass::{Pass, device_error};
use super::program::{Program, Work};
use super::{CudaEngine, failed};
use crate::ModelError;
use crate::engine::{Batch, Wanted};
use crate::pages::Pages;
use device::cuda::{Buffer, Graph, Stream};
use kernels::{DType, OpError, Tensor, decoder};
use std::collections::BTreeMap;

/// Blocks that a recorded step has place for at least: short sequences share their graph.
pub(super) const FEWEST_BLOCKS: usize = 16;

/// Steps of the longer recording: between two graphs the GPU waits for the host's word, within one it does not.
pub(super) const STEPS: usize = 8;

/// Recorded steps that are kept: one that was not launched for the longest makes room for another one.
const MOST_GRAPHS: usize = 24;

/// Recorded steps by `[sequences, blocks]`.
#[derive(Default)]
pub(super) struct DecodeGraphs {
    graphs: BTreeMap<[usize; 2], (DecodeGraph, u64)>,
    launched: u64,
}

impl DecodeGraphs {
    /// The size that is recorded for so many sequences, where there are so many slots: few sizes, for each recording takes time
    /// and memory of its own.
    pub(super) fn size(sequences: usize, slots: usize) -> usize {
        sequences.next_power_of_two().min(slots)
    }

    /// Whether there is one.
    pub(super) fn has(&self, key: [usize; 2]) -> bool {
        self.graphs.contains_key(&key)
    }

    /// Keeps one.
    pub(super) fn keep(&mut self, key: [usize; 2], graph: DecodeGraph) {
        while self.graphs.len() >= MOST_GRAPHS {
            let oldest = self.graphs.iter().min_by_key(|(_, (_, launched))| *launched);
            let Some(key) = oldest.map(|(key, _)| *key) else { break };
            self.graphs.remove(&key);
        }
        self.graphs.insert(key, (graph, self.launched));
    }

    /// The one that is to be launched.
    pub(super) fn launching(&mut self, key: [usize; 2]) -> Option<&DecodeGraph> {
        self.launched += 1;
        let (graph, launched) = self.graphs.get_mut(&key)?;
        *launched = self.launched;
        Some(graph)
    }
}

/// A recorded step of up to so many sequences.
pub(super) struct DecodeGraph {
    graph: Graph,
    /// So many steps, each from the token that the one before it chose.
    steps: Graph,
    pass: Pass,
    /// The pass's integers.
    integers: Buffer,
    logits: Tensor,
    chosen: Tensor,
    /// What each step of `steps` chose `[STEPS, rows, 2]`.
    history: Tensor,
    /// What the graph launches, over the memory it launches it on.
    _work: Vec<Work>,
}

impl DecodeGraph {
    /// Records the step of `[sequences, blocks]`.
    pub(super) fn record(key: [usize; 2], engine: &CudaEngine) -> Result<Self, ModelError> {
        let (device, stream) = (&engine.device, &engine.stream);
        let (pass, integers) = Pass::recorded(key, stream).map_err(failed)?;
        let mut program =
            Program::later(device, stream, &pass, engine.planned_with()).map_err(failed)?;
        // Two words for each row; first of all, for no kernel's start can overlap what is no kernel.
        let chosen = program.tensor(&[key[0], 2], DType::I32).map_err(failed)?;
        program.work(Work::Clear(chosen.clone())).map_err(failed)?;
        let logits = engine.plan(&mut program, Wanted::Every)?;
        Self::choose(&program, [&logits, &chosen]).map_err(failed)?;
        let history = program.tensor(&[STEPS, key[0], 2], DType::I32).map_err(failed)?;
        let work = program.into_work();
        let step = |stream: &Stream| work.iter().try_for_each(|work| work.enqueue(stream));
        let graph = capture(stream, step).map_err(failed)?;
        let steps = capture(stream, |stream| {
            (0..STEPS).try_for_each(|at| {
                step(stream)?;
                history.rows(at, 1)?.copy_from(&chosen, stream)
            })
        });
        let steps = steps.map_err(failed)?;
        Ok(Self { graph, steps, pass, integers, logits, chosen, history, _work: work })
    }

    /// The largest logit of each row, as [`decoder::choose`] writes it down, and the step to the token it is of.
    fn choose(program: &Program<'_>, [logits, chosen]: [&Tensor; 2]) -> Result<(), OpError> {
        let [rows, vocabulary] = [logits.shape()[0], logits.shape()[1]];
        let buffers = [logits.on()?, chosen.on()?];
        program.add(decoder::choose(program.device, buffers, [rows, vocabulary])?)?;
        program.add(program.pass.plan_next(program.device, chosen.on()?)?)
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

    /// Runs the step, and gives the logits of so many sequences; the others are padding.
    pub(super) fn logits(&self, sequences: usize, stream: &Stream) -> Result<Vec<f32>, OpError> {
        self.graph.launch(stream).map_err(device_error)?;
        values(&self.logits.rows(0, sequences)?, stream)
    }

    /// Runs so many steps, each from the token that the one before it chose; gives the tokens of each of so many sequences.
    pub(super) fn tokens(
        &self,
        sequences: usize,
        count: usize,
        stream: &Stream,
    ) -> Result<Vec<Vec<u32>>, OpError> {
        let rows = self.chosen.shape()[0];
        let all = Tensor::allocate(stream, &[count, rows, 2], DType::I32)?;
        for first in (0..count).step_by(STEPS) {
            let some = STEPS.min(count - first);
            if some == STEPS {
                self.steps.launch(stream).map_err(device_error)?;
                all.rows(first, STEPS)?.copy_from(&self.history, stream)?;
                continue;
            }
            for step in first..count {
                self.graph.launch(stream).map_err(device_error)?;
                all.rows(step, 1)?.copy_from(&self.chosen, stream)?;
            }
        }
        let host = all.to_host(stream)?;
        let words = host.view::<i32>().unwrap_or_default().as_chunks::<2>().0;
        let of_row = |row: usize| {
            let words = words.iter().skip(row).step_by(rows.max(1));
            words.map(|[low, _]| decoder::chosen_token(*low)).collect()
        };
        Ok((0..sequences).map(of_row).collect())
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

/// Float32 values, copied to the host.
pub(super) fn values(tensor: &Tensor, stream: &Stream) -> Result<Vec<f32>, OpError> {
    Ok(tensor.to_host(stream)?.view::<f32>().map(<[f32]>::to_vec).unwrap_or_default())
}
