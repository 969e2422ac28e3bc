//! `firstlight fit`: whether a model fits, in bytes: by the footprint of firstlight's engine if it runs the model, and
//! otherwise of Python's engines. There is one verdict for one device.

use super::ask_nvml::live;
use super::doctor::model::{self, DEFAULT_CONTEXT, Model};
use crate::Outcome;
use crate::cli::{Fit, ModelArguments};
use crate::failure::Failure;
use crate::hub;
use crate::loading;
use crate::output::Output;
use architectures::ConfigError;
use facts::{BackendKind, DoctorReport, Fact, GpuVendor, Machine, ModelMemory, SCHEMA, byte_count};
use models::{
    Architecture, Capacity, EngineKind, Footprint, LargestStep, ModelError, ShardRank, Storage,
};
use report::terminal;
use serde_json::json;
use std::rc::Rc;

pub(super) fn run(arguments: &Fit, output: &Output) -> anyhow::Result<Outcome> {
    let named = hub::locate_or_shape(&arguments.named())?;
    // A model that cannot be read is reported at once, before a machine with GPUs is probed.
    let read = model::read(&named)?;
    let read = match arguments.weights {
        Some(weights) => read.rounded(weights)?,
        None => read,
    };
    let asked = asked_gpu(arguments)?;
    let source = live(&arguments.waiting);
    let machine = probe::machine(&probe::ProbeOptions { source, site_packages: Vec::new() });
    let mut report = DoctorReport::new(machine, Vec::new(), Vec::new());
    let wanted =
        ModelArguments { model: None, context: arguments.context, sequences: arguments.batch };
    model::judge(&read, &wanted, &mut report)?;
    // A config.json alone may be checked before the weights are downloaded; a folder is checked with its weights.
    if named.is_dir() || models::is_gguf(&named) {
        read.whole(&report)?;
    }
    // Without environments, their kernels are not known.
    report.findings.clear();
    let own = own(&read, arguments, (&report.machine, asked.as_ref()))?;
    let refused = own.as_ref().err().map(ToString::to_string);
    let needs = own.unwrap_or_default();
    let on_gpu = asked.is_some() || free_on_gpus(&report.machine, 1).is_some();
    let chosen = needs.iter().find(|need| (need.backend == BackendKind::Cuda) == on_gpu);
    let chosen = chosen.or(needs.first());
    if let Some(model) = &mut report.model {
        match chosen {
            Some(need) => need.judge(&mut model.memory)?,
            None => by_python(&mut model.memory, arguments.split.tp, asked.as_ref())?,
        }
    }
    // Processes of this machine use no memory of another one.
    let processes = asked.is_none() && report.machine.driver.is_some();
    let model = report.model.as_ref();
    let held = chosen.map(|need| need.footprint.weights);
    let finding = model.and_then(|model| diagnose::memory_finding(model, held, processes));
    report.findings.extend(finding);
    let of = |backend| needs.iter().find(|need| need.backend == backend).map(Need::json);
    let document = json!({
        "schema": SCHEMA, "model": report.model, "engine": of(BackendKind::Cpu),
        "engine_on_gpus": of(BackendKind::Cuda), "engine_refuses": refused,
        "verdict_for": chosen.map(|need| need.backend.as_str()), "findings": report.findings,
    });
    output.either(&document, |style| {
        let rows = |memory: &ModelMemory| rows(memory, chosen, refused.as_deref());
        let mut out = report
            .model
            .iter()
            .map(|model| terminal::fit(model, &rows(&model.memory), style))
            .collect::<String>();
        for finding in &report.findings {
            out.push('\n');
            out.push_str(&terminal::one_finding(finding, style));
        }
        out
    })?;
    let fits = report.model.as_ref().and_then(|model| model.memory.fits);
    Ok(if fits == Some(false) { Outcome::Bad } else { Outcome::Good })
}

/// The GPU memory of the arguments; none for this machine.
fn asked_gpu(arguments: &Fit) -> anyhow::Result<Option<Fact<u64>>> {
    let Some(name) = &arguments.machine else {
        return Ok(arguments.gpu_memory.map(|bytes| Fact::new(bytes, "--gpu-memory")));
    };
    let Some(machine) = setup::machine(name) else {
        let machines = setup::machines();
        let names: Vec<&str> = machines.iter().map(|machine| machine.name.as_str()).collect();
        let hint =
            format!("the machines are {}; --gpu-memory 24GiB is any other GPU", names.join(", "));
        return Err(Failure::hinted(format!("there is no machine `{name}`"), hint));
    };
    let known = setup::gpu_memory(name);
    let given = arguments.gpu_memory;
    let given = given.map(|bytes| Fact::new(bytes, format!("--gpu-memory, of {}", machine.name)));
    match given.or(known) {
        Some(memory) => Ok(Some(memory)),
        None => Err(Failure::hinted(
            format!("the memory of a GPU of {} is not known", machine.name),
            "give it with --gpu-memory, such as --gpu-memory 24GiB",
        )),
    }
}

/// The error for a size above 2^64 bytes.
fn uncountable(memory: &ModelMemory) -> anyhow::Error {
    Failure::hinted(
        format!(
            "{} sequences of {} tokens take more bytes than can be counted",
            memory.sequences, memory.context_tokens
        ),
        "ask for fewer sequences with --max-num-seqs, or shorter ones with --max-model-len",
    )
}

/// The estimate for Python's engines on the given memory.
fn by_python(
    memory: &mut ModelMemory,
    ranks: usize,
    asked: Option<&Fact<u64>>,
) -> anyhow::Result<()> {
    let needed = memory.needed_bytes.filter(|bytes| *bytes < u64::MAX);
    let needed = needed.ok_or_else(|| uncountable(memory))?;
    if let Some(free) = asked {
        memory.available = Some(free.clone());
        memory.longest_context_tokens = None;
    }
    if ranks > 1 {
        // How other engines split a model is not known here.
        memory.available = None;
    }
    set_verdict(memory, needed);
    Ok(())
}

/// Sets whether this many bytes fit.
fn set_verdict(memory: &mut ModelMemory, needed: u64) {
    memory.needed_bytes = Some(needed);
    let left = memory.available.as_ref().map(|free| i128::from(free.value) - i128::from(needed));
    memory.fits = left.map(|left| left >= 0);
    memory.left_bytes =
        left.map(|left| i64::try_from(left).unwrap_or(if left < 0 { i64::MIN } else { i64::MAX }));
}

/// The rows of the output: sizes, the device, and the verdict.
fn rows(
    memory: &ModelMemory,
    chosen: Option<&Need<'_>>,
    refused: Option<&str>,
) -> Vec<(String, String)> {
    let row = |name: &str, value: String| (name.to_owned(), value);
    let mut rows = Vec::new();
    if let Some(parameters) = &memory.parameters {
        rows.push(row("parameters", format!("{} ({})", parameters.value, parameters.source)));
    }
    let each = match chosen {
        Some(need) => {
            rows.push(row("counted", need.words()));
            let Footprint { weights, states, caches, workspace, .. } = need.footprint;
            let parts = [
                ("weights", weights),
                ("states", states),
                ("caches", caches),
                ("workspace", workspace),
            ];
            rows.extend(parts.map(|(name, bytes)| row(name, byte_count(bytes))));
            if need.ranks > 1 { " in each process" } else { "" }
        }
        None => {
            let why = refused.unwrap_or("no engine runs it");
            rows.push(row("counted", "for Python's engines, an estimate".to_owned()));
            rows.push(row("note", format!("firstlight run does not run it: {why}")));
            let weights = memory
                .weights_bytes
                .iter()
                .map(|bytes| format!("{} ({})", byte_count(bytes.value), bytes.source));
            rows.extend(weights.map(|weights| row("weights", weights)));
            ""
        }
    };
    let sequences = match memory.sequences {
        1 => "1 sequence".to_owned(),
        more => format!("{more} sequences"),
    };
    let needed = memory.needed_bytes.map(byte_count).unwrap_or_default();
    rows.push(row(
        "needs",
        format!("{needed}{each} for {sequences} of {} tokens", memory.context_tokens),
    ));
    if let Some(free) = &memory.available {
        rows.push(row("free", format!("{} ({})", byte_count(free.value), free.source)));
    }
    let verdict = match (memory.fits, memory.left_bytes.map(i64::unsigned_abs).map(byte_count)) {
        (Some(true), Some(left)) => format!("fits, {left} remain"),
        (Some(false), Some(lacking)) => format!("does not fit, {lacking} missing"),
        _ => "not known: the free memory is not known; give it with --gpu-memory 24GiB".to_owned(),
    };
    rows.push(row("verdict", verdict));
    if let Some(tokens) = memory.longest_context_tokens.filter(|tokens| *tokens > 0) {
        rows.push(row("longest", format!("{tokens} tokens a sequence")));
    }
    rows
}

/// Memory that `run` needs on a backend, per rank.
struct Need<'a> {
    backend: BackendKind,
    ranks: usize,
    footprint: Footprint,
    /// Free memory for one rank.
    free: Option<Fact<u64>>,
    /// The footprint with this many tokens per sequence.
    with_tokens: Box<dyn Fn(usize) -> Footprint + 'a>,
    /// The model's context length.
    context: usize,
}

impl Need<'_> {
    /// Writes its sizes and its verdict into a model's report.
    fn judge(&self, memory: &mut ModelMemory) -> anyhow::Result<()> {
        let needed = self.footprint.peak();
        if needed == u64::MAX {
            return Err(uncountable(memory));
        }
        memory.workspace_bytes = self.footprint.workspace;
        memory.runtime_bytes = 0;
        memory.available.clone_from(&self.free);
        memory.longest_context_tokens = self.free.as_ref().map(|free| {
            let fits = |tokens: usize| (self.with_tokens)(tokens).peak() <= free.value;
            largest(self.context, fits) as u64
        });
        set_verdict(memory, needed);
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        let Self { backend, ranks, footprint, free, .. } = self;
        json!({
            "backend": backend.as_str(), "ranks": ranks, "storage": Storage::Bf16.as_str(),
            "weights_bytes": footprint.weights, "states_bytes": footprint.states,
            "caches_bytes": footprint.caches, "workspace_bytes": footprint.workspace,
            "recorded_steps_bytes": footprint.graphs,
            "peak_bytes": footprint.peak(), "available": free,
        })
    }

    /// `for firstlight run on the processor, in bf16, without the program itself`.
    fn words(&self) -> String {
        let on = match (self.backend, self.ranks) {
            (BackendKind::Cpu, 1) => "on the processor".to_owned(),
            (BackendKind::Cpu, ranks) => format!("--tp {ranks} on the processor"),
            (_, 1) => "on a GPU".to_owned(),
            (_, ranks) => format!("--tp {ranks} on GPUs"),
        };
        format!(
            "for firstlight run {on}, in {}, without the program itself",
            Storage::Bf16.as_str()
        )
    }
}

/// The largest number up to `most` for which the monotone predicate `good` holds; 0 for none.
fn largest(most: usize, good: impl Fn(usize) -> bool) -> usize {
    let (mut least, mut most) = (0, most);
    while least < most {
        let middle = least + (most - least).div_ceil(2);
        if good(middle) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    least
}

/// Memory that `run` needs on the processor and on GPUs, and the free memory; or why it does not run the model.
fn own(
    read: &Model,
    arguments: &Fit,
    (machine, asked): (&Machine, Option<&Fact<u64>>),
) -> anyhow::Result<Result<Vec<Need<'static>>, ConfigError>> {
    let architecture = match Architecture::of(&read.config()?) {
        Ok(architecture) => architecture,
        Err(reason) => return Ok(Err(reason)),
    };
    let ranks = arguments.split.tp;
    let architecture = architecture.with_scan_states(arguments.states.held());
    let architecture = architecture.map_err(ModelError::from)?;
    let architecture =
        architecture.shard(ShardRank { rank: 0, ranks }).map_err(ModelError::from)?;
    let architecture = Rc::new(architecture);
    let device = backends::open(BackendKind::Cpu)?;
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let sequences = count(arguments.batch);
    let tokens = count(arguments.context.unwrap_or(DEFAULT_CONTEXT)).min(architecture.context);
    let need = |kind: &'static EngineKind| {
        let (holding, free) = match kind.backend {
            BackendKind::Cpu => {
                let free = loading::free(&device, &architecture);
                (models::holding(&device, Storage::Bf16), free)
            }
            _ => {
                let free = asked.cloned().or_else(|| free_on_gpus(machine, ranks));
                (models::holding_on_gpus(Storage::Bf16), free)
            }
        };
        let of = Rc::clone(&architecture);
        let with_tokens = move |tokens: usize| {
            let prefilled = sequences.saturating_mul(tokens).min(kind.chunk);
            let step = LargestStep { tokens: prefilled.max(sequences), logits: sequences };
            kind.footprint(&of, holding, Capacity { sequences, tokens }, step)
        };
        Need {
            backend: kind.backend,
            ranks,
            footprint: with_tokens(tokens),
            free,
            context: architecture.context,
            with_tokens: Box::new(with_tokens),
        }
    };
    // The processor does not support bfloat16 states.
    let able = |kind: &&EngineKind| kind.check(Storage::Bf16, &architecture).is_ok();
    Ok(Ok(models::ENGINES.iter().filter(able).map(need).collect()))
}

/// The smallest free memory of the GPUs that this many ranks use; none if there are fewer GPUs.
fn free_on_gpus(machine: &Machine, ranks: usize) -> Option<Fact<u64>> {
    let nvidia = machine.gpus.iter().filter(|gpu| gpu.vendor == GpuVendor::Nvidia).take(ranks);
    let free = nvidia.map(|gpu| {
        let total = gpu.memory_total_bytes.as_ref()?;
        let used = gpu.memory_used_bytes.as_ref().map_or(0, |used| used.value);
        let words = format!("{} of GPU {}, less what is in use", total.source, gpu.index);
        Some(Fact::new(total.value.saturating_sub(used), words))
    });
    let free = free.collect::<Option<Vec<_>>>()?;
    (free.len() == ranks).then_some(free)?.into_iter().min_by_key(|free| free.value)
}
