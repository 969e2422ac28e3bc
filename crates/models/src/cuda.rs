//! The engine for NVIDIA GPUs. Weights, states and caches stay on the GPU, every layer is a list of planned launches,
//! and a decoding step of one token per sequence is one CUDA graph.

mod attend;
mod bandwidth;
mod calls;
mod copy_lists;
mod decode;
mod device_decoding;
mod experts;
mod gather;
mod group;
mod head;
mod lru_map;
#[cfg(test)]
#[cfg(target_os = "linux")]
#[path = "../../verify/tests/stand_in/machine.rs"]
mod machine;
mod pass;
mod run;
mod sampling_inputs;
mod save;
mod score;
mod sequence_parallel;
mod share;
mod stacked;
mod states;
mod weights;

use crate::choice::{Choice, SampledTokens, token};
use crate::engine::{
    Batch, Capacity, Engine, EngineKind, LogitsSelection, Model, Storage, holding_on_gpus,
};
use crate::logprobs::TokenLogprobs;
use crate::pages::Pages;
use crate::program::{Backend, Program};
use crate::{Architecture, Footprint, LargestStep, ModelError, SavedSequence, StateType, saved};
use decode::{DecodeGraph, DecodeGraphs, Size};
use device::Device;
use device::cuda::{DeviceError, Stream, Swap};
use device_decoding::DeviceDecoding;
use experts::CudaExperts;
use facts::BackendKind;
use ops::{DType, OpError, Tensor};
use ops_cuda::{Plans, decoder};
use pass::{Pass, device_error};
use run::{Cache, Common, Run};
use sampling_inputs::{Counts, SamplingInputs};
use save::SwapSpace;
use states::StatePool;
use std::cell::RefCell;
use std::time::Duration;
use weights::{CudaProjection, Weights};

pub(crate) const ENGINE: EngineKind = EngineKind {
    backend: BackendKind::Cuda,
    chunk: 8192,
    max_mixed_tokens: 2048,
    // The longest gap between tokens that readers perceive as a steady stream.
    max_mixed_step: Duration::from_millis(20),
    storages: &[Storage::Bf16],
    states: &[StateType::F32, StateType::Bf16],
    decode_steps_in_flight: decode::STEPS_IN_FLIGHT,
    extra: |of, capacity| share::bytes(of, longest(capacity)) + attend::bytes(of, capacity.tokens),
    graph_bytes: decode::GRAPH_BYTES + SMALL_BYTES as u64,
    open: |model, device, _, capacity| Ok(Box::new(CudaEngine::new(model, device, capacity)?)),
};

/// The CUDA backend: weights are in device memory, calls are planned launches.
pub(crate) enum Cuda {}

impl Backend for Cuda {
    type Projection = CudaProjection;
    /// `[heads, outputs, inputs]`.
    type Heads = Tensor;
    type Experts = CudaExperts;
    type Run<'a> = Run<'a>;
}

/// States and caches of all layers.
#[derive(Default)]
pub(crate) struct Memory {
    states: Vec<StatePool>,
    caches: Vec<Cache>,
    /// All states, for copies between slots; `None` for a model without recurrent layers.
    copies: Option<decoder::StatePools>,
}

struct CudaEngine {
    architecture: Architecture,
    device: Device,
    stream: Stream,
    embedding: Tensor,
    program: Program<Cuda>,
    memory: Memory,
    pages: Pages,
    /// CUDA graphs of steps with one token per sequence.
    decoders: DecodeGraphs,
    /// Occurrences of each token, for penalties.
    counts: Counts,
    /// Tokens that the GPU chooses while the host continues.
    ahead: DeviceDecoding,
    /// Cached plans of calls.
    plans: RefCell<Plans>,
    /// Slots whose states belong to a former sequence. They are cleared when a sequence starts there without a cached
    /// state; most start from a copy.
    stale: Vec<bool>,
    /// Copies of sequences on the host.
    saves: SwapSpace,
    /// The GPUs that the model is split over. Declared after the graphs that use it, so that it is dropped later.
    ranks: Option<share::ConnectedGpus>,
}

/// Bytes reserved for tensors below 2 MiB, for passes and graphs.
const SMALL_BYTES: usize = 64 << 20;

/// Allocates the memory for activations and logits of the largest pass up front; passes of all sizes share it.
fn reserve(stream: &Stream, of: &Architecture, capacity: Capacity) -> Result<(), DeviceError> {
    let step = LargestStep { tokens: longest(capacity), logits: capacity.sequences };
    let holding = holding_on_gpus(Storage::Bf16);
    let workspace = Footprint::new(of, holding, capacity, step).workspace;
    stream.reserve_transient([SMALL_BYTES, usize::try_from(workspace).unwrap_or(usize::MAX)])
}

/// Maximum tokens of a pass.
fn longest(capacity: Capacity) -> usize {
    capacity.tokens.saturating_mul(capacity.sequences).min(ENGINE.chunk)
}

/// Converts a device error outside of any layer.
fn failed(error: OpError) -> ModelError {
    ModelError::Device(error.to_string())
}

impl CudaEngine {
    fn new(model: Model, device: Device, capacity: Capacity) -> Result<Self, ModelError> {
        let Model { architecture, checkpoint, ranks } = model;

        if architecture.stage.ranks > 1 {
            let what = "layers are shared out over processors alone so far, not over GPUs";
            return Err(ModelError::Device(what.to_owned()));
        }
        let Some(cuda) = device::cuda::Cuda::of(&device) else {
            return Err(ModelError::Device("the device is no GPU".to_owned()));
        };
        let (stream, staging) = (cuda.stream().clone(), cuda.staging_buffer());
        let tokens = longest(capacity);
        let ranks = ranks.map(|ranks| share::join(&ranks, cuda, &architecture, tokens));
        let ranks = ranks.transpose()?;
        let pages = Pages::new(capacity.sequences, capacity.tokens);
        let loaded = cuda.uploading(|uploads| {
            let of = (&architecture, &checkpoint);
            let mut weights = Weights::new(of, &pages, &stream, uploads)?;
            let program = Program::new(&architecture, &mut weights)?;
            Ok::<_, ModelError>((weights.embedding, program, weights.memory))
        })?;
        let (embedding, program, mut memory) = loaded;
        let pools = memory.states.iter().map(StatePool::pool);
        memory.copies = decoder::StatePools::new(&device, &stream, pools).map_err(failed)?;
        reserve(&stream, &architecture, capacity).map_err(|error| failed(device_error(error)))?;
        if let Some(ranks) = &ranks {
            share::warm_up(&ranks.communicator, &stream)?;
        }
        Ok(Self {
            embedding,
            program,
            memory,
            architecture,
            device,
            stream,
            pages,
            decoders: DecodeGraphs::new(),
            counts: Counts::default(),
            ahead: DeviceDecoding::new(staging),
            plans: RefCell::default(),
            saves: SwapSpace::default(),
            stale: vec![false; capacity.sequences],
            ranks,
        })
    }

    /// Data shared by all steps.
    fn common(&self) -> Common<'_> {
        let Self { architecture, memory, plans, ranks, .. } = self;
        Common { architecture, memory, plans, ranks: ranks.as_ref() }
    }

    /// Plans all layers over the tokens of a pass and returns the wanted logits `[rows, vocabulary]`.
    fn plan(&self, run: &mut Run<'_>, wanted: LogitsSelection) -> Result<Tensor, ModelError> {
        let architecture = &self.architecture;
        let (tokens, hidden) = (run.pass.tokens, architecture.hidden);
        let embed = decoder::Embed {
            table: self.embedding.on().map_err(failed)?,
            dtype: self.embedding.dtype(),
            tokens: &run.pass.ids,
            x: run.x.on().map_err(failed)?,
            count: tokens,
            hidden,
            multiplier: architecture.embedding_multiplier,
        };
        run.push(decoder::embed(run.device, &embed).map_err(failed)?).map_err(failed)?;
        self.program.run(run, wanted)
    }

    /// Runs a pass, launching while planning; returns its logits in device memory.
    fn run(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Tensor, ModelError> {
        let pass = Pass::of(batch, &self.pages, &self.stream).map_err(failed)?;
        let mut run = Run::now(&self.device, &self.stream, &pass, self.common()).map_err(failed)?;
        self.plan(&mut run, wanted)
    }

    /// The size of the graph for this batch, prepared for launch. `lengths` are the tokens of each sequence before this
    /// step.
    fn decoder(
        &mut self,
        batch: &Batch,
        before: &[usize],
        how: &[Option<Choice<'_>>],
        counts: Option<&Tensor>,
    ) -> Result<Size, ModelError> {
        let longest = batch.sequences.iter().map(|sequence| self.pages.blocks_of(*sequence)).max();
        let of = [batch.sequences.len(), longest.unwrap_or(1)];
        let size = DecodeGraphs::size(of, self.pages.sequences(), counts.is_some());
        if !self.decoders.has(size) {
            self.plan_decoder(size, counts)?;
        }
        let graph = self.decoders.launching(size);
        let graph = graph.ok_or_else(|| ModelError::fault("a recorded step was not kept"))?;
        graph.prepare((batch, before), how, &self.pages, &self.stream).map_err(failed)?;
        Ok(size)
    }

    /// Plans a step of one token per sequence.
    fn plan_decoder(&mut self, size: Size, counts: Option<&Tensor>) -> Result<(), ModelError> {
        let logits = [self.pages.sequences(), self.architecture.vocabulary];
        let logits = self.decoders.logits(logits, &self.stream).map_err(failed)?;
        let graph = DecodeGraph::plan(size, counts, &logits, self)?;
        self.decoders.keep(size, graph);
        Ok(())
    }

    /// Captures a planned step, or only its layers; false if it was captured before.
    fn record(&mut self, size: Size, layers_alone: bool) -> Result<bool, ModelError> {
        let Self { decoders, device, stream, .. } = self;
        let graph = decoders.get(size);
        let graph = graph.ok_or_else(|| ModelError::fault("a recorded step was not kept"))?;
        let new = match layers_alone {
            true => graph.record_layers(device, stream),
            false => graph.record(device, stream),
        };
        let new = new.map_err(failed)?;
        if new {
            decoders.trim();
        }
        Ok(new)
    }

    /// A captured graph.
    fn graph(&mut self, size: Size) -> Result<&mut DecodeGraph, ModelError> {
        self.decoders.get(size).ok_or_else(|| ModelError::fault("a recorded step was not kept"))
    }

    /// The logits of a step, in device memory.
    fn logits(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Tensor, ModelError> {
        self.grow(batch)?;
        if batch.tokens.len() > batch.sequences.len() || wanted == LogitsSelection::Hidden {
            return self.run(batch, wanted);
        }
        let stream = self.stream.clone();
        let before: Vec<usize> =
            batch.sequences.iter().map(|place| self.pages.len(*place) - 1).collect();
        let size = self.decoder(batch, &before, &[], None)?;
        self.record(size, true)?;
        let logits = self.graph(size)?.run(&stream).map_err(failed)?;
        logits.rows(0, batch.sequences.len()).map_err(failed)
    }

    /// Chooses from logits in device memory `[rows, vocabulary]`.
    fn choose_from(
        &mut self,
        logits: &Tensor,
        how: &[Option<Choice<'_>>],
        slots: &[usize],
    ) -> Result<Vec<SampledTokens>, ModelError> {
        let (rows, vocabulary) = (how.len(), self.architecture.vocabulary);
        if how.iter().all(Option::is_none) {
            // The scheduler measures this step's duration, so its launches must not be pending.
            self.stream.synchronize().map_err(|error| failed(device_error(error)))?;
            return Ok(vec![SampledTokens::default(); rows]);
        }
        let counts = self.counts(how, slots)?;
        let stream = &self.stream;
        let chosen = || -> Result<Vec<SampledTokens>, OpError> {
            // Copied before biases are added in place.
            let mut given = sampling_inputs::wanted_logits(how, logits, stream)?;
            sampling_inputs::add_biases(how, logits, (&self.device, stream))?;
            let chooser = SamplingInputs::now(how, slots, vocabulary, stream)?;
            let tokens = Tensor::zeros(stream, &[rows], DType::I32)?;
            let call = chooser.call(logits, counts.as_ref(), &tokens);
            self.plans.borrow_mut().enqueue(&call, &self.device, stream)?;
            let words = decode::integers(&tokens, stream)?;
            let drawn = |(row, how): (usize, &Option<Choice<'_>>)| {
                let tokens = how.iter().map(|_| token(words[row])).collect();
                SampledTokens { tokens, logits: given[row].take() }
            };
            Ok(how.iter().enumerate().map(drawn).collect())
        };
        chosen().map_err(failed)
    }

    /// Token counts, if some choice uses penalties.
    fn counts(
        &mut self,
        how: &[Option<Choice<'_>>],
        slots: &[usize],
    ) -> Result<Option<Tensor>, ModelError> {
        let all = [self.pages.sequences(), self.architecture.vocabulary];
        self.counts.prepare(how, slots, all, &self.stream).map_err(failed)
    }

    /// Allocates cache blocks for a batch.
    fn grow(&mut self, batch: &Batch) -> Result<(), ModelError> {
        batch.check(self.pages.sequences(), self.architecture.vocabulary)?;
        self.saves.wait_for_copies(&batch.sequences).map_err(failed)?;
        self.clear_stale(batch)?;
        self.pages.grow(&batch.lengths())
    }

    /// Clears stale states of slots in which sequences of the batch start.
    fn clear_stale(&mut self, batch: &Batch) -> Result<(), ModelError> {
        for slot in batch.slots().filter(|slot| self.pages.is_empty(*slot)) {
            if std::mem::take(&mut self.stale[slot]) {
                let copies = self.memory.copies.as_ref();
                copies.map_or(Ok(()), |pools| pools.clear(&self.stream, slot)).map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl Engine for CudaEngine {
    fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn read_bandwidth(&self) -> f64 {
        self.copy_bandwidth().unwrap_or(f64::NAN)
    }

    /// Plans the step without penalties, or captures it if it is planned.
    fn prepare(&mut self, sequences: usize, tokens: usize) -> Result<bool, ModelError> {
        let of = [sequences, Pages::blocks_for(tokens)];
        let size = DecodeGraphs::size(of, self.pages.sequences(), false);
        if self.decoders.has(size) {
            return self.record(size, false);
        }
        self.plan_decoder(size, None)?;
        Ok(true)
    }

    fn step(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Vec<f32>, ModelError> {
        let logits = self.logits(batch, wanted)?;
        decode::values(&logits, &self.stream).map_err(failed)
    }

    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<SampledTokens>, ModelError> {
        if self.decodes_on_device(batch, how) {
            return self.choose_all(batch, how, count);
        }
        if count != 1 {
            let what =
                "tokens that are chosen at once are of all, without masks, biases and logits";
            return Err(ModelError::fault(what));
        }
        let logits = self.logits(batch, LogitsSelection::Last)?;
        self.choose_from(&logits, how, &batch.sequences)
    }

    fn score(
        &mut self,
        batch: &Batch,
        tokens: &[u32],
        count: usize,
    ) -> Result<Vec<TokenLogprobs>, ModelError> {
        self.score_tokens(batch, tokens, count)
    }

    fn begin_choosing(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        more: bool,
    ) -> Result<bool, ModelError> {
        if !self.decodes_on_device(batch, how) {
            return Ok(false);
        }
        self.begin(batch, how, 1 + usize::from(more))?;
        Ok(true)
    }

    fn choose_more(&mut self, more: bool) -> Result<bool, ModelError> {
        self.launch_next(more)
    }

    fn chosen(&mut self) -> Result<Vec<SampledTokens>, ModelError> {
        self.oldest()
    }

    fn pages(&self) -> &Pages {
        &self.pages
    }

    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        self.saves.wait_for_copies(&[from, to]).map_err(failed)?;
        let copied = self.pages.fork(from, to, keep)?;
        self.stale[to] = false;
        // The pages decide which part of the caches is read.
        let copies = self.memory.copies.as_ref();
        copies.map_or(Ok(()), |pools| pools.copy(&self.stream, from, to)).map_err(failed)?;
        let copied = copied.map(|blocks| self.memory.copy_block(blocks, &self.stream));
        copied.unwrap_or(Ok(())).map_err(failed)
    }

    fn keep(&mut self, sequence: usize) -> bool {
        self.pages.keep(sequence);
        true
    }

    fn bytes_of(&self, tokens: usize) -> u64 {
        saved::bytes_of(self.memory.rows(), tokens)
    }

    fn bytes_to_save(&self, tokens: usize) -> u64 {
        Swap::bytes_for(self.bytes_of(tokens))
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), ModelError> {
        self.saves.reserve(&self.device, bytes).map_err(failed)
    }

    fn reserve_more(&mut self) -> bool {
        self.saves.pin_more()
    }

    fn can_save(&self, sequence: usize) -> bool {
        self.saves.is_ready_for(self.bytes_of(self.pages.len(sequence)))
    }

    fn has_arrived(&mut self, sequence: usize) -> bool {
        self.saves.has_arrived(sequence)
    }

    fn bytes_per_second(&self) -> Option<f64> {
        self.saves.bytes_per_second()
    }

    fn save(&mut self, sequence: usize) -> Result<SavedSequence, ModelError> {
        self.saves.wait_for_copies(&[sequence]).map_err(failed)?;
        let parts = self.memory.parts(&self.pages, sequence).map_err(failed)?;
        let Some(copy) = self.saves.save(&parts).map_err(failed)? else {
            return Err(ModelError::fault("no memory of the host is left for a copy"));
        };
        let tokens = self.pages.len(sequence);
        Ok(SavedSequence::new(tokens, self.bytes_to_save(tokens), copy))
    }

    fn restore(&mut self, saved: &SavedSequence, to: usize) -> Result<(), ModelError> {
        let copy = saved.copy()?;
        self.saves.wait_for_copies(&[to]).map_err(failed)?;
        self.pages.allocate_for(to, saved.tokens())?;
        self.stale[to] = false;
        let parts = self.memory.parts(&self.pages, to).map_err(failed)?;
        self.saves.restore(copy, to, &parts).map_err(failed)
    }

    fn reset(&mut self, sequence: usize) {
        // If the device fails here, the next step fails too and reports it.
        let _ = self.saves.wait_for_copies(&[sequence]);
        self.ahead.leave(sequence);
        self.pages.release(sequence);
        self.counts.reset(sequence);
        self.stale[sequence] = true;
    }
}
