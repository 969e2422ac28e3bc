//! Runs the same tests with a model of an installed package: the same weights, the same prompts, greedy decoding.

use crate::cli::BenchModel;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::python::{self, Environment};
use facts::{BackendKind, DecodeLimit, ModelSpeed, ModelSpeedReport, ParityRow};
use models::{
    Batch, Capacity, Engine, LogitsSelection, Model, ModelError, ModelSource, SpeedTest, Storage,
    SynthOptions, first_token, open, prompts, speed, synth,
};
use ops::{DType, Tensor};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use verify::{GenerationCase, MODEL, Peer, Peers, Session, VerifiedGeneration, admit_generation};

/// Tokens of the prompt that is compared with float32: not a multiple of any scan's chunk size.
const PROMPT: usize = 37;
/// Tokens generated after it.
const ADDED: usize = 8;
/// Tokens generated when the logits after the prompt are compared; includes steps of single tokens.
const FEW: usize = 3;

/// An environment, and the folder of weights that its models read.
pub(super) struct PeerComparison {
    environment: Environment,
    folder: PathBuf,
    /// Random weights, written for the packages.
    _written: Option<TempDir>,
    /// The expected result of each test: logits after its prompts, by the engine that was timed.
    answers: Vec<(SpeedTest, Vec<f32>)>,
}

impl PeerComparison {
    /// Starts the environment of the arguments, if they name one, and writes random weights, so that both sides read
    /// the same files.
    pub(super) fn start(
        arguments: &BenchModel,
        backend: BackendKind,
        source: &mut ModelSource,
    ) -> anyhow::Result<Option<Self>> {
        let backend = Some(backend);
        let named = &arguments.peers;
        let venv = named.venv.as_deref();
        let Some(environment) = python::start(venv, &named.choice, &[MODEL], backend)? else {
            return Ok(None);
        };
        let (folder, written) = match source {
            ModelSource::Folder(folder) => (folder.clone(), None),
            ModelSource::Random { config, seed } => {
                let written = tempfile::tempdir()?;
                let options = SynthOptions { seed: *seed, ..SynthOptions::default() };
                synth(config.clone(), written.path(), &options)?;
                (written.path().to_owned(), Some(written))
            }
        };
        if models::is_gguf(&folder) {
            let what = format!("{}: packages read folders of safetensors", folder.display());
            let hint = "leave --venv out, or name the folder that the file was converted from";
            return Err(Failure::hinted(what, hint));
        }
        *source = ModelSource::Folder(folder.clone());
        Ok(Some(Self { environment, folder, _written: written, answers: Vec::new() }))
    }

    /// Keeps the engine's logits after a test's prompts.
    ///
    /// # Errors
    /// [`ModelError`] of a step.
    pub(super) fn listen(
        &mut self,
        engine: &mut dyn Engine,
        test: SpeedTest,
        sequences: usize,
    ) -> Result<(), ModelError> {
        if generates(test) {
            let prompts = prompts(test, sequences, engine.architecture().vocabulary);
            self.answers.push((test, models::answers(engine, &prompts)?));
        }
        Ok(())
    }

    /// Checks and times every peer that runs models of this type.
    pub(super) fn run(
        mut self,
        arguments: &BenchModel,
        tests: &[SpeedTest],
        progress: &Progress,
        report: &mut ModelSpeedReport,
    ) -> anyhow::Result<()> {
        let config = models::read_config(&self.folder)?;
        let model_type = config.model_type().unwrap_or_default();
        let architecture = Model::read(&self.folder)?.architecture;
        let storage = Storage::from(arguments.dtype);
        let Peers { session, peers, backend, .. } = self.environment.peers();
        let subject = Subject {
            folder: &self.folder,
            name: report.model.clone(),
            vocabulary: architecture.vocabulary,
            storage,
            backend,
            tolerance: storage.tolerance_between(&architecture),
            sequences: arguments.sequences as usize,
            repeats: arguments.repeats as usize,
        };
        let mut reference = None;
        for peer in peers.iter().filter(|peer| peer.runs_models(model_type)) {
            progress.step(format!("{}: compared with float32", peer.name));
            let (row, verified) = subject.hold(session, peer, &mut reference);
            report.checks.push(row);
            if verified.is_none() {
                continue;
            }
            for test in tests {
                progress.step(format!("{}: {test}", peer.name));
                let answer = self.answers.iter().find(|(answered, _)| answered == test);
                let timed = match answer {
                    Some((_, answer)) => subject.time(session, peer, *test, answer, report),
                    None if generates(*test) => {
                        Err("the engine was not timed with this test".to_owned())
                    }
                    None => Err("a generation has no prompt after others".to_owned()),
                };
                match timed {
                    Ok(Some(speed)) => report.speeds.push(speed),
                    Ok(None) => {}
                    Err(why) => report.not_timed.push(format!("{}: {test}: {why}", peer.name)),
                }
            }
        }
        let unmet = self.environment.unmet(python::seen(&report.checks));
        report.not_timed.extend(unmet.into_iter().map(|(_, why)| why));
        Ok(())
    }
}

/// Whether a generation can be timed as this test: it starts with a prompt.
fn generates(test: SpeedTest) -> bool {
    test.decode || test.depth == 0
}

/// The request to every peer.
struct Subject<'a> {
    folder: &'a Path,
    name: String,
    vocabulary: usize,
    storage: Storage,
    backend: BackendKind,
    tolerance: f64,
    sequences: usize,
    repeats: usize,
}

impl Subject<'_> {
    fn case<'a>(&'a self, name: &'a str, ids: &'a Tensor, new_tokens: usize) -> GenerationCase<'a> {
        let dtype = match self.storage {
            Storage::F32 => DType::F32,
            Storage::Bf16 => DType::Bf16,
        };
        GenerationCase {
            name,
            folder: self.folder,
            backend: self.backend,
            dtype,
            ids,
            new_tokens,
            vocabulary: self.vocabulary,
            tolerance: self.tolerance,
        }
    }

    /// Compares the generated tokens with float32 on the processor, which computes the logits of the same tokens.
    fn hold(
        &self,
        session: &mut Session,
        peer: &Peer,
        reference: &mut Option<Box<dyn Engine>>,
    ) -> (ParityRow, Option<VerifiedGeneration>) {
        let of_decoding = SpeedTest { decode: false, tokens: PROMPT, depth: 0 };
        let prompt = prompts(of_decoding, 1, self.vocabulary).concat();
        let ids = tensor(std::slice::from_ref(&prompt));
        let mut expected = |chosen: &[i32]| {
            let read = self.referred(reference, &prompt, chosen);
            read.map_err(|error| format!("float32 on the processor: {error:#}"))
        };
        let name = format!("{}/generates-{ADDED}-after-{PROMPT}", self.name);
        admit_generation(session, peer, &self.case(&name, &ids, ADDED), &mut expected)
    }

    /// The reference's logits of the last token of a prompt, and of the tokens generated after it.
    fn referred(
        &self,
        reference: &mut Option<Box<dyn Engine>>,
        prompt: &[u32],
        chosen: &[i32],
    ) -> anyhow::Result<Tensor> {
        let engine = match reference {
            Some(engine) => engine,
            None => {
                let capacity = Capacity { sequences: 1, tokens: PROMPT + ADDED };
                let device = backends::open(BackendKind::Cpu)?;
                let model = Model::read(self.folder)?;
                reference.insert(open(model, device, Storage::F32, capacity)?)
            }
        };
        // The last token was not fed to the model.
        let fed = chosen.split_last().map_or(&[][..], |(_, fed)| fed);
        let mut ids = prompt.to_vec();
        for id in fed {
            ids.push(u32::try_from(*id)?);
        }
        engine.reset(0);
        let logits = engine.step(&Batch::new().with(0, &ids), LogitsSelection::Every)?;
        let last = logits[(prompt.len() - 1) * self.vocabulary..].to_vec();
        Ok(Tensor::new(&[chosen.len(), 1, self.vocabulary], last))
    }

    /// Compares it with the engine on the test's prompts, in a fresh process, and times it; `None` if it disagrees,
    /// which its row records.
    fn time(
        &self,
        session: &mut Session,
        peer: &Peer,
        test: SpeedTest,
        answer: &[f32],
        report: &mut ModelSpeedReport,
    ) -> Result<Option<ModelSpeed>, String> {
        session.restart();
        let ids = tensor(&prompts(test, self.sequences, self.vocabulary));
        let few = if test.decode { FEW } else { 1 };
        let shape = [1, self.sequences, self.vocabulary];
        let mut expected = |_: &[i32]| Ok(Tensor::new(&shape, answer.to_vec()));
        let name = format!("{}/{test}", self.name);
        let case = self.case(&name, &ids, few);
        let (row, verified) = admit_generation(session, peer, &case, &mut expected);
        report.checks.push(row);
        let Some(verified) = verified else { return Ok(None) };
        // Decoding is timed starting with the first new token.
        let new_tokens = if test.decode { test.tokens + 1 } else { 1 };
        let times = verified.time(session, new_tokens, self.repeats)?;
        let seconds: Vec<f64> = times
            .iter()
            .map(|times| if test.decode { times.last - times.first } else { times.first })
            .collect();
        let by_engine = report.speeds.iter().find(|speed| speed.test == test.to_string());
        let limit = by_engine.and_then(|speed| speed.limit);
        let speed = speed(test, self.sequences, &seconds);
        let mean = speed.mean_tokens_per_second;
        Ok(Some(ModelSpeed {
            peer: Some(peer.name.clone()),
            first_token: first_token(test, verified.first_millis(), &seconds),
            limit: limit.map(|limit| DecodeLimit {
                percent: 100.0 * mean / limit.tokens_per_second,
                ..limit
            }),
            ..speed
        }))
    }
}

/// Token ids, [sequences, tokens].
fn tensor(prompts: &[Vec<u32>]) -> Tensor {
    let tokens = prompts.first().map_or(0, Vec::len);
    let ids: Vec<i32> = prompts.iter().flatten().map(|id| *id as i32).collect();
    Tensor::new(&[prompts.len(), tokens], ids)
}
