//! The engine on the processor: activations are rows of float32, every product, scan and attention a counted launch.

mod cache;
mod experts;
mod rows;
mod run;
mod save;
mod share;
mod state;
mod step;
mod weights;

use crate::choice::{Choice, Drawn, choose_by_steps};
use crate::engine::{Batch, Capacity, Engine, EngineKind, Model, Storage, Wanted};
use crate::pages::{By, Pages};
use crate::program::{Backend, Program};
use crate::saved::bytes_of;
use crate::{Architecture, Checkpoint, ModelError, Place, Ranks, Saved, StateType};
use cache::Cache;
use device::{Caches, Device, HostBuffer};
use experts::CpuExperts;
use facts::BackendKind;
use kernels::Tensor;
use kernels::cpu::linear::Linear;
use kernels::cpu::read::sum_parallel;
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
    beside: 128,
    patience: Duration::MAX,
    storages: &[Storage::F32, Storage::Bf16],
    states: &[StateType::F32],
    ahead: 1,
    // Sums go over sockets.
    extra: |_, _| 0,
    recorded: 0,
    open: |model, device, storage, capacity| {
        Ok(Box::new(CpuEngine::new(model, device, storage, capacity)?))
    },
};

/// The processor: weights are packed, calls are made at once.
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
    /// Rows of the embedding are read where they are needed: a few of many.
    checkpoint: Checkpoint,
    /// Those over which it is split.
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

    /// The first x: embeddings of the tokens `[tokens, hidden]`.
    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        if self.architecture.stage.rank > 0 {
            // It comes from the process before this one.
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
        // So that what is read comes from memory: some servers' caches hold 300 MiB.
        let bytes = Caches::of(&self.device).overflowing(256 << 20);
        let values = HostBuffer::filled(1f32, bytes / size_of::<f32>());
        let once = || {
            let start = Instant::now();
            std::hint::black_box(sum_parallel(&self.device, &values));
            start.elapsed().as_secs_f64()
        };
        let fastest = (0..5).map(|_| once()).fold(f64::MAX, f64::min);
        size_of_val(&values[..]) as f64 / fastest
    }

    fn step(&mut self, batch: &Batch, wanted: Wanted) -> Result<Vec<f32>, ModelError> {
        // On a thread of the pool: each launch from outside would wait for one of them to wake.
        rayon::scope(|_| self.advance(batch, wanted))
    }

    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<Drawn>, ModelError> {
        // As for a step, which is one of many launches then.
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
        // The pages decide what is read of the caches.
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

    fn save(&mut self, sequence: usize) -> Result<Saved, ModelError> {
        let rows = |by| self.pages.rows_of(by, sequence);
        let copy = self.memory.pools().map(|(by, pool)| save::take(pool, &rows(by)));
        let (tokens, copy): (usize, Vec<Tensor>) = (self.pages.len(sequence), copy.collect());
        Ok(Saved::new(tokens, self.bytes_to_save(tokens), copy))
    }

    fn restore(&mut self, saved: &Saved, to: usize) -> Result<(), ModelError> {
        let copy: &Vec<Tensor> = saved.copy()?;
        self.pages.take_up(to, saved.tokens())?;
        for ((by, pool), rows) in self.memory.pools_mut().zip(copy) {
            save::put(pool, &self.pages.rows_of(by, to), rows);
        }
        Ok(())
    }
}

impl CpuEngine {
    fn advance(&mut self, batch: &Batch, wanted: Wanted) -> Result<Vec<f32>, ModelError> {
        batch.check(self.pages.sequences(), self.architecture.vocabulary)?;
        let x = self.embed(&batch.tokens)?;
        self.pages.grow(&batch.lengths())?;
        let step = Step::new(&self.device, batch, &self.pages);
        let residual = self.architecture.residual_multiplier as f32;
        let architecture = &self.architecture;
        let others = |of: Place| self.ranks.as_ref().filter(|_| of.ranks > 1);
        let share = others(architecture.place).map(|ranks| Share::new(ranks, architecture));
        let (width, divisor) = match wanted {
            Wanted::Hidden => (architecture.hidden, 1.0),
            Wanted::Every | Wanted::Last => (architecture.vocabulary, architecture.logits_divisor),
        };
        let stages = others(architecture.stage).map(|ranks| (ranks, width));
        let mut run = Run { step, memory: &mut self.memory, x, residual, share, stages };
        let mut logits = self.program.run(&mut run, wanted)?;
        let logits = logits.view_mut::<f32>().unwrap_or_default();
        scale(logits, (1.0 / divisor) as f32);
        Ok(logits.to_vec())
    }
}
