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
use listener::Listener;
use measured::{Measured, Started};
use models::{
    Batch, Capacity, Ended, Engine, LargestStep, LogitsOf, Model, Request, Sampling, StepBudget,
    Wanted,
};
use std::time::{Duration, Instant};

pub(super) fn run(arguments: &Run, output: &Output) -> anyhow::Result<Outcome> {
    let mut phases = Phases::new();
    // What cannot be used is said before seconds are spent on loading.
    Sampling::from(&arguments.choice).check()?;
    let team = Team::of(arguments.split, arguments.stages, arguments.backend)?;
    let Some(team) = team else { return Ok(Outcome::Good) };
    let choice = backend::begin(arguments.backend);
    let folder = hub::locate(&arguments.named)?;
    let model = Model::read(&folder)?.with_scan_states(arguments.states.held())?;
    let model = team.part(model)?;
    phases.done("config and weight headers");
    let tokenizer = prompts::read_tokenizer(arguments, &folder, model.architecture.vocabulary)?;
    let prompts = prompts::prompts(arguments, &folder, tokenizer.as_ref())?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + arguments.tokens;
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
        limit: arguments.tokens,
        sampling: (&arguments.choice).into(),
        stop_ids: stop_ids.clone(),
        keep: false,
        shared: 0,
        turn: false,
        anew: false,
        logits: LogitsOf::Ends,
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
        // What was decoded is read again in one step, to be compared.
        let tokens = arguments.tokens.max(prompts.min(chunk)).max(requests.len());
        LargestStep { tokens, logits: requests.len() }
    };
    let fit = |device: &Device| {
        let step = step_of(chunk_of(device)?);
        loading::fit(&model.architecture, device, dtype, (capacity, step)).map(|_| ())
    };
    let Chosen { device, told, open_seconds } = choice.end(fit)?;
    phases.done("waiting for the device to open");
    if !output.json {
        output.text(&told.text(output))?;
    }
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

    let first = &requests[0];
    let start = Instant::now();
    prefill(&mut *engine, &first.prompt, chunk)?;
    let warm_seconds = start.elapsed().as_secs_f64();
    // What decoding gave token by token, a prefill has to give in one step: else one of them is wrong, and neither speed
    // means anything. A sequence of one token has decoded nothing.
    let added = &heard.tokens[0][..heard.with_logits];
    let difference = match added.split_last() {
        Some((_, before)) if !before.is_empty() => {
            let logits = engine.step(&Batch::new().with(0, before), Wanted::Last)?;
            Some(models::relative_error(&heard.last_logits, &logits))
        }
        _ => None,
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
    let measured = Measured::new(&*engine, dtype, &requests, &heard, warm_seconds, difference)
        .with_memory(memory)
        .with_start(told, started, arguments.verbose);
    measured.print(output, &texts, &ended.collect::<Vec<_>>())?;
    Ok(if measured.agrees() { Outcome::Good } else { Outcome::Bad })
}

/// Reads a prompt in a place that is free.
fn prefill(engine: &mut dyn Engine, prompt: &[u32], chunk: usize) -> anyhow::Result<()> {
    for ids in prompt.chunks(chunk) {
        engine.step(&Batch::new().with(0, ids), Wanted::Last)?;
    }
    Ok(())
}
