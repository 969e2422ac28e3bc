//! The CPU engine: activations are rows of float32; every product, scan and attention is a counted launch.

mod cache;
mod experts;
mod rows;
mod run;
mod save;
mod share;
mod state;
mod step;
mod weights;

use crate::choice::{Choice, SampledTokens, choose_by_steps};
use crate::engine::{Batch, Capacity, Engine, EngineKind, LogitsSelection, Model, Storage};
use crate::pages::{By, Pages};
use crate::program::{Backend, Program};
use crate::saved::bytes_of;
use crate::{Architecture, Checkpoint, ModelError, Ranks, SavedSequence, ShardRank, StateType};
use cache::Cache;
use device::{CacheSizes, Device, HostBuffer};
use experts::CpuExperts;
use facts::BackendKind;
use ops::Tensor;
use ops_cpu::packed_linear::Linear;
use ops_cpu::read::sum_parallel;
use rayon::prelude::*;
use rows::scale;
use run::Run;
use share::Share;
use state::StatePool;
use std::time::{Duration, Instant};
use step::Step;
use weights::{CpuProjection, Weights};

pub(crate) const ENGINE: EngineKind = EngineKind {
    backend: BackendKind::Cpu,
    chunk: 512,
    max_mixed_tokens: 128,
    max_mixed_step: Duration::MAX,
    storages: &[Storage::F32, Storage::Bf16],
    states: &[StateType::F32],
    decode_steps_in_flight: 1,
    // Ranks sum over sockets, not in device memory.
    extra: |_, _| 0,
    graph_bytes: 0,
    open: |model, device, storage, capacity| {
        Ok(Box::new(CpuEngine::new(model, device, storage, capacity)?))
    },
};

/// The CPU backend: weights are packed, calls run immediately.
pub(crate) enum Cpu {}

impl Backend for Cpu {
    type Projection = CpuProjection;
    type Heads = Vec<Linear>;
    type Experts = CpuExperts;
    type Run<'a> = Run<'a>;
}

/// States and caches of all layers.
#[derive(Default)]
pub(crate) struct Memory {
    states: Vec<StatePool>,
    caches: Vec<Cache>,
}

struct CpuEngine {
    architecture: Architecture,
    /// The embedding's rows are read on demand: a step needs few of them.
    checkpoint: Checkpoint,
    /// The ranks that the model is split over.
    ranks: Option<Ranks>,
    device: Device,
    program: Program<Cpu>,
    memory: Memory,
    pages: Pages,
}

impl CpuEngine {
    fn new(
        model: Model,
        device: Device,
        storage: Storage,
        capacity: Capacity,
    ) -> Result<Self, ModelError> {
        let Model { architecture, checkpoint, ranks } = model;
        let pages = Pages::new(capacity.sequences, capacity.tokens);
        let mut weights = Weights::new((&architecture, &checkpoint), &pages, &device, storage);
        let program = Program::new(&architecture, &mut weights)?;
        let memory = weights.memory;
        Ok(Self { program, memory, architecture, checkpoint, ranks, device, pages })
    }

    /// Embeddings of the tokens `[tokens, hidden]`, the initial residual stream.
    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        if self.architecture.stage.rank > 0 {
            // The residual stream comes from the previous process.
            return Ok(vec![0.0; tokens.len() * self.architecture.hidden]);
        }
        let name = &self.architecture.params.get(self.architecture.embedding).name;
        let hidden = self.architecture.hidden;
        let checkpoint = &self.checkpoint;
        let row = |token: &u32| checkpoint.read::<f32>(name, *token as usize * hidden, hidden);
        let mut x = tokens.par_iter().map(row).collect::<Result<Vec<_>, _>>()?.concat();
        scale(&mut x, self.architecture.embedding_multiplier as f32);
        Ok(x)
    }
}

impl Engine for CpuEngine {
    fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn read_bandwidth(&self) -> f64 {
        // The buffer exceeds all caches so that reads come from memory: some servers have 300 MiB of cache.
        let bytes = CacheSizes::of(&self.device).exceeding(256 << 20);
        let values = HostBuffer::filled(1f32, bytes / size_of::<f32>());
        let once = || {
            let start = Instant::now();
            std::hint::black_box(sum_parallel(&self.device, &values));
            start.elapsed().as_secs_f64()
        };
        let fastest = (0..5).map(|_| once()).fold(f64::MAX, f64::min);
        size_of_val(&values[..]) as f64 / fastest
    }

    fn step(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Vec<f32>, ModelError> {
        // Run on a pool thread: each launch from an outside thread would wait for a pool thread to wake.
        rayon::scope(|_| self.advance(batch, wanted))
    }

    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<SampledTokens>, ModelError> {
        // As for a step, which then is one of many launches.
        rayon::scope(|_| choose_by_steps(self, batch, how, count))
    }

    fn pages(&self) -> &Pages {
        &self.pages
    }

    fn reset(&mut self, sequence: usize) {
        self.pages.release(sequence);
        self.memory.states.iter_mut().for_each(|pool| pool.reset(sequence));
    }

    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        let copied = self.pages.fork(from, to, keep)?;
        // The pages decide which part of the caches is read.
        self.memory.states.iter_mut().for_each(|pool| pool.fork(from, to));
        if let Some([from, to]) = copied {
            let of_blocks = self.memory.pools_mut().filter(|(by, _)| *by == By::Block);
            of_blocks.for_each(|(_, pool)| save::copy_row(pool, from, to));
        }
        Ok(())
    }

    fn keep(&mut self, sequence: usize) -> bool {
        self.pages.keep(sequence);
        true
    }

    fn bytes_of(&self, tokens: usize) -> u64 {
        let rows = self.memory.pools().map(|(by, pool)| (by, save::row_bytes(pool)));
        bytes_of(rows, tokens)
    }

    fn save(&mut self, sequence: usize) -> Result<SavedSequence, ModelError> {
        let rows = |by| self.pages.rows_of(by, sequence);
        let copy = self.memory.pools().map(|(by, pool)| save::take(pool, &rows(by)));
        let (tokens, copy): (usize, Vec<Tensor>) = (self.pages.len(sequence), copy.collect());
        Ok(SavedSequence::new(tokens, self.bytes_to_save(tokens), copy))
    }

    fn restore(&mut self, saved: &SavedSequence, to: usize) -> Result<(), ModelError> {
        let copy: &Vec<Tensor> = saved.copy()?;
        self.pages.allocate_for(to, saved.tokens())?;
        for ((by, pool), rows) in self.memory.pools_mut().zip(copy) {
            save::put(pool, &self.pages.rows_of(by, to), rows);
        }
        Ok(())
    }
}

impl CpuEngine {
    fn advance(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Vec<f32>, ModelError> {
        batch.check(self.pages.sequences(), self.architecture.vocabulary)?;
        let x = self.embed(&batch.tokens)?;
        self.pages.grow(&batch.lengths())?;
        let step = Step::new(&self.device, batch, &self.pages);
        let residual = self.architecture.residual_multiplier as f32;
        let architecture = &self.architecture;
        let others = |of: ShardRank| self.ranks.as_ref().filter(|_| of.ranks > 1);
        let share = others(architecture.place).map(|ranks| Share::new(ranks, architecture));
        let Architecture { hidden, vocabulary, logits_divisor, logits_softcap, .. } = *architecture;
        let (width, divisor, softcap) = match wanted {
            LogitsSelection::Hidden => (hidden, 1.0, None),
            LogitsSelection::Every | LogitsSelection::Last => {
                (vocabulary, logits_divisor, logits_softcap)
            }
        };
        let stages = others(architecture.stage).map(|ranks| (ranks, width));
        let mut run = Run { step, memory: &mut self.memory, x, residual, share, stages };
        let mut logits = self.program.run(&mut run, wanted)?;
        let logits = logits.view_mut::<f32>().unwrap_or_default();
        scale(logits, (1.0 / divisor) as f32);
        if let Some(cap) = softcap.map(|cap| cap as f32) {
            logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        Ok(logits.to_vec())
    }
}
