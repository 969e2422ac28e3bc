//! `firstlight run`: generates text with a model, streams it, and reports the timings.

mod listener;
mod measured;
mod prompts;

use crate::Outcome;
use crate::backend::{self, OpenedDevice};
use crate::cli::{Run, as_typed};
use crate::failure::Failure;
use crate::hub;
use crate::loading::{self, Loaded};
use crate::output::Output;
use crate::phases::{self, Phases};
use crate::stages::ModelRanks;
use device::Device;
use listener::{GenerationRecord, Listener};
use measured::{PeakMemory, Recomputation, RunTimes, Started};
use models::{
    Batch, Capacity, Engine, FinishReason, LargestStep, LogitsOf, LogitsSelection, Model, Request,
    Sampling, StepBudget,
};
use std::time::{Duration, Instant};

pub(super) fn run(arguments: &Run, output: &Output) -> anyhow::Result<Outcome> {
    let mut phases = Phases::new();
    // Invalid settings are reported before the model is loaded.
    Sampling::from(&arguments.choice).check()?;
    if prompts::is_for_chat(arguments, output) {
        let chat = arguments.to_chat().map_err(|option| {
            let hint = "give a prompt, or leave it out to chat";
            Failure::hinted(format!("{option} is for a prompt, and there is none"), hint)
        })?;
        return super::chat::run(&chat, output);
    }
    let output = &output.quiet(arguments.quiet);
    let asked = prompts::read(arguments)?;
    let model_ranks = ModelRanks::of(arguments.split, arguments.stages, arguments.backend)?;
    let Some(model_ranks) = model_ranks else { return Ok(Outcome::Good) };
    let choice = backend::begin(arguments.backend);
    let folder = hub::locate(&arguments.named)?;
    let model = Model::read(&folder)?.with_scan_states(arguments.states.held())?;
    let model = model_ranks.part(model)?;
    phases.done("config and weight headers");
    let tokenizer = prompts::read_tokenizer(arguments, &folder, model.architecture.vocabulary)?;
    let limit = ContextLimit::of(arguments, model.architecture.context)?;
    let prompts = prompts::prompts(&asked, arguments, &folder, tokenizer.as_ref(), limit)?;
    let longest_prompt = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let most = limit.answer_tokens(arguments.tokens, longest_prompt)?;
    let longest = longest_prompt.saturating_add(most);
    let stop_ids = match &arguments.choice.stop_ids {
        Some(ids) => ids.clone(),
        None => models::stop_ids(&folder, tokenizer.as_ref())?,
    };
    let request = |prompt: Vec<u32>| Request {
        prompt,
        limit: most,
        sampling: (&arguments.choice).into(),
        stop_ids: stop_ids.clone(),
        keep: false,
        shared: 0,
        turn: false,
        bypass_cache: false,
        logits: if arguments.verify { LogitsOf::Ends } else { LogitsOf::None },
    };
    let requests: Vec<Request> = prompts.into_iter().map(request).collect();
    requests.iter().try_for_each(Request::check)?;
    let capacity = Capacity { sequences: requests.len(), tokens: longest };
    phases.done("tokenizer and prompt");
    let dtype = arguments.dtype.into();
    let chunk_of = |device: &Device| -> anyhow::Result<usize> {
        let best = models::engine_kind(device)?.chunk;
        Ok(arguments.chunk.map_or(best, |chunk| chunk as usize))
    };
    let step_of = |chunk: usize| {
        let prompts: usize = requests.iter().map(|request| request.prompt.len()).sum();
        // For verification, the answer is computed again in one step.
        let again = if arguments.verify { most } else { 0 };
        let tokens = again.max(prompts.min(chunk)).max(requests.len());
        LargestStep { tokens, logits: requests.len() }
    };
    let fit = |device: &Device| {
        let step = step_of(chunk_of(device)?);
        loading::fit(&model.architecture, device, dtype, (capacity, step)).map(|_| ())
    };
    let OpenedDevice { device, device_notice, open_seconds } = choice.end(fit)?;
    phases.done("waiting for the device to open");
    device_notice.notice(output);
    let chunk = chunk_of(&device)?;
    let other_ranks = model_ranks.other_ranks(device_notice.backend())?;
    let split = (other_ranks.as_ref(), &*folder);
    let Loaded { mut engine, predicted_bytes, model_bytes, read_bytes } =
        loading::open_on(split, model, device, dtype, (capacity, step_of(chunk)))?;
    let load_seconds = phases.done("loading the weights").as_secs_f64();

    let start = Instant::now();
    let mut listener =
        Listener::new(tokenizer.as_ref(), &requests, &arguments.choice.stop, output, start);
    let best = engine.budget();
    let budget =
        StepBudget { tokens: chunk, max_mixed_tokens: best.max_mixed_tokens.min(chunk), ..best };
    let loaded_kernels = ops_cuda::loaded_kernels(engine.device());
    let (mut heard_first, mut kernels) = (false, None);
    let generated = models::generate(&mut *engine, &requests, budget, |chosen| {
        if chosen.request == 0 && !std::mem::replace(&mut heard_first, true) {
            phases.done("first step, to the first token");
            kernels = loaded_kernels.as_ref().map(|count| count());
        }
        listener.receive(chosen)
    })?;
    let mut heard = listener.finish()?;
    let first_token = start + Duration::from_secs_f64(heard.first_seconds);
    let started = Started {
        first_token_seconds: phases::since_process_start(first_token),
        load_seconds,
        load_bytes: read_bytes,
        open_seconds,
        kernels,
        phases: phases.all,
    };

    let again = match arguments.verify {
        true => Some(read_again(&mut *engine, &requests[0].prompt, &heard, chunk)?),
        false => None,
    };
    let texts = std::mem::take(&mut heard.texts);
    let ended = generated.iter().map(|generated| match generated.ended {
        FinishReason::StopId => "stop id",
        FinishReason::Limit => "limit",
        FinishReason::Caller => "stop string",
        FinishReason::NoToken => "no token could be sampled",
    });
    // Before bandwidth is measured, which allocates memory.
    let memory = predicted_bytes.zip(loading::highest(engine.device()));
    let memory =
        memory.map(|(predicted, measured)| PeakMemory { measured, predicted, model: model_bytes });
    // Otherwise the command ends with its answer.
    let bandwidth = (arguments.verify || arguments.verbose).then(|| engine.read_bandwidth());
    let measured = RunTimes::new(&*engine, dtype, &requests, &heard, again)?
        .with_memory(memory)
        .with_bandwidth(bandwidth)
        .with_start(device_notice, started, arguments.verbose);
    measured.print(output, &texts, &ended.collect::<Vec<_>>())?;
    Ok(if measured.agrees() { Outcome::Good } else { Outcome::Bad })
}

/// Default number of tokens of an answer, if the context has as many left.
const TOKENS: usize = 128;

/// The longest sequence of a prompt and its answer.
#[derive(Clone, Copy)]
struct ContextLimit {
    tokens: usize,
    /// The option or the property of the model that sets it.
    name: &'static str,
    /// Whether the user chose it.
    asked: bool,
}

impl ContextLimit {
    /// The limit of the arguments, or else `longest`, the model's.
    fn of(arguments: &Run, longest: usize) -> anyhow::Result<Self> {
        Ok(match super::chat::asked_context(arguments.context, longest)? {
            Some(tokens) => {
                let name = as_typed("--max-model-len", &["--context", "--ctx-size", "-c"]);
                Self { tokens, name, asked: true }
            }
            None => Self { tokens: longest, name: "the model's context", asked: false },
        })
    }

    /// Maximum tokens of each answer, for a longest prompt of `prompt` tokens.
    fn answer_tokens(self, asked: Option<usize>, prompt: usize) -> anyhow::Result<usize> {
        let left = self.tokens.saturating_sub(prompt);
        match asked {
            Some(tokens) if tokens <= left => Ok(tokens),
            None if left > 0 => Ok(TOKENS.min(left)),
            tokens => {
                let answer = tokens.unwrap_or(1);
                let what = format!(
                    "a prompt of {prompt} tokens and {answer} to add are {}; {} is {}",
                    prompt.saturating_add(answer),
                    self.name,
                    self.tokens
                );
                let hint = match left {
                    0 => self.shorten(),
                    left => format!("ask for at most -n {left}, or {}", self.shorten()),
                };
                Err(Failure::hinted(what, hint))
            }
        }
    }

    fn prompt_too_long(self, at_least: usize) -> anyhow::Error {
        let what =
            format!("the prompt has at least {at_least} tokens; {} is {}", self.name, self.tokens);
        Failure::hinted(what, self.shorten())
    }

    fn shorten(self) -> String {
        let more = if self.asked { ", or raise --max-model-len" } else { "" };
        format!("shorten the prompt{more}")
    }
}

/// Computes the first prompt and its answer again. A prefill in one step has to give the same logits as token-by-token
/// decoding: otherwise one of them is wrong, and neither speed is meaningful. A sequence of one token has decoded
/// nothing.
fn read_again(
    engine: &mut dyn Engine,
    prompt: &[u32],
    heard: &GenerationRecord,
    chunk: usize,
) -> anyhow::Result<Recomputation> {
    let start = Instant::now();
    for ids in prompt.chunks(chunk) {
        engine.step(&Batch::new().with(0, ids), LogitsSelection::Last)?;
    }
    let prompt_seconds = start.elapsed().as_secs_f64();
    let added = &heard.tokens[0][..heard.with_logits];
    let difference = match added.split_last() {
        Some((_, before)) if !before.is_empty() => {
            let logits = engine.step(&Batch::new().with(0, before), LogitsSelection::Last)?;
            Some(models::relative_error(&heard.last_logits, &logits))
        }
        _ => None,
    };
    Ok(Recomputation { prompt_seconds, difference })
}
