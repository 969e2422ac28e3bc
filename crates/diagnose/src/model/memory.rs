//! Whether a model fits into memory, in bytes: weights, state, cache, workspace and runtime.

use super::{ModelOptions, Weights};
use crate::gpu;
use architectures::{
    Architecture, Capacity, Config, Footprint, LargestStep, StorageFormat, UnexpandedWeights,
    WeightStorage,
};
use facts::{Confidence, Fact, Finding, Machine, ModelMemory, ModelReport, Severity, byte_count};

/// Bytes of the CUDA context, cuBLAS's workspace and the allocator's rounding: a high estimate, as one torch process
/// shows before its first tensor on data-centre GPUs.
const RUNTIME_BYTES: u64 = 1 << 30;

/// Prompt tokens in one step (chunked prefill).
const PROMPT_CHUNK: usize = 2048;

/// How Python stacks store a model: recurrent states in their kernels' type, convolution states and cache in the
/// model's type.
fn holding(config: &Config) -> WeightStorage {
    let bytes = config.activation_bytes();
    WeightStorage {
        weight_bytes: bytes,
        cache_bytes: bytes,
        conv_bytes: bytes,
        block: 1,
        spare_blocks: 0,
        state_pools: 1,
        activation_bytes: bytes,
        keeps: UnexpandedWeights::Projections,
        embedding: true,
    }
}

pub(super) fn of(
    config: &Config,
    described: &Architecture,
    options: &ModelOptions,
    machine: &Machine,
) -> ModelMemory {
    let limit = described.context as u64;
    let context_tokens = options.context_tokens.min(limit);
    let sequences = options.sequences.max(1);
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let capacity = Capacity { sequences: count(sequences), tokens: count(context_tokens) };
    let step = LargestStep { tokens: PROMPT_CHUNK.min(capacity.tokens), logits: 1 };
    let holding = holding(config);
    let footprint = Footprint::new(described, holding, capacity, step);
    let narrow = described.params.iter().any(|param| param.stored != StorageFormat::Wide);
    let stored = narrow.then(|| {
        let bytes = described.params.iter().map(|param| param.stored_bytes(holding.weight_bytes));
        bytes.fold(0, u64::saturating_add)
    });
    let (parameters, weights_bytes) = weights(config, described.params.count(), stored, options);
    let runtime_bytes = if gpu::nvidia(machine).next().is_some() { RUNTIME_BYTES } else { 0 };
    let fixed = [footprint.states, footprint.workspace, runtime_bytes];
    let fixed = fixed.into_iter().fold(weights_bytes.value, u64::saturating_add);
    let cache = footprint.caches;
    let needed = fixed.saturating_add(cache);
    let available = available(machine);
    let left = available.as_ref().map(|free| i128::from(free.value) - i128::from(needed));
    let per_token = sequences.saturating_mul(described.cache_bytes(holding));
    let longest = available.as_ref().map(|free| {
        let room = free.value.saturating_sub(fixed);
        // Without a cache per token, memory does not limit the context.
        room.checked_div(per_token).unwrap_or(limit).min(limit)
    });
    ModelMemory {
        parameters: Some(parameters),
        weights_bytes: Some(weights_bytes),
        state_bytes_per_sequence: described.state_bytes(holding),
        cache_bytes_per_token: described.cache_bytes(holding),
        context_tokens,
        sequences,
        workspace_bytes: footprint.workspace,
        runtime_bytes,
        needed_bytes: Some(needed),
        fits: left.map(|left| left >= 0),
        left_bytes: left
            .map(|left| i64::try_from(left).unwrap_or(if left < 0 { i64::MIN } else { i64::MAX })),
        longest_context_tokens: longest
            .filter(|_| left.is_some_and(|left| left + i128::from(cache) >= 0)),
        available,
    }
}

/// The parameter count and the bytes of all weights: from the weight files if there are any, else from the shapes.
/// `stored` is the size in bytes by the storage format of each weight, if some are quantized.
fn weights(
    config: &Config,
    computed: u64,
    stored: Option<u64>,
    options: &ModelOptions,
) -> (Fact<u64>, Fact<u64>) {
    if let Some(Weights { parameters, bytes, source }) = &options.weights {
        return (Fact::new(*parameters, source.clone()), Fact::new(*bytes, source.clone()));
    }
    let (bits, why) = config.weight_bits();
    let all = || u64::try_from(u128::from(computed) * u128::from(bits) / 8).unwrap_or(u64::MAX);
    let (bytes, why) = match stored {
        Some(stored) => (stored, "quantization_config"),
        None => (all(), why),
    };
    (
        Fact::new(computed, format!("the shapes {} gives", options.source)),
        Fact::new(bytes, format!("the shapes {} gives, {why}", options.source)),
    )
}

/// Free bytes of the GPU with the most free memory. A GPU that shares the host's memory, and a machine without a GPU,
/// have the memory available on the host.
fn available(machine: &Machine) -> Option<Fact<u64>> {
    let host = || {
        let memory = &machine.memory;
        let free = memory.available_bytes.as_ref().or(memory.total_bytes.as_ref())?;
        let limit = memory.limit_bytes.as_ref().filter(|limit| limit.value < free.value);
        Some(limit.unwrap_or(free).clone())
    };
    let free_of = |gpu: &facts::Gpu| {
        let total = gpu.memory_total_bytes.as_ref()?;
        if total.source.contains("meminfo") {
            return host();
        }
        let used = gpu.memory_used_bytes.as_ref().map_or(0, |used| used.value);
        let words = format!(
            "{} of GPU {} ({}), less what is in use",
            total.source, gpu.index, gpu.name.value
        );
        Some(Fact::new(total.value.saturating_sub(used), words))
    };
    let gpus = gpu::nvidia(machine).filter_map(free_of).max_by_key(|free| free.value);
    gpus.or_else(host)
}

/// The finding for a model that does not fit; `None` if it fits or the memory is unknown.
pub(super) fn finding(
    report: &ModelReport,
    held_weights: Option<u64>,
    processes: bool,
) -> Option<Finding> {
    let memory = &report.memory;
    let (needed, free, left) =
        (memory.needed_bytes?, memory.available.as_ref()?, memory.left_bytes?);
    if memory.fits != Some(false) {
        return None;
    }
    let rule = crate::rule("model-memory")?;
    let weights = memory.weights_bytes.as_ref()?;
    let held_weights = held_weights.filter(|held| *held != weights.value);
    let weights_alone = held_weights.unwrap_or(weights.value) > free.value;
    let mut fix = vec![match (weights_alone, memory.longest_context_tokens) {
        (true, _) => {
            "# more memory, several GPUs (tensor parallel), or weights of fewer bits (int8, int4)"
                .to_owned()
        }
        (false, Some(tokens @ 1..)) => {
            format!("# a context of {tokens} tokens fits, or fewer sequences at once")
        }
        (false, _) => "# fewer sequences at once, or more memory".to_owned(),
    }];
    fix.extend(processes.then(|| "firstlight ps".to_owned()));
    let say = |what: &str, bytes: u64| format!("{what}: {bytes} bytes = {}", byte_count(bytes));
    let mut finding = rule
        .finding(
            Severity::Warning,
            Confidence::Likely,
            format!(
                "{} does not fit here: it lacks {}",
                report.architecture,
                byte_count(left.unsigned_abs())
            ),
        )
        .evidence(say("weights", weights.value), weights.source.clone());
    if let Some(held) = held_weights {
        finding = finding.evidence(say("weights in memory", held), report.config.clone());
    }
    Some(
        finding
            .evidence(
                say("state of one sequence", memory.state_bytes_per_sequence),
                report.config.clone(),
            )
            .evidence(
                say("cache of one token", memory.cache_bytes_per_token),
                report.config.clone(),
            )
            .evidence(say("workspace, an estimate", memory.workspace_bytes), report.config.clone())
            .evidence(
                say(
                    &format!(
                        "all of it for {} x {} tokens",
                        memory.sequences, memory.context_tokens
                    ),
                    needed,
                ),
                report.config.clone(),
            )
            .evidence(say("free", free.value), free.source.clone())
            .cause(match weights_alone {
                true => "The weights alone are more than what is free.",
                false => "The weights fit; state, cache and workspace do not fit in addition.",
            })
            .fix(fix)
            .finish(),
    )
}
