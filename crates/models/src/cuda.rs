//! The engine on NVIDIA GPUs: weights, states and caches stay there, every layer is a list of planned launches, and a step
//! of one token a sequence is one recorded graph.

mod attention;
mod choose;
mod decode;
mod experts;
mod kda;
mod latent_attention;
mod mamba2;
mod mlp;
mod moves;
mod pass;
mod program;
mod states;
mod weights;

use crate::choice::{Choice, Drawn, token};
use crate::engine::{Batch, Capacity, Engine, EngineKind, Model, Storage, Wanted};
use crate::pages::Pages;
use crate::{Architecture, Mixer, ModelError};
use choose::{Chooser, Counts};
use decode::{DecodeGraph, DecodeGraphs};
use device::Device;
use device::cuda::Stream;
use experts::CudaExperts;
use facts::BackendKind;
use kernels::cuda::Plans;
use kernels::linear::{LinearCall, Out};
use kernels::{DType, OpError, Tensor, decoder};
use mlp::CudaMlp;
use pass::Pass;
use program::Program;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use weights::{CudaProjection, Weights};

pub(crate) const ENGINE: EngineKind = EngineKind {
    backend: BackendKind::Cuda,
    chunk: 8192,
    beside: 2048,
    // With a decoding step less than what a reader takes for a steady stream.
    patience: Duration::from_millis(20),
    storages: &[Storage::Bf16],
    ahead: decode::STEPS,
    open: |model, device, _, capacity| Ok(Box::new(CudaEngine::new(model, device, capacity)?)),
};

/// A mixer with its weights, and its states or caches of every slot.
trait Mix: Send {
    /// Plans `x += residual_multiplier * mix(rms(x))` over the program's x, and the advance of the states.
    fn plan(&self, program: &mut Program<'_>, norm: &Tensor) -> Result<(), OpError>;
    /// Forgets a sequence.
    fn reset(&self, stream: &Stream, place: usize) -> Result<(), OpError>;
    /// Gives another place the states of a sequence. The pages decide what is read of the caches.
    fn fork(&self, _stream: &Stream, _from: usize, _to: usize) -> Result<(), OpError> {
        Ok(())
    }
}

struct CudaLayer {
    input_norm: Tensor,
    mixer: Box<dyn Mix>,
    post_norm: Tensor,
    experts: Option<CudaExperts>,
    mlp: Option<CudaMlp>,
}

struct CudaEngine {
    architecture: Architecture,
    device: Device,
    stream: Stream,
    embedding: Tensor,
    layers: Vec<CudaLayer>,
    norm: Tensor,
    head: CudaProjection,
    pages: Pages,
    /// Recorded steps of one token a sequence.
    decoders: DecodeGraphs,
    /// How often each token was there.
    counts: Counts,
    /// Plans of calls that were made before.
    plans: RefCell<Plans>,
}

/// What lies on the GPU once a model is loaded.
struct Loaded {
    embedding: Tensor,
    layers: Vec<CudaLayer>,
    norm: Tensor,
    head: CudaProjection,
}

impl Loaded {
    fn new(
        architecture: &Architecture,
        weights: &Weights<'_, '_>,
        pages: &Pages,
    ) -> Result<Self, ModelError> {
        let embedding = weights.embedding()?;
        let layer = |layer: &crate::Layer| {
            let experts = layer.experts.as_ref().map(|of| CudaExperts::new(of, weights));
            Ok(CudaLayer {
                input_norm: weights.vector(layer.input_norm)?,
                mixer: mixer(&layer.mixer, weights, pages)?,
                post_norm: weights.vector(layer.post_norm)?,
                experts: experts.transpose()?,
                mlp: layer.mlp.as_ref().map(|of| CudaMlp::new(of, weights)).transpose()?,
            })
        };
        let layers = architecture.layers.iter().map(layer).collect::<Result<_, ModelError>>()?;
        let norm = weights.vector(architecture.norm)?;
        let head = weights.head(&embedding)?;
        Ok(Self { embedding, layers, norm, head })
    }
}

/// What the device says of a call that no layer stands behind.
fn failed(error: OpError) -> ModelError {
    ModelError::Device(error.to_string())
}

impl CudaEngine {
    fn new(model: Model, device: Device, capacity: Capacity) -> Result<Self, ModelError> {
        let Model { architecture, checkpoint } = model;
        let Some(cuda) = device.cuda() else {
            return Err(ModelError::Device("the device is no GPU".to_owned()));
        };
        let stream = cuda.stream().clone();
        let pages = Pages::new(capacity.sequences, capacity.tokens);
        let loaded = cuda.uploading(|uploads| {
            let weights = Weights::new(&architecture, &checkpoint, &stream, uploads);
            Loaded::new(&architecture, &weights, &pages)
        })?;
        let Loaded { embedding, layers, norm, head } = loaded;
        Ok(Self {
            embedding,
            layers,
            norm,
            head,
            architecture,
            device,
            stream,
            pages,
            decoders: DecodeGraphs::default(),
            counts: Counts::default(),
            plans: RefCell::default(),
        })
    }

    /// What programs plan with.
    fn planned_with(&self) -> (&RefCell<Plans>, &Architecture) {
        (&self.plans, &self.architecture)
    }

    /// Plans all layers over the tokens of a pass, and gives the logits `[rows, vocabulary]` of the wanted ones.
    fn plan(&self, program: &mut Program<'_>, wanted: Wanted) -> Result<Tensor, ModelError> {
        let architecture = &self.architecture;
        let (tokens, hidden) = (program.pass.tokens, architecture.hidden);
        let embed = decoder::Embed {
            table: self.embedding.on().map_err(failed)?,
            dtype: self.embedding.dtype(),
            tokens: &program.pass.ids,
            x: program.x.on().map_err(failed)?,
            count: tokens,
            hidden,
            multiplier: architecture.embedding_multiplier,
        };
        program.add(decoder::embed(program.device, &embed).map_err(failed)?).map_err(failed)?;
        for (layer, of) in self.layers.iter().enumerate() {
            of.plan(program).map_err(|error| ModelError::Op { layer, error })?;
        }
        self.plan_logits(program, wanted).map_err(failed)
    }

    fn plan_logits(&self, program: &Program<'_>, wanted: Wanted) -> Result<Tensor, OpError> {
        let (sequences, hidden) = (program.pass.sequences, self.architecture.hidden);
        let x = if wanted == Wanted::Last && program.pass.tokens > sequences {
            let last = program.tensor(&[sequences, hidden], DType::F32)?;
            let buffers = [program.x.on()?, &program.pass.last, last.on()?];
            program.add(decoder::take(program.device, buffers, sequences, hidden)?)?;
            last
        } else {
            program.x.clone()
        };
        let logits = program.tensor(&[x.shape()[0], self.architecture.vocabulary], DType::F32)?;
        let call = LinearCall {
            norm: program.normed(&self.norm),
            scale: 1.0 / self.architecture.logits_divisor,
            out: Some(Out::F32),
            ..self.head.of(&x)
        };
        program.call(&call.into([&logits]))?;
        Ok(logits)
    }

    /// Runs a pass launch by launch, as it is planned; gives its logits, which lie on the GPU.
    fn run(&mut self, batch: &Batch, wanted: Wanted) -> Result<Tensor, ModelError> {
        let pass = Pass::of(batch, &self.pages, &self.stream).map_err(failed)?;
        let mut program =
            Program::now(&self.device, &self.stream, &pass, self.planned_with()).map_err(failed)?;
        self.plan(&mut program, wanted)
    }

    /// The graph of a step of one token a sequence, ready to be launched for this batch, whose sequences have so many
    /// tokens before it.
    fn decoder(
        &mut self,
        batch: &Batch,
        before: &[usize],
        how: &[Option<Choice<'_>>],
        counts: Option<&Tensor>,
    ) -> Result<&DecodeGraph, ModelError> {
        let longest = batch.sequences.iter().map(|sequence| self.pages.blocks_of(*sequence)).max();
        let width = longest.unwrap_or(1).next_power_of_two().max(decode::FEWEST_BLOCKS);
        let rows = DecodeGraphs::size(batch.sequences.len(), self.pages.sequences());
        let size = [rows, width, usize::from(counts.is_some())];
        if !self.decoders.has(size) {
            let graph = DecodeGraph::record(size, counts, self)?;
            self.decoders.keep(size, graph);
        }
        let graph = self.decoders.launching(size);
        let graph = graph.ok_or_else(|| ModelError::fault("a recorded step was not kept"))?;
        graph.prepare((batch, before), how, &self.pages, &self.stream).map_err(failed)?;
        Ok(graph)
    }

    /// The logits of a step, which lie on the GPU.
    fn logits(&mut self, batch: &Batch, wanted: Wanted) -> Result<Tensor, ModelError> {
        self.grow(batch)?;
        if batch.tokens.len() > batch.sequences.len() {
            return self.run(batch, wanted);
        }
        let stream = self.stream.clone();
        let before: Vec<usize> =
            batch.sequences.iter().map(|place| self.pages.len(*place) - 1).collect();
        let graph = self.decoder(batch, &before, &[], None)?;
        let logits = graph.run(&stream).map_err(failed)?;
        logits.rows(0, batch.sequences.len()).map_err(failed)
    }

    /// Chooses from logits that lie on the GPU, `[rows, vocabulary]`.
    fn choose_from(
        &mut self,
        logits: &Tensor,
        how: &[Option<Choice<'_>>],
        slots: &[usize],
    ) -> Result<Vec<Drawn>, ModelError> {
        let (rows, vocabulary) = (how.len(), self.architecture.vocabulary);
        if how.iter().all(Option::is_none) {
            // Who counts on the time that a step takes is not to think that this one took none.
            self.stream.synchronize().map_err(|error| failed(pass::device_error(error)))?;
            return Ok(vec![Drawn::default(); rows]);
        }
        let counts = self.counts(how, slots)?;
        let stream = &self.stream;
        let chosen = || -> Result<Vec<Drawn>, OpError> {
            let chooser = Chooser::now(how, slots, vocabulary, stream)?;
            let tokens = Tensor::allocate(stream, &[rows], DType::I32)?;
            let call = chooser.call(logits, counts.as_ref(), &tokens);
            self.plans.borrow_mut().enqueue(&call, &self.device, stream)?;
            let words = decode::integers(&tokens, stream)?;
            let drawn = |(row, how): (usize, &Option<Choice<'_>>)| {
                let Some(how) = how else { return Ok(Drawn::default()) };
                let logits = match how.logits {
                    true => Some(decode::values(&logits.rows(row, 1)?, stream)?),
                    false => None,
                };
                Ok(Drawn { tokens: vec![token(words[row])], logits })
            };
            how.iter().enumerate().map(drawn).collect()
        };
        chosen().map_err(failed)
    }

    /// How often each token was there, where some choice asks it.
    fn counts(
        &mut self,
        how: &[Option<Choice<'_>>],
        slots: &[usize],
    ) -> Result<Option<Tensor>, ModelError> {
        let all = [self.pages.sequences(), self.architecture.vocabulary];
        self.counts.prepare(how, slots, all, &self.stream).map_err(failed)
    }

    /// Gives a batch's sequences place in the caches.
    fn grow(&mut self, batch: &Batch) -> Result<(), ModelError> {
        batch.check(self.pages.sequences(), self.architecture.vocabulary)?;
        self.pages.grow(&batch.lengths())
    }
}

fn mixer(
    mixer: &Mixer,
    weights: &Weights<'_, '_>,
    pages: &Pages,
) -> Result<Box<dyn Mix>, ModelError> {
    Ok(match mixer {
        Mixer::Mamba2(of) => Box::new(mamba2::CudaMamba2::new(of, weights, pages)?),
        Mixer::Attention(of) => Box::new(attention::CudaAttention::new(of, weights, pages)?),
        Mixer::Kda(of) => Box::new(kda::CudaKda::new(of, weights, pages)?),
        Mixer::Latent(of) => {
            Box::new(latent_attention::CudaLatentAttention::new(of, weights, pages)?)
        }
        // Such a model was refused by its config.
        _ => return Err(ModelError::fault(format!("no engine has {} layers", mixer.kind()))),
    })
}

impl CudaLayer {
    /// `x += r mixer(rms(x)); h = rms(x); x += r (experts(h) + mlp(h))`.
    fn plan(&self, program: &mut Program<'_>) -> Result<(), OpError> {
        self.mixer.plan(program, &self.input_norm)?;
        match (&self.experts, &self.mlp) {
            (Some(experts), mlp) => experts.plan(program, &self.post_norm, mlp.as_ref()),
            (None, Some(mlp)) => mlp.plan(program, &self.post_norm),
            (None, None) => Ok(()),
        }
    }
}

impl Engine for CudaEngine {
    fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    fn device(&self) -> &Device {
        &self.device
    }

    /// Of a copy, which reads every byte and writes it.
    fn read_bandwidth(&self) -> f64 {
        // Far more than the second cache holds.
        const BYTES: usize = 1 << 30;
        let measured = || {
            let (from, to) = (self.stream.allocate(BYTES)?, self.stream.allocate(BYTES)?);
            let once = || {
                self.stream.synchronize()?;
                let start = Instant::now();
                for _ in 0..4 {
                    self.stream.copy(&from, &to, BYTES)?;
                }
                self.stream.synchronize()?;
                Ok(start.elapsed().as_secs_f64() / 4.0)
            };
            let fastest = (0..5).map(|_| once()).collect::<Result<Vec<_>, _>>()?;
            Ok(fastest.into_iter().fold(f64::MAX, f64::min))
        };
        let seconds: Result<f64, device::cuda::CudaError> = measured();
        seconds.map_or(f64::NAN, |seconds| 2.0 * BYTES as f64 / seconds)
    }

    fn step(&mut self, batch: &Batch, wanted: Wanted) -> Result<Vec<f32>, ModelError> {
        let logits = self.logits(batch, wanted)?;
        decode::values(&logits, &self.stream).map_err(failed)
    }

    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<Drawn>, ModelError> {
        let by_itself = |choice: &Choice<'_>| choice.mask.is_none() && !choice.logits;
        let one_token = batch.tokens.len() == batch.sequences.len();
        if !one_token || !how.iter().flatten().all(by_itself) {
            if count != 1 {
                let what = "tokens that are chosen at once want neither masks nor logits";
                return Err(ModelError::fault(what));
            }
            let logits = self.logits(batch, Wanted::Last)?;
            return self.choose_from(&logits, how, &batch.sequences);
        }
        batch.check(self.pages.sequences(), self.architecture.vocabulary)?;
        // Blocks for all of them first: the GPU goes from one token to the next by itself.
        let before: Vec<usize> =
            batch.sequences.iter().map(|place| self.pages.len(*place)).collect();
        let more: Vec<_> = batch.sequences.iter().map(|place| (*place, count)).collect();
        self.pages.grow(&more)?;
        let counts = self.counts(how, &batch.sequences)?;
        let stream = self.stream.clone();
        let graph = self.decoder(batch, &before, how, counts.as_ref())?;
        let words = graph.tokens(batch.sequences.len(), count, &stream).map_err(failed)?;
        self.counts.advance(how, &batch.sequences, count);
        let drawn = |words: Vec<i32>| Drawn {
            tokens: words.into_iter().map(token).collect(),
            logits: None,
        };
        Ok(words.into_iter().map(drawn).collect())
    }

    fn pages(&self) -> &Pages {
        &self.pages
    }

    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        self.pages.fork(from, to, keep)?;
        for (layer, of) in self.layers.iter().enumerate() {
            let copied = of.mixer.fork(&self.stream, from, to);
            copied.map_err(|error| ModelError::Op { layer, error })?;
        }
        Ok(())
    }

    fn reset(&mut self, sequence: usize) {
        self.pages.release(sequence);
        self.counts.reset(sequence);
        for layer in &self.layers {
            // A device that fails here fails at the next step as well, which says so.
            let _ = layer.mixer.reset(&self.stream, sequence);
        }
    }
}
