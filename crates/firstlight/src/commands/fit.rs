//! `firstlight fit`: whether a model fits on this machine, in bytes. The same judgement as `doctor --model`, without the
//! Python environments and what is wrong with the rest; and what firstlight's own engine takes.

use super::ask_nvml::live;
use super::doctor::model::{self, DEFAULT_CONTEXT, Model};
use crate::Outcome;
use crate::cli::{Fit, Wanted};
use crate::hub;
use crate::loading;
use crate::output::Output;
use architectures::ConfigError;
use facts::{BackendKind, DoctorReport, Fact, GpuVendor, Machine, SCHEMA, byte_count};
use models::{
    Architecture, Capacity, EngineKind, Footprint, LargestStep, ModelError, Place, Storage,
};
use report::terminal;
use serde_json::json;

pub(super) fn run(arguments: &Fit, output: &Output) -> anyhow::Result<Outcome> {
    let named = hub::locate(&arguments.named)?;
    // A model that cannot be read is said at once, before a machine with GPUs is probed.
    let read = model::read(&named)?;
    let read = match arguments.weights {
        Some(weights) => read.rounded(weights)?,
        None => read,
    };
    let source = live(&arguments.waiting);
    let machine = probe::machine(&probe::Options { source, site_packages: Vec::new() });
    let mut report = DoctorReport::new(machine, Vec::new(), Vec::new());
    let wanted = Wanted { model: None, context: arguments.context, sequences: arguments.batch };
    model::judge(&read, &wanted, &mut report)?;
    // A config.json alone may be asked about before its weights are fetched; a folder is asked about with its weights.
    if named.is_dir() || models::is_gguf(&named) {
        read.whole(&report)?;
    }
    // Without environments nothing can be said of their kernels.
    report.findings.retain(|finding| finding.rule == "model-memory");
    let ranks = arguments.split.tp;
    if ranks > 1 {
        // Whether all of it fits on one device was not asked.
        report.findings.clear();
        if let Some(model) = &mut report.model {
            let memory = &mut model.memory;
            (memory.available, memory.left_bytes, memory.fits) = (None, None, None);
        }
    }
    let own = own(&read, arguments, &report.machine)?;
    let refused = own.as_ref().err().map(ToString::to_string);
    let needs = own.unwrap_or_default();
    let of = |backend| needs.iter().find(|need| need.backend == backend).map(Need::json);
    let document = json!({
        "schema": SCHEMA, "model": report.model, "engine": of(BackendKind::Cpu),
        "engine_on_gpus": of(BackendKind::Cuda), "engine_refuses": refused, "findings": report.findings,
    });
    output.either(&document, |style| {
        let mut out =
            report.model.iter().map(|model| terminal::fit(model, style)).collect::<String>();
        out.push('\n');
        out.extend(needs.iter().map(Need::text));
        out.extend(refused.iter().map(|why| format!("firstlight run does not run it: {why}\n")));
        for finding in &report.findings {
            out.push('\n');
            out.push_str(&terminal::one_finding(finding, style));
        }
        out
    })?;
    // It runs on the GPUs, where there are enough of them.
    let taken = needs.iter().rev().find(|need| need.free.is_some());
    if ranks > 1 && taken.is_some_and(|need| need.fits() == Some(false)) {
        return Ok(Outcome::Bad);
    }
    Ok(super::doctor::outcome(&report))
}

/// What `run` takes of a backend's memory, each of its ranks.
struct Need {
    backend: BackendKind,
    ranks: usize,
    footprint: Footprint,
    /// What is free there for one rank.
    free: Option<Fact<u64>>,
}

impl Need {
    fn fits(&self) -> Option<bool> {
        self.free.as_ref().map(|free| self.footprint.peak() <= free.value)
    }

    fn json(&self) -> serde_json::Value {
        let Self { backend, ranks, footprint, free } = self;
        json!({
            "backend": backend.as_str(), "ranks": ranks, "storage": Storage::Bf16.as_str(),
            "weights_bytes": footprint.weights, "states_bytes": footprint.states,
            "caches_bytes": footprint.caches, "workspace_bytes": footprint.workspace,
            "recorded_steps_bytes": footprint.recorded,
            "peak_bytes": footprint.peak(), "available": free,
        })
    }

    fn text(&self) -> String {
        let on = match (self.backend, self.ranks) {
            (BackendKind::Cpu, _) => "the processor",
            (_, 1) => "a GPU",
            _ => "GPUs",
        };
        let each = match self.ranks {
            1 => format!("on {on} needs"),
            ranks => format!("--tp {ranks} on {on} needs, for each of them,"),
        };
        let verdict = self.free.as_ref().map(|free| {
            let word = if self.fits() == Some(true) { "fits" } else { "does not fit" };
            format!("; it {word}, {} are free", byte_count(free.value))
        });
        format!("firstlight run {each} {}{}\n", self.footprint.told(), verdict.unwrap_or_default())
    }
}

/// What `run` takes on the processor and on GPUs, and what is free there; or why it does not run the model.
fn own(
    read: &Model,
    arguments: &Fit,
    machine: &Machine,
) -> anyhow::Result<Result<Vec<Need>, ConfigError>> {
    let architecture = match Architecture::of(&read.config()?) {
        Ok(architecture) => architecture,
        Err(reason) => return Ok(Err(reason)),
    };
    let ranks = arguments.split.tp;
    let architecture = architecture.with_scan_states(arguments.states.held());
    let architecture = architecture.map_err(ModelError::from)?;
    let architecture = architecture.shard(Place { rank: 0, ranks }).map_err(ModelError::from)?;
    let device = device::open(BackendKind::Cpu)?;
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let sequences = count(arguments.batch);
    let tokens = count(arguments.context.unwrap_or(DEFAULT_CONTEXT)).min(architecture.context);
    let need = |kind: &EngineKind| {
        let (holding, free) = match kind.backend {
            BackendKind::Cpu => {
                let free = loading::free(&device, &architecture);
                (models::holding(&device, Storage::Bf16), free)
            }
            _ => (models::holding_on_gpus(Storage::Bf16), free_on_gpus(machine, ranks)),
        };
        let prefilled = sequences.saturating_mul(tokens).min(kind.chunk);
        let step = LargestStep { tokens: prefilled.max(sequences), logits: sequences };
        let capacity = Capacity { sequences, tokens };
        let footprint = kind.footprint(&architecture, holding, capacity, step);
        Need { backend: kind.backend, ranks, footprint, free }
    };
    // The processor has no states in bfloat16.
    let able = |kind: &&EngineKind| kind.check(Storage::Bf16, &architecture).is_ok();
    Ok(Ok(models::ENGINES.iter().filter(able).map(need).collect()))
}

/// The least that is free on one of the GPUs that so many ranks take; none where there are fewer.
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
