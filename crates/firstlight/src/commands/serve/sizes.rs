//! Computes how many requests of which length fit, before the weights are read.

use crate::cli::Sizes;
use crate::failure::Failure;
use crate::loading;
use device::Device;
use facts::{BackendKind, byte_count};
use models::{Architecture, Capacity, EngineKind, LargestStep, Storage, WeightStorage};
use ops_cuda::SWAP_STAGING_BYTES;
use probe::Source;

/// The sizes of an engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineSizes {
    /// Its slots, and the cache tokens per slot; a sequence may use tokens that others leave free.
    pub(super) capacity: Capacity,
    /// Sequences that run at once.
    pub(super) sequences: usize,
    /// Additional slots for states of the prefix cache.
    pub(super) snapshots: usize,
    /// Bytes of host memory for preempted requests and evicted states.
    pub(super) swap_space: u64,
    /// Maximum tokens of one request.
    pub(super) tokens: usize,
    pub(super) step: LargestStep,
}

impl EngineSizes {
    /// The requested sizes; sizes without a request use as much as fits next to the other memory.
    ///
    /// # Errors
    /// They do not fit; the message has the largest sizes that do.
    pub(super) fn of(
        architecture: &Architecture,
        device: &Device,
        storage: Storage,
        asked: &Sizes,
    ) -> anyhow::Result<Self> {
        let kind = models::engine_kind(device)?;
        kind.check(storage, architecture)?;
        let on_host = device.capabilities().backend == BackendKind::Cpu;
        let step_tokens = asked.max_num_batched_tokens.map_or(kind.chunk, |tokens| tokens as usize);
        let holding = models::holding(device, storage);
        let swap_space = swap_space(asked)?;
        // On a GPU, copies to the host are staged in its memory.
        let staging = if on_host { 0 } else { SWAP_STAGING_BYTES.min(swap_space) };
        let free =
            loading::free(device, architecture).map(|free| free.value.saturating_sub(staging));
        // Other programs share the processor's memory.
        let share = if on_host { 0.5 } else { 0.9 };
        let usable = free.map(|free| (free as f64 * share) as u64);
        let usual = if on_host { SNAPSHOTS_ON_HOST } else { SNAPSHOTS_ON_GPU };
        let state = architecture.state_bytes(holding).max(1);
        let fit = usable.map_or(usual, |usable| usual.min(usable / 8 / state));
        let snapshots = match asked.no_enable_prefix_caching {
            true => 0,
            false => asked.prefix_cache_states.unwrap_or(fit),
        };
        let snapshots = usize::try_from(snapshots).unwrap_or(usize::MAX);
        let needs = Needs { kind, architecture, holding, step_tokens, snapshots, swap_space };
        let tokens = asked.max_model_len.map(|tokens| tokens as usize);
        let context = architecture.context;
        if let Some(tokens) = tokens.filter(|tokens| *tokens > context) {
            let what = format!("--max-model-len is {tokens}, the model's context is {context}");
            return Err(Failure::hinted(what, "use less, or leave it out for the model's maximum"));
        }
        let sequences = asked.max_num_seqs.map(|sequences| sequences as usize);
        let usual = if on_host { USUAL_ON_HOST } else { USUAL_ON_GPU };
        let (Some(free), Some(usable)) = (free, usable) else {
            // The free memory is not known: allocation may fail later.
            let (sequences, tokens) = (sequences.unwrap_or(usual), tokens.unwrap_or(context));
            return Ok(needs.room(sequences, tokens, tokens));
        };
        // Requested sizes may use all free memory; default sizes use a part.
        let (sequences, tokens) = match (sequences, tokens) {
            (Some(sequences), Some(tokens)) => (sequences, tokens),
            (None, Some(tokens)) => (needs.most_sequences(usual, tokens, usable).max(1), tokens),
            (Some(sequences), None) => match needs.most_tokens(sequences, context, usable) {
                // Without a requested length, a request may have the model's context length.
                most if most >= context => (sequences, context),
                _ => {
                    let fewer = needs.most_sequences(sequences, context, usable);
                    let shorter = needs.most_tokens(sequences, context, usable);
                    return Err(too_many(sequences, context, (fewer, shorter), &needs, usable));
                }
            },
            (None, None) => {
                let sequences = needs.most_sequences(usual, context, usable).max(1);
                let most = needs.most_tokens(sequences, context, usable);
                (sequences, most.max(holding.block).min(context))
            }
        };
        if needs.bytes(sequences, tokens) > free {
            let room = needs.room(sequences, tokens, tokens);
            return match loading::fit(architecture, device, storage, (room.capacity, room.step)) {
                Err(refused) => Err(needs.refuse(&refused, (sequences, tokens), free)),
                Ok(_) if staging == 0 => Ok(room),
                Ok(_) if asked.swap_space.is_none() => Ok(Self { swap_space: 0, ..room }),
                Ok(_) => Err(Failure::hinted(
                    format!(
                        "copies to RAM need {} more GPU memory than is free",
                        byte_count(staging)
                    ),
                    "take --swap-space 0, or fewer or shorter requests",
                )),
            };
        }
        // Both numbers together are a guarantee; with only one of them, requests share the memory.
        if asked.max_num_seqs.is_some() && asked.max_model_len.is_some() {
            needs.promise(sequences, tokens, free)?;
        }
        // Caches for more than one of the longest requests, if they fit.
        let most = sequences.saturating_mul(tokens);
        let pool = needs.most_tokens(sequences, most, usable).max(tokens);
        Ok(needs.room(sequences, tokens, pool))
    }
}

/// The error if not even one of this many requests can have the model's whole context.
fn too_many(
    sequences: usize,
    context: usize,
    (fewer, shorter): (usize, usize),
    needs: &Needs<'_>,
    usable: u64,
) -> anyhow::Error {
    let what = format!(
        "{sequences} requests at once leave too little memory for one of {context} tokens, the model's context: {} needed, {} available",
        byte_count(needs.bytes(sequences, context)),
        byte_count(usable)
    );
    let mut would = Vec::new();
    if fewer > 0 {
        would.push(format!("--max-num-seqs {fewer}"));
    }
    if shorter > 0 {
        would.push(format!("--max-num-seqs {sequences} --max-model-len {shorter}"));
    }
    let hint = match would.as_slice() {
        [] => "use fewer requests at once, and shorter ones with --max-model-len".to_owned(),
        would => format!("the largest that fit: {}", would.join(", or ")),
    };
    Failure::hinted(what, hint)
}

/// Default number of sequences at once: enough to keep a device busy.
const USUAL_ON_HOST: usize = 8;
const USUAL_ON_GPU: usize = 128;
/// Default number of cached prefix states. More states on the device cost only memory: 12 texts of up to 4,000 tokens
/// that prompts share up to a random length have about 350 states, of which 64 cover 72 % of the tokens and 192 cover
/// 82 %.
const SNAPSHOTS_ON_HOST: u64 = 8;
const SNAPSHOTS_ON_GPU: u64 = 256;

/// Host memory for copies: the requested size, or a part of the free memory, which other programs share.
///
/// # Errors
/// The request is larger than the free memory.
fn swap_space(asked: &Sizes) -> anyhow::Result<u64> {
    const MOST: u64 = 16 << 30;
    let free = probe::memory(&Source::live()).available_bytes;
    let Some(gibibytes) = asked.swap_space else {
        return Ok(free.map_or(0, |free| (free.value / 8).min(MOST)));
    };
    let bytes = (gibibytes * f64::from(1 << 30)) as u64;
    match free {
        Some(free) if bytes > free.value => Err(Failure::hinted(
            format!(
                "--swap-space {gibibytes} is more than the RAM that is free: {} ({})",
                byte_count(free.value),
                free.source
            ),
            format!("at most --swap-space {} fits; 0 switches it off", free.value >> 30),
        )),
        _ => Ok(bytes),
    }
}

/// Memory that a model needs on a device.
struct Needs<'a> {
    kind: &'a EngineKind,
    architecture: &'a Architecture,
    holding: WeightStorage,
    step_tokens: usize,
    snapshots: usize,
    swap_space: u64,
}

impl Needs<'_> {
    /// Slots for this many sequences, and caches for this many tokens together.
    fn room(&self, sequences: usize, tokens: usize, pool: usize) -> EngineSizes {
        let block = self.holding.block;
        let slots = sequences.saturating_add(self.snapshots);
        let each = pool.div_ceil(block).div_ceil(slots) * block;
        EngineSizes {
            capacity: Capacity { sequences: slots, tokens: each },
            sequences,
            snapshots: self.snapshots,
            swap_space: self.swap_space,
            tokens,
            // An engine reserves logits for a step of all its slots.
            step: LargestStep { tokens: self.step_tokens.max(sequences), logits: slots },
        }
    }

    /// Bytes that they need.
    fn bytes(&self, sequences: usize, pool: usize) -> u64 {
        let EngineSizes { capacity, step, .. } = self.room(sequences, pool, pool);
        self.kind.footprint(self.architecture, self.holding, capacity, step).peak()
    }

    /// The largest number of sequences up to `most` that fits if one of them has this many tokens.
    fn most_sequences(&self, most: usize, tokens: usize, bytes: u64) -> usize {
        largest(most, |sequences| self.bytes(sequences, tokens) <= bytes)
    }

    /// The largest number of tokens up to `most` that caches of this many sequences can have together.
    fn most_tokens(&self, sequences: usize, most: usize, bytes: u64) -> usize {
        let block = self.holding.block;
        let fits = |blocks: usize| self.bytes(sequences, blocks.saturating_mul(block)) <= bytes;
        largest(most.div_ceil(block), fits).saturating_mul(block).min(most)
    }

    /// Checks that this many requests of this many tokens each fit at once.
    ///
    /// # Errors
    /// They do not fit; the message has the largest numbers that do.
    fn promise(&self, sequences: usize, tokens: usize, free: u64) -> anyhow::Result<()> {
        let all = |sequences: usize, tokens: usize| {
            self.bytes(sequences, sequences.saturating_mul(tokens))
        };
        let needed = all(sequences, tokens);
        if needed <= free {
            return Ok(());
        }
        let fewer = largest(sequences, |sequences| all(sequences, tokens) <= free);
        let shorter = largest(tokens, |tokens| all(sequences, tokens) <= free);
        let mut would = Vec::new();
        if fewer > 0 {
            would.push(format!("--max-num-seqs {fewer} --max-model-len {tokens}"));
        }
        if shorter > 0 {
            would.push(format!("--max-num-seqs {sequences} --max-model-len {shorter}"));
        }
        let (needed, free) = (byte_count(needed), byte_count(free));
        let what = format!(
            "{sequences} requests at once of {tokens} tokens each need {needed}, {free} are free"
        );
        let hint = format!(
            "the largest that fit: {}; with only one of the two options, requests share the memory",
            would.join(", or ")
        );
        Err(Failure::hinted(what, hint))
    }

    /// The error for sizes that do not fit, with the largest that do.
    fn refuse(
        &self,
        refused: &anyhow::Error,
        (sequences, tokens): (usize, usize),
        free: u64,
    ) -> anyhow::Error {
        let fewer = self.most_sequences(sequences, tokens, free);
        let shorter = self.most_tokens(sequences, tokens, free);
        let mut would = Vec::new();
        if fewer > 0 {
            would.push(format!("--max-num-seqs {fewer} --max-model-len {tokens}"));
        }
        if shorter > 0 {
            would.push(format!("--max-num-seqs {sequences} --max-model-len {shorter}"));
        }
        if would.is_empty() {
            let most = self.most_tokens(1, tokens, free);
            if most > 0 {
                would.push(format!("--max-num-seqs 1 --max-model-len {most}"));
            }
        }
        let hint = match would.as_slice() {
            [] => format!(
                "not even one token fits in {}: take --dtype bf16, a smaller model, or a device with more memory",
                byte_count(free)
            ),
            would => format!("the largest that fit: {}", would.join(", or ")),
        };
        let what = format!(
            "{refused:#}; requested: {sequences} requests at once, of up to {tokens} tokens"
        );
        Failure::hinted(what, hint)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_is_good_is_found() {
        for (most, bound) in [(0, 0), (1, 0), (1, 1), (7, 3), (100, 99), (100, 100), (100, 500)] {
            assert_eq!(largest(most, |number| number <= bound), most.min(bound), "{most} {bound}");
        }
    }

    #[test]
    fn capacity_is_accepted_and_one_more_refused() {
        let shape = models::shape("granite-4.0-h-micro").unwrap();
        let architecture = Architecture::of(&shape).unwrap();
        let device = backends::open(BackendKind::Cpu).unwrap();
        let holding = models::holding(&device, Storage::Bf16);
        let needs = Needs {
            kind: models::engine_kind(&device).unwrap(),
            architecture: &architecture,
            holding,
            step_tokens: 512,
            snapshots: 0,
            swap_space: 0,
        };
        let bytes = needs.bytes(4, 100_000);
        let tokens = needs.most_tokens(4, usize::MAX / 1024, bytes);
        assert!(needs.bytes(4, tokens) <= bytes && needs.bytes(4, tokens + 4 * 64) > bytes);
        assert!(tokens >= 100_000, "{tokens}");
        assert_eq!(needs.most_sequences(1000, 100_000, bytes), 4);
        assert_eq!(needs.most_sequences(1000, 100_000, 1), 0);
    }

    #[test]
    fn as_many_and_as_long_as_asked_for_fit_at_once_or_are_refused() {
        let shape = models::shape("granite-4.0-h-micro").unwrap();
        let architecture = Architecture::of(&shape).unwrap();
        let device = backends::open(BackendKind::Cpu).unwrap();
        let needs = Needs {
            kind: models::engine_kind(&device).unwrap(),
            architecture: &architecture,
            holding: models::holding(&device, Storage::Bf16),
            step_tokens: 512,
            snapshots: 0,
            swap_space: 0,
        };
        let free = needs.bytes(100, 100 * 4096);
        assert!(needs.promise(100, 4096, free).is_ok());
        let refused = needs.promise(1000, 4096, free).unwrap_err();
        let what = refused.to_string();
        assert!(what.starts_with("1000 requests at once of 4096 tokens each need "), "{what}");
        let hint = format!("{:?}", refused.downcast_ref::<Failure>().unwrap());
        assert!(hint.contains("that fit: --max-num-seqs 100 --max-model-len 4096"), "{hint}");
    }
}
