//! `firstlight serve`: serves a model over HTTP until it is stopped.

mod defaults;
mod lines;
mod origins;
mod sizes;

use crate::Outcome;
use crate::backend::{self, OpenedDevice};
use crate::cli::Serve;
use crate::commands::render_templates;
use crate::failure::Failure;
use crate::hub;
use crate::loading;
use crate::output::Output;
use crate::phases;
use crate::rank_processes::{RankProcesses, first_of};
use crate::source_tree;
use crate::stopping;
use crate::tokenizer;
use api::{ServerExit, TextProcessor};
use lines::{Lines, Listening};
use models::{Model, Pooler, Tokenizer};
use serving::{EngineBuilder, EngineError, MetricLabels, Service, ServiceLimits};
use sizes::EngineSizes;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Maximum number of top log-probabilities per token: OpenAI's limit.
const LOGPROBS: usize = 20;
/// Maximum number of choices of a request: OpenAI's limit.
const CHOICES: usize = 128;
/// Maximum body size of a request: more than the text or the token ids of any context.
const BODY_BYTES: usize = 16 << 20;

pub(super) fn run(arguments: &Serve, output: &Output) -> anyhow::Result<Outcome> {
    // Requests of megabytes must not stay in the arenas of the threads that read them.
    device::return_large_blocks();
    let process_start = process_start();
    let stop = Arc::new(AtomicBool::new(false));
    stopping::on_signals(&stop)?;
    check_keys(&arguments.api_key)?;
    let cors = origins::read(&arguments.cors, !arguments.api_key.is_empty())?;
    let place = first_of(arguments.split, arguments.backend)?;
    let choice = backend::begin(arguments.backend);
    let folder = hub::locate(&arguments.named)?;
    let model = Model::read(&folder)?.with_scan_states(arguments.states.held())?.part(place)?;
    let texts = texts(
        &folder,
        model.architecture.vocabulary,
        arguments.embeddings.pooler_config.as_deref(),
    )?;
    let defaults = defaults::read(&folder)?;
    // A port in use is reported before the model is loaded.
    let socket = listen(&arguments.host, arguments.port)?;
    let storage = arguments.dtype.into();
    let room = |device: &device::Device| {
        EngineSizes::of(&model.architecture, device, storage, &arguments.sizes)
    };
    let OpenedDevice { device, device_notice, .. } =
        choice.end(|device| room(device).map(|_| ()))?;
    let room = room(&device)?;
    let names = names(arguments);
    let limits = ServiceLimits {
        sequences: room.sequences,
        queued: usize::try_from(arguments.sizes.max_num_queued_reqs).unwrap_or(usize::MAX),
        tokens: room.tokens,
        vocabulary: model.architecture.vocabulary,
        logprobs: LOGPROBS,
    };
    let address = socket.local_addr()?;
    let lines = Lines::new(output);
    let (keys, states) = (&arguments.api_key, arguments.states.chosen());
    lines.first(
        &device_notice,
        &Listening::new(address, &names, &room, limits.queued, keys, states),
    )?;
    let settings = serving::ServiceSettings {
        limits,
        snapshots: room.snapshots,
        swap_space: room.swap_space,
        verify_cache: arguments.sizes.verify_cache,
        step_tokens: arguments.sizes.max_num_batched_tokens.map(|tokens| tokens as usize),
        labels: MetricLabels { model: names[0].clone(), engine: "0".to_owned() },
        process_start,
    };
    let EngineSizes { capacity, step, .. } = room;
    // The other ranks exit with this command, whatever the engine's thread does.
    let other_ranks = RankProcesses::start(place.ranks, device_notice.backend())?.map(Arc::new);
    let own = other_ranks.clone();
    let build: EngineBuilder = Box::new(move || {
        let split = (own.as_deref(), &*folder);
        let loaded = loading::open_on(split, model, device, storage, (capacity, step));
        Ok(loaded.map_err(|error| EngineError::from(EngineBuildError(error)))?.engine)
    });
    let (service, engine) = Service::start(settings, build)?;
    let settings = api::ApiSettings {
        root: arguments.named.model.display().to_string(),
        names,
        version: source_tree::VERSION.to_owned(),
        keys: arguments.api_key.clone(),
        cors,
        defaults,
        drain: Duration::from_secs(arguments.shutdown_timeout),
        body_bytes: BODY_BYTES,
        choices: CHOICES,
        tool_call_parser: arguments.parsers.tool_call_parser.clone(),
        reasoning_parser: arguments.parsers.reasoning_parser.clone(),
        log: lines.log(),
    };
    let ended = api::serve(socket, service, (texts, settings), &stop)?;
    if ended == ServerExit::WhileLoading {
        lines.end("stopped while the model was loading");
        return Ok(Outcome::Good);
    }
    match engine.join() {
        Ok(Ok(())) => {
            lines.end("stopped");
            Ok(Outcome::Good)
        }
        Ok(Err(error)) => Err(match error.downcast::<EngineBuildError>() {
            Ok(unbuilt) => unbuilt.0,
            Err(error) => match error.downcast::<models::ModelError>() {
                Ok(error) => (*error).into(),
                Err(error) => anyhow::anyhow!(error),
            },
        }),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Why the engine could not be built, with the command's hints.
#[derive(Debug)]
struct EngineBuildError(anyhow::Error);

impl std::fmt::Display for EngineBuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for EngineBuildError {}

fn process_start() -> Instant {
    let now = Instant::now();
    let age = Duration::try_from_secs_f64(phases::since_process_start(now)).unwrap_or_default();
    now.checked_sub(age).unwrap_or(now)
}

/// An empty key would accept every client that sends an empty one.
fn check_keys(keys: &[String]) -> anyhow::Result<()> {
    match keys.iter().any(|key| key.trim().is_empty() || !key.is_ascii()) {
        true => Err(Failure::hinted(
            "an API key is empty or has non-ASCII characters",
            "make one with `openssl rand -hex 32`; without --api-key and FIRSTLIGHT_API_KEY, every client is served",
        )),
        false => Ok(()),
    }
}

/// Names of the model for clients.
fn names(arguments: &Serve) -> Vec<String> {
    if !arguments.served_model_name.is_empty() {
        return arguments.served_model_name.clone();
    }
    vec![arguments.named.model.display().to_string().trim_end_matches('/').to_owned()]
}

/// Settings of embeddings: those of the model's files, overridden by vLLM's settings.
fn pooler(folder: &Path, settings: Option<&str>) -> anyhow::Result<Result<Pooler, String>> {
    let own = Pooler::read(folder).map_err(|error| error.to_string());
    let Some(settings) = settings else { return Ok(own) };
    let made = own.unwrap_or_default().with_settings(settings).map_err(|what| {
        let hint = r#"as in: --pooler-config '{"pooling_type": "MEAN", "normalize": true}'"#;
        Failure::hinted(format!("--pooler-config: {what}"), hint)
    })?;
    Ok(Ok(made))
}

fn texts(
    folder: &Path,
    vocabulary: usize,
    pooler_config: Option<&str>,
) -> anyhow::Result<TextProcessor> {
    let tokenizer = Tokenizer::read(folder).map_err(|error| {
        let hint = "put the tokenizer published with the weights into the same folder";
        Failure::hinted(error.to_string(), hint)
    })?;
    tokenizer::check(&tokenizer, vocabulary)?;
    let template = render_templates::by_this_program(folder).map_err(|error| error.to_string());
    let stop_ids = models::stop_ids(folder, Some(&tokenizer))?;
    let pooler = pooler(folder, pooler_config)?;
    Ok(TextProcessor { tokenizer, template, stop_ids, pooler })
}

fn listen(host: &str, port: u16) -> anyhow::Result<TcpListener> {
    TcpListener::bind((host, port)).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => {
                "the port is in use: choose another one, or --port 0 for any free port"
            }
            ErrorKind::PermissionDenied => {
                "ports below 1024 need administrator rights: choose a higher one"
            }
            _ => "--host must be an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them",
        };
        Failure::hinted(format!("cannot listen on {host}:{port}: {error}"), hint)
    })
}
