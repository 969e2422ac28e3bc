//! Whether a model fits, in bytes: weights, state, cache, workspace and what the runtime keeps.

use super::config::Config;
use super::layer::{Layer, Size, product, sum};
use super::{ModelOptions, Weights};
use crate::gpu;
use facts::{Confidence, Fact, Finding, Machine, ModelMemory, ModelReport, Severity, byte_count};

/// The CUDA context, cuBLAS's workspace and the allocator's rounding, as one process of torch shows it before its first
/// tensor on data-centre GPUs: an estimate on the high side.
const RUNTIME_BYTES: u64 = 1 << 30;

/// Tokens of a prompt that are worked on at once.
const PROMPT_CHUNK: u64 = 2048;

pub(super) fn of(
    config: &Config,
    layers: &[Layer],
    outside: Size,
    options: &ModelOptions,
    machine: &Machine,
) -> ModelMemory {
    let all = layers.iter().fold(outside, |all, layer| all + layer.size);
    let limit =
        config.optional(&["max_position_embeddings", "model_max_length"]).unwrap_or(u64::MAX);
    let context_tokens = options.context_tokens.min(limit);
    let sequences = options.sequences.max(1);
    let (parameters, weights_bytes) = weights(config, all.parameters, options);
    let workspace_bytes = workspace(config, context_tokens);
    let runtime_bytes = if gpu::nvidia(machine).next().is_some() { RUNTIME_BYTES } else { 0 };
    let states = product(&[sequences, all.state_bytes]);
    let fixed = sum(&[weights_bytes.value, states, workspace_bytes, runtime_bytes]);
    let cache = product(&[sequences, context_tokens, all.cache_bytes]);
    let needed = sum(&[fixed, cache]);
    let available = available(machine);
    let left = available.as_ref().map(|free| i128::from(free.value) - i128::from(needed));
    let per_token = product(&[sequences, all.cache_bytes]);
    let longest = available.as_ref().map(|free| {
        let room = free.value.saturating_sub(fixed);
        // Without a cache that grows, the state holds any length.
        room.checked_div(per_token).unwrap_or(limit).min(limit)
    });
    ModelMemory {
        parameters: Some(parameters),
        weights_bytes: Some(weights_bytes),
        state_bytes_per_sequence: all.state_bytes,
        cache_bytes_per_token: all.cache_bytes,
        context_tokens,
        sequences,
        workspace_bytes,
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

/// The weight files' own count where they are there; else by the shapes and the element's size.
fn weights(config: &Config, computed: u64, options: &ModelOptions) -> (Fact<u64>, Fact<u64>) {
    if let Some(Weights { parameters, bytes, source }) = &options.weights {
        return (Fact::new(*parameters, source.clone()), Fact::new(*bytes, source.clone()));
    }
    let (bits, why) = config.weight_bits();
    let bytes = u64::try_from(u128::from(computed) * u128::from(bits) / 8).unwrap_or(u64::MAX);
    (
        Fact::new(computed, format!("the shapes {} gives", options.source)),
        Fact::new(bytes, format!("the shapes {} gives, {why}", options.source)),
    )
}

/// Activations of one chunk in the widest place of a layer, and the logits of one token in float32.
fn workspace(config: &Config, context: u64) -> u64 {
    let hidden = config.optional(&["hidden_size", "d_model", "n_embd"]).unwrap_or(0);
    let inner = config
        .optional(&["intermediate_size", "shared_intermediate_size", "moe_intermediate_size"])
        .unwrap_or(0);
    let widest = sum(&[product(&[4, hidden]), product(&[2, inner])]);
    let chunk = context.min(PROMPT_CHUNK);
    let vocabulary = config.optional(&["vocab_size"]).unwrap_or(0);
    sum(&[product(&[chunk, widest, config.activation_bytes()]), product(&[vocabulary, 4])])
}

/// What the roomiest GPU has free; a GPU that shares the host's memory has what is available there.
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

/// A model that does not fit.
pub(super) fn finding(report: &ModelReport) -> Option<Finding> {
    let memory = &report.memory;
    let (needed, free, left) =
        (memory.needed_bytes?, memory.available.as_ref()?, memory.left_bytes?);
    if memory.fits != Some(false) {
        return None;
    }
    let rule = crate::rule("model-memory")?;
    let weights = memory.weights_bytes.as_ref()?;
    let weights_alone = weights.value > free.value;
    let fix = match weights_alone {
        true => vec![
            "# more memory, several GPUs (tensor parallel), or weights of fewer bits (int8, int4)"
                .to_owned(),
            "firstlight ps".to_owned(),
        ],
        false => vec![
            format!(
                "# a context of {} tokens fits, or fewer sequences at once",
                memory.longest_context_tokens.unwrap_or(0)
            ),
            "firstlight ps".to_owned(),
        ],
    };
    let say = |what: &str, bytes: u64| format!("{what}: {bytes} bytes = {}", byte_count(bytes));
    Some(
        rule.finding(
            Severity::Warning,
            Confidence::Likely,
            format!(
                "{} does not fit here: it lacks {}",
                report.architecture,
                byte_count(left.unsigned_abs())
            ),
        )
        .evidence(say("weights", weights.value), weights.source.clone())
        .evidence(
            say("state of one sequence", memory.state_bytes_per_sequence),
            report.config.clone(),
        )
        .evidence(say("cache of one token", memory.cache_bytes_per_token), report.config.clone())
        .evidence(say("workspace, an estimate", memory.workspace_bytes), report.config.clone())
        .evidence(
            say(
                &format!("all of it for {} x {} tokens", memory.sequences, memory.context_tokens),
                needed,
            ),
            report.config.clone(),
        )
        .evidence(say("free", free.value), free.source.clone())
        .cause(match weights_alone {
            true => "The weights alone are more than what is free.",
            false => "The weights fit; state, cache and workspace beside them do not.",
        })
        .fix(fix)
        .done(),
    )
}
