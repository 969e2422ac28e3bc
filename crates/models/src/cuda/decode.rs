//! A step of one token a sequence as one recorded graph.

use super::pass::{Pass, device_error};
use super::run::{Piece, Run};
use super::{CudaEngine, failed};
use crate::ModelError;
use crate::choice::Choice;
use crate::engine::{Batch, Wanted};
use crate::pages::Pages;
use device::cuda::{Buffer, CudaError, Graph, Stream};
use kernels::{DType, OpError, Tensor};
use std::collections::BTreeMap;

/// Blocks that a recorded step has place for at least: short sequences share their graph.
const FEWEST_BLOCKS: usize = 16;

/// Steps of the longer recording. A few are begun while as many are under way: between these the GPU waits for nobody.
pub(super) const STEPS: usize = 4;

/// Recorded steps that are kept: one that was not launched for the longest makes room for another one.
const MOST_GRAPHS: usize = 24;

/// What a step is recorded for: sequences, blocks of each, and whether tokens are counted (0 or 1).
pub(super) type Size = [usize; 3];

/// Recorded steps.
#[derive(Default)]
pub(super) struct DecodeGraphs {
    graphs: BTreeMap<Size, (DecodeGraph, u64)>,
    launched: u64,
}

impl DecodeGraphs {
    /// The size that is recorded for so many sequences of so many blocks each, where there are so many slots: few sizes, for each
    /// recording takes time and memory of its own.
    pub(super) fn size([sequences, blocks]: [usize; 2], slots: usize, counts: bool) -> Size {
        let width = blocks.next_power_of_two().max(FEWEST_BLOCKS);
        [sequences.next_power_of_two().min(slots), width, usize::from(counts)]
    }

    /// Whether there is one.
    pub(super) fn has(&self, key: Size) -> bool {
        self.graphs.contains_key(&key)
    }

    /// The one that is there.
    pub(super) fn get(&mut self, key: Size) -> Option<&mut DecodeGraph> {
        self.graphs.get_mut(&key).map(|(graph, _)| graph)
    }

    /// Keeps one.
    pub(super) fn keep(&mut self, key: Size, graph: DecodeGraph) {
        while self.graphs.len() >= MOST_GRAPHS {
            let oldest = self.graphs.iter().min_by_key(|(_, (_, launched))| *launched);
            let Some(key) = oldest.map(|(key, _)| *key) else { break };
            self.graphs.remove(&key);
        }
        self.graphs.insert(key, (graph, self.launched));
    }

    /// The one that is to be launched.
    pub(super) fn launching(&mut self, key: Size) -> Option<&mut DecodeGraph> {
        self.launched += 1;
        let (graph, launched) = self.graphs.get_mut(&key)?;
        *launched = self.launched;
        Some(graph)
    }
}

/// A step of up to so many sequences: planned, and then recorded.
pub(super) struct DecodeGraph {
    /// All of a step up to its logits, and the choice of the next tokens with the step to them.
    step: Option<[Graph; 2]>,
    /// So many steps, each from the tokens that the one before it chose: recorded once they are wanted, for that takes as much longer.
    steps: Option<Graph>,
    pass: Pass,
    /// The pass's integers.
    integers: Buffer,
    logits: Tensor,
    /// The tokens that were chosen `[rows]`.
    chosen: Tensor,
    /// What each step of `steps` chose `[STEPS, rows]`.
    history: Tensor,
    /// What the graphs launch, over the memory they launch it on; that of the layers first.
    launches: Vec<Piece>,
    of_layers: usize,
}

impl DecodeGraph {
    /// Plans the step of so many sequences and blocks, which counts tokens where `counts` are given. To record it takes about as
    /// long again: others may decode between the two.
    pub(super) fn plan(
        [rows, blocks, _]: Size,
        counts: Option<&Tensor>,
        engine: &CudaEngine,
    ) -> Result<Self, ModelError> {
        let (device, stream) = (&engine.device, &engine.stream);
        let (pass, integers) = Pass::recorded([rows, blocks], stream).map_err(failed)?;
        let mut run = Run::later(device, stream, &pass, engine.common()).map_err(failed)?;
        let logits = engine.plan(&mut run, Wanted::Every)?;
        let of_layers = run.kept().map_err(failed)?;
        let chosen = run.tensor(&[rows], DType::I32).map_err(failed)?;
        chosen.clear(stream).map_err(failed)?;
        Self::plan_choice(&run, [&logits, &chosen], counts).map_err(failed)?;
        let history = run.tensor(&[STEPS, rows], DType::I32).map_err(failed)?;
        let launches = run.into_kept().map_err(failed)?;
        let (step, steps) = (None, None);
        Ok(Self { step, steps, pass, integers, logits, chosen, history, launches, of_layers })
    }

    /// Records what is not recorded yet and brings it to the GPU, which the first launch does otherwise: a step or, where there is
    /// one and they are wanted, several. Whether there was something.
    pub(super) fn record(&mut self, several: bool, stream: &Stream) -> Result<bool, OpError> {
        let had = self.step.is_some();
        for graph in self.step(stream)?.iter().filter(|_| !had) {
            graph.upload(stream).map_err(device_error)?;
        }
        if !had || !several || self.steps.is_some() {
            return Ok(!had);
        }
        self.steps(stream)?.upload(stream).map_err(device_error)?;
        Ok(true)
    }

    /// One step, recorded.
    fn step(&mut self, stream: &Stream) -> Result<&[Graph; 2], OpError> {
        if self.step.is_none() {
            let (layers, choice) = self.launches.split_at(self.of_layers);
            let record = |of| capture(stream, |stream| enqueue(of, stream));
            self.step = Some([record(layers)?, record(choice)?]);
        }
        recorded(&self.step)
    }

    /// Several, recorded.
    fn steps(&mut self, stream: &Stream) -> Result<&Graph, OpError> {
        if self.steps.is_none() {
            self.steps = Some(capture(stream, |stream| {
                (0..STEPS).try_for_each(|at| {
                    enqueue(&self.launches, stream)?;
                    self.history.rows(at, 1)?.copy_from(&self.chosen, stream)
                })
            })?);
        }
        recorded(&self.steps)
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

    /// Runs the step up to its logits, `[rows, vocabulary]`.
    pub(super) fn run(&mut self, stream: &Stream) -> Result<&Tensor, OpError> {
        self.step(stream)?[0].launch(stream).map_err(device_error)?;
        Ok(&self.logits)
    }

    /// Runs so many steps, at most [`STEPS`], each from the tokens that the one before it chose.
    pub(super) fn launch(&mut self, count: usize, stream: &Stream) -> Result<(), OpError> {
        if count == STEPS {
            return self.steps(stream)?.launch(stream).map_err(device_error);
        }
        for step in 0..count {
            for graph in self.step(stream)? {
                graph.launch(stream).map_err(device_error)?;
            }
            self.history.rows(step, 1)?.copy_from(&self.chosen, stream)?;
        }
        Ok(())
    }

    /// The words of the steps that were launched last, `[STEPS, rows]`.
    pub(super) fn history(&self) -> &Tensor {
        &self.history
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

/// Float32 values, copied to the host.
pub(super) fn values(tensor: &Tensor, stream: &Stream) -> Result<Vec<f32>, OpError> {
    Ok(tensor.to_host(stream)?.view::<f32>().map(<[f32]>::to_vec).unwrap_or_default())
}

/// Integers, copied to the host.
pub(super) fn integers(tensor: &Tensor, stream: &Stream) -> Result<Vec<i32>, OpError> {
    Ok(tensor.to_host(stream)?.view::<i32>().map(<[i32]>::to_vec).unwrap_or_default())
}
