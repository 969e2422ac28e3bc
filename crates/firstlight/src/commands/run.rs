//! `firstlight run`: text from a model, as it comes, and what it took.

mod listener;
mod measured;
mod prompts;

use crate::Outcome;
use crate::backend::{self, Chosen};
use crate::cli::Run;
use crate::failure::Failure;
use crate::hub;
use crate::loading::{self, Loaded};
use crate::output::Output;
use crate::phases::{self, Phases};
use crate::stages::Team;
use device::Device;
use device::cuda::Cuda;
use listener::{Heard, Listener};
use measured::{Again, Measured, Started};
use models::{
    Batch, Capacity, Ended, Engine, LargestStep, LogitsOf, Model, Request, Sampling, StepBudget,
    Wanted,
};
use std::time::{Duration, Instant};

pub(super) fn run(arguments: &Run, output: &Output) -> anyhow::Result<Outcome> {
    let mut phases = Phases::new();
    // What cannot be used is reported before seconds are spent on loading.
    Sampling::from(&arguments.choice).check()?;
    if prompts::is_for_chat(arguments, output) {
        let chat = arguments.to_chat().map_err(|option| {
            let hint = "give a prompt, or leave it out to chat";
            Failure::hinted(format!("{option} is for a prompt, and there is none"), hint)
        })?;
        return super::chat::run(&chat, output);
    }
    let output = &output.quiet(arguments.quiet);
    let most = arguments.tokens.unwrap_or(TOKENS);
    let asked = prompts::read(arguments)?;
    let team = Team::of(arguments.split, arguments.stages, arguments.backend)?;
    let Some(team) = team else { return Ok(Outcome::Good) };
    let choice = backend::begin(arguments.backend);
    let folder = hub::locate(&arguments.named)?;
    let model = Model::read(&folder)?.with_scan_states(arguments.states.held())?;
    let model = team.part(model)?;
    phases.done("config and weight headers");
    let tokenizer = prompts::read_tokenizer(arguments, &folder, model.architecture.vocabulary)?;
    let prompts = prompts::prompts(&asked, arguments, &folder, tokenizer.as_ref())?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0).saturating_add(most);
    if longest > model.architecture.context {
        let context = model.architecture.context;
        let what = format!(
            "prompt and continuation have {longest} tokens, the model's context is {context}"
        );
        return Err(Failure::hinted(what, "shorten the prompt, or ask for fewer tokens with -n"));
    }
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
        anew: false,
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
        // To be verified, the answer is read again in one step.
        let again = if arguments.verify { most } else { 0 };
        let tokens = again.max(prompts.min(chunk)).max(requests.len());
        LargestStep { tokens, logits: requests.len() }
    };
    let fit = |device: &Device| {
        let step = step_of(chunk_of(device)?);
        loading::fit(&model.architecture, device, dtype, (capacity, step)).map(|_| ())
    };
    let Chosen { device, told, open_seconds } = choice.end(fit)?;
    phases.done("waiting for the device to open");
    told.notice(output);
    let chunk = chunk_of(&device)?;
    let crew = team.crew(told.backend())?;
    let split = (crew.as_ref(), &*folder);
    let Loaded { mut engine, predicted_bytes, read_bytes } =
        loading::open_on(split, model, device, dtype, (capacity, step_of(chunk)))?;
    let load_seconds = phases.done("loading the weights").as_secs_f64();

    let start = Instant::now();
    let mut listener =
        Listener::new(tokenizer.as_ref(), &requests, &arguments.choice.stop, output, start);
    let best = engine.budget();
    let budget = StepBudget { tokens: chunk, beside: best.beside.min(chunk), ..best };
    let gpu = engine.device().cuda().cloned();
    let (mut heard_first, mut kernels) = (false, None);
    let generated = models::generate(&mut *engine, &requests, budget, |chosen| {
        if chosen.request == 0 && !std::mem::replace(&mut heard_first, true) {
            phases.done("first step, to the first token");
            kernels = gpu.as_ref().map(Cuda::modules_loaded);
        }
        listener.hear(chosen)
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
        Ended::StopId => "stop id",
        Ended::Limit => "limit",
        Ended::Listener => "stop string",
        Ended::NoToken => "no token could be chosen",
    });
    // Before bandwidth is measured, in memory of its own.
    let memory = predicted_bytes.zip(loading::highest(engine.device()));
    let measured = Measured::new(&*engine, dtype, &requests, &heard, again)
        .with_memory(memory)
        .with_start(told, started, arguments.verbose);
    measured.print(output, &texts, &ended.collect::<Vec<_>>())?;
    Ok(if measured.agrees() { Outcome::Good } else { Outcome::Bad })
}

/// Tokens of an answer, unless another number is asked for.
const TOKENS: usize = 128;

/// Reads the first prompt and its answer once more. The logits that decoding gave token by token, a prefill has to give in one
/// step: otherwise one of them is wrong, and neither speed means anything. A sequence of one token has decoded nothing.
fn read_again(
    engine: &mut dyn Engine,
    prompt: &[u32],
    heard: &Heard,
    chunk: usize,
) -> anyhow::Result<Again> {
    let start = Instant::now();
    for ids in prompt.chunks(chunk) {
        engine.step(&Batch::new().with(0, ids), Wanted::Last)?;
    }
    let prompt_seconds = start.elapsed().as_secs_f64();
    let added = &heard.tokens[0][..heard.with_logits];
    let difference = match added.split_last() {
        Some((_, before)) if !before.is_empty() => {
            let logits = engine.step(&Batch::new().with(0, before), Wanted::Last)?;
            Some(models::relative_error(&heard.last_logits, &logits))
        }
        _ => None,
    };
    Ok(Again { prompt_seconds, difference })
}
