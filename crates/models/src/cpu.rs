//! The engine on the processor: activations are rows of float32, every product, scan and attention a counted launch.

mod attention;
mod experts;
mod kda;
mod latent_attention;
mod mamba2;
mod mlp;
mod rows;
mod state;
mod step;
mod weights;

use crate::choice::{Choice, Drawn, choose_by_steps};
use crate::engine::{Batch, Capacity, Engine, EngineKind, Model, Storage, Wanted};
use crate::pages::Pages;
use crate::{Architecture, Checkpoint, Mixer, ModelError};
use device::{Device, HostBuffer};
use experts::CpuExperts;
use facts::BackendKind;
use kernels::OpError;
use kernels::cpu::read::sum_parallel;
use mlp::CpuMlp;
use rayon::prelude::*;
use rows::{add_scaled, rms_norm, scale};
use std::time::{Duration, Instant};
use step::Step;
use weights::{CpuProjection, Weights};

pub(crate) const ENGINE: EngineKind = EngineKind {
    backend: BackendKind::Cpu,
    chunk: 512,
    beside: 128,
    patience: Duration::MAX,
    storages: &[Storage::F32, Storage::Bf16],
    ahead: 1,
    open: |model, device, storage, capacity| {
        Ok(Box::new(CpuEngine::new(model, device, storage, capacity)?))
    },
};

/// A mixer with its weights, and its states or caches of every place.
trait Mix: Send {
    /// Mixes rows `[tokens, hidden]`, which are normed, and advances the states.
    fn mix(&mut self, x: &[f32], step: &Step<'_>) -> Result<Vec<f32>, OpError>;
    /// Forgets a sequence.
    fn reset(&mut self, sequence: usize);
    /// Gives another place the states of a sequence. The pages decide what is read of the caches.
    fn fork(&mut self, _from: usize, _to: usize) {}
}

struct CpuLayer {
    input_norm: Vec<f32>,
    mixer: Box<dyn Mix>,
    post_norm: Vec<f32>,
    experts: Option<CpuExperts>,
    mlp: Option<CpuMlp>,
}

struct CpuEngine {
    architecture: Architecture,
    /// Rows of the embedding are read where they are needed: a few of many.
    checkpoint: Checkpoint,
    device: Device,
    layers: Vec<CpuLayer>,
    norm: Vec<f32>,
    head: CpuProjection,
    pages: Pages,
}

impl CpuEngine {
    fn new(
        model: Model,
        device: Device,
        storage: Storage,
        capacity: Capacity,
    ) -> Result<Self, ModelError> {
        let Model { architecture, checkpoint } = model;
        let pages = Pages::new(capacity.sequences, capacity.tokens);
        let weights = Weights::new(&architecture, &checkpoint, &device, storage);
        let layer = |layer: &crate::Layer| {
            Ok(CpuLayer {
                input_norm: weights.vector(layer.input_norm)?,
                mixer: mixer(&layer.mixer, &weights, &pages, architecture.eps)?,
                post_norm: weights.vector(layer.post_norm)?,
                experts: layer
                    .experts
                    .as_ref()
                    .map(|of| CpuExperts::new(of, &weights))
                    .transpose()?,
                mlp: layer.mlp.as_ref().map(|of| CpuMlp::new(of, &weights)).transpose()?,
            })
        };
        let layers = architecture.layers.iter().map(layer).collect::<Result<_, ModelError>>()?;
        let norm = weights.vector(architecture.norm)?;
        let head = weights.projection(&architecture.head)?;
        Ok(Self { layers, norm, head, architecture, checkpoint, device, pages })
    }

    /// The first x: embeddings of the tokens `[tokens, hidden]`.
    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        let name = &self.architecture.params.get(self.architecture.embedding).name;
        let hidden = self.architecture.hidden;
        let checkpoint = &self.checkpoint;
        let row = |token: &u32| checkpoint.read::<f32>(name, *token as usize * hidden, hidden);
        let mut x = tokens.par_iter().map(row).collect::<Result<Vec<_>, _>>()?.concat();
        scale(&mut x, self.architecture.embedding_multiplier as f32);
        Ok(x)
    }
}

fn mixer(
    mixer: &Mixer,
    weights: &Weights<'_>,
    pages: &Pages,
    eps: f64,
) -> Result<Box<dyn Mix>, ModelError> {
    Ok(match mixer {
        Mixer::Mamba2(of) => Box::new(mamba2::CpuMamba2::new(of, weights, pages, eps)?),
        Mixer::Attention(of) => Box::new(attention::CpuAttention::new(of, weights, pages)?),
        Mixer::Kda(of) => Box::new(kda::CpuKda::new(of, weights, pages, eps)?),
        Mixer::Latent(of) => {
            Box::new(latent_attention::CpuLatentAttention::new(of, weights, pages)?)
        }
        // Such a model was refused by its config.
        _ => return Err(ModelError::fault(format!("no engine has {} layers", mixer.kind()))),
    })
}

impl CpuLayer {
    /// `x += r mixer(rms(x)); h = rms(x); x += r (experts(h) + mlp(h))`.
    fn advance(
        &mut self,
        x: &mut [f32],
        step: &Step<'_>,
        eps: f64,
        residual: f32,
    ) -> Result<(), OpError> {
        let mixed = self.mixer.mix(&rms_norm(x, &self.input_norm, eps), step)?;
        add_scaled(x, &mixed, residual);
        let normed = rms_norm(x, &self.post_norm, eps);
        if let Some(experts) = &self.experts {
            add_scaled(x, &experts.apply(step.device, &normed), residual);
        }
        if let Some(mlp) = &self.mlp {
            add_scaled(x, &mlp.apply(step.device, &normed), residual);
        }
        Ok(())
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
        // Far more than any cache holds, so that what is read comes from memory.
        const VALUES: usize = 64 << 20;
        let values = HostBuffer::filled(1f32, VALUES);
        let once = || {
            let start = Instant::now();
            std::hint::black_box(sum_parallel(&self.device, &values));
            start.elapsed().as_secs_f64()
        };
        let fastest = (0..5).map(|_| once()).fold(f64::MAX, f64::min);
        (VALUES * size_of::<f32>()) as f64 / fastest
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
        self.layers.iter_mut().for_each(|layer| layer.mixer.reset(sequence));
    }

    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        self.pages.fork(from, to, keep)?;
        self.layers.iter_mut().for_each(|layer| layer.mixer.fork(from, to));
        Ok(())
    }
}

impl CpuEngine {
    fn advance(&mut self, batch: &Batch, wanted: Wanted) -> Result<Vec<f32>, ModelError> {
        batch.check(self.pages.sequences(), self.architecture.vocabulary)?;
        let mut x = self.embed(&batch.tokens)?;
        self.pages.grow(&batch.lengths())?;
        let step = Step::new(&self.device, batch, &self.pages);
        let (eps, residual) = (self.architecture.eps, self.architecture.residual_multiplier as f32);
        for (layer, of) in self.layers.iter_mut().enumerate() {
            let advanced = of.advance(&mut x, &step, eps, residual);
            advanced.map_err(|error| ModelError::Op { layer, error })?;
            // No op looks for NaN in what layers give one another.
            if let Some(at) = x.iter().position(|x| x.is_nan()) {
                let (tensor, what) = ("x".to_owned(), format!("is NaN at element {at}"));
                return Err(ModelError::Op {
                    layer,
                    error: OpError::Value { op: "model", tensor, what },
                });
            }
        }
        let hidden = self.architecture.hidden;
        if wanted == Wanted::Last {
            let last = batch.offsets[1..].iter().map(|end| &x[(end - 1) * hidden..end * hidden]);
            x = last.collect::<Vec<_>>().concat();
        }
        let mut logits = self.head.apply(&self.device, &rms_norm(&x, &self.norm, eps));
        scale(&mut logits, (1.0 / self.architecture.logits_divisor) as f32);
        Ok(logits)
    }
}
