//! Metrics: vLLM's names where the meaning is the same, names of our own otherwise.

use crate::ServiceSettings;
use models::{Pages, StepBudget, Usage};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};
use std::borrow::Cow;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The labels of every metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricLabels {
    /// The model's name, as clients request it.
    pub model: String,
    /// The index of the engine if a service has several.
    pub engine: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct FinishedReason {
    pub(crate) finished_reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SlotUse {
    r#use: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct LossReason {
    pub(crate) reason: &'static str,
}

/// The location of states: `device` is a slot of the engine, `ram` is host memory.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct Tier {
    pub(crate) tier: &'static str,
}

pub(crate) const DEVICE: Tier = Tier { tier: "device" };
pub(crate) const RAM: Tier = Tier { tier: "ram" };

type Share = Gauge<f64, AtomicU64>;

pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    labels: Vec<(Cow<'static, str>, Cow<'static, str>)>,
    process_start: Instant,
    running: Gauge,
    waiting: Gauge,
    cache_use: Share,
    slots: Family<SlotUse, Gauge>,
    snapshot_bytes: Family<Tier, Gauge>,
    preempted_bytes: Gauge,
    preemptions: Counter,
    saved_preemptions: Counter,
    failed_steps: Counter,
    pub(crate) prompt_tokens: Counter,
    pub(crate) generated_tokens: Counter,
    pub(crate) cache_queries: Counter,
    pub(crate) cache_hits: Counter,
    pub(crate) hits_by_tier: Family<Tier, Counter>,
    pub(crate) cached_tokens: Counter,
    pub(crate) lost_tokens: Family<LossReason, Counter>,
    verified_prefixes: Counter,
    mismatches: Counter,
    pub(crate) ended: Family<FinishedReason, Counter>,
    iteration_tokens: Histogram,
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
    pub(crate) per_token: Histogram,
    pub(crate) end_to_end: Histogram,
    pub(crate) queue: Histogram,
    pub(crate) prefill: Histogram,
    pub(crate) decode: Histogram,
    pub(crate) inference: Histogram,
    pub(crate) prompt_lengths: Histogram,
    pub(crate) answer_lengths: Histogram,
    choices: Histogram,
    max_tokens: Histogram,
    end_rate: Mutex<EndRate>,
}

/// The rate at which sequences end.
#[derive(Debug, Default)]
struct EndRate {
    last: Option<Instant>,
    /// Moving average of the seconds between two ends.
    seconds: f64,
    /// Whether the first token of the process was counted.
    first_token_counted: bool,
}

/// vLLM's bucket bounds, in seconds.
const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// vLLM's bucket bounds, in tokens.
const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

impl Metrics {
    pub(crate) fn new(settings: &ServiceSettings) -> Self {
        let named = &settings.labels;
        let label = |name: &'static str, value: &str| (name.into(), value.to_owned().into());
        let labels = vec![label("model_name", &named.model), label("engine", &named.engine)];
        let mut registry = Registry::default();
        let with = registry.sub_registry_with_labels(labels.clone().into_iter());
        // 1, 2, 5, 10, ... up to the longest sequence, vLLM's bucket bounds of lengths.
        let lengths: Vec<f64> = (0..)
            .flat_map(|power| [1.0, 2.0, 5.0].map(|x| x * 10f64.powi(power)))
            .take_while(|bound| *bound <= settings.limits.tokens as f64)
            .collect();
        let mut histogram = |name: &str, help: &str, bounds: &[f64]| {
            register(with, name, help, Histogram::new(bounds.iter().copied()))
        };
        let iteration_tokens = histogram(
            "vllm:iteration_tokens_total",
            "Tokens per engine step, prefill and decode together",
            STEP_TOKENS,
        );
        let first_token = histogram(
            "vllm:time_to_first_token_seconds",
            "Seconds from the arrival of a request to its first token",
            FIRST_TOKEN_SECONDS,
        );
        let between_tokens = histogram(
            "vllm:inter_token_latency_seconds",
            "Seconds between tokens of a request; tokens delivered together count once",
            TOKEN_SECONDS,
        );
        let per_token = histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean seconds per output token of a request after its first",
            TOKEN_SECONDS,
        );
        let end_to_end = histogram(
            "vllm:e2e_request_latency_seconds",
            "Seconds from the arrival of a request to its end",
            REQUEST_SECONDS,
        );
        let queue = histogram(
            "vllm:request_queue_time_seconds",
            "Seconds a request waited for a slot",
            REQUEST_SECONDS,
        );
        let prefill = histogram(
            "vllm:request_prefill_time_seconds",
            "Seconds from getting a slot to the first token",
            REQUEST_SECONDS,
        );
        let decode = histogram(
            "vllm:request_decode_time_seconds",
            "Seconds from the first token to the last",
            REQUEST_SECONDS,
        );
        let inference = histogram(
            "vllm:request_inference_time_seconds",
            "Seconds from getting a slot to the last token",
            REQUEST_SECONDS,
        );
        let prompt_lengths =
            histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", &lengths);
        let answer_lengths =
            histogram("vllm:request_generation_tokens", "Generated tokens of a request", &lengths);
        let choices = histogram("vllm:request_params_n", "Requested number of answers", CHOICES);
        let max_tokens = histogram(
            "vllm:request_params_max_tokens",
            "Requested maximum of generated tokens",
            &lengths,
        );
        Self {
            iteration_tokens,
            first_token,
            between_tokens,
            per_token,
            end_to_end,
            queue,
            prefill,
            decode,
            inference,
            prompt_lengths,
            answer_lengths,
            choices,
            max_tokens,
            running: register(
                with,
                "vllm:num_requests_running",
                "Requests that have a slot",
                Gauge::default(),
            ),
            waiting: register(
                with,
                "vllm:num_requests_waiting",
                "Requests that wait for a slot or for KV cache blocks",
                Gauge::default(),
            ),
            cache_use: register(
                with,
                "vllm:kv_cache_usage_perc",
                "Share of KV cache blocks in use, from 0 to 1; recurrent states are not counted",
                Share::default(),
            ),
            slots: register(
                with,
                "firstlight:state_slots",
                "Slots of recurrent states by use",
                Family::default(),
            ),
            snapshot_bytes: register(
                with,
                "firstlight:state_snapshot_bytes",
                "Bytes of cached prefix states; in RAM they include keys and values",
                Family::default(),
            ),
            preempted_bytes: register(
                with,
                "firstlight:preempted_bytes",
                "Bytes of preempted requests in RAM",
                Gauge::default(),
            ),
            preemptions: register(
                with,
                "vllm:num_preemptions",
                "Preempted requests",
                Counter::default(),
            ),
            saved_preemptions: register(
                with,
                "firstlight:preemptions_saved",
                "Preempted requests that were swapped out to RAM instead of being recomputed",
                Counter::default(),
            ),
            failed_steps: register(
                with,
                "firstlight:failed_steps",
                "Failed engine steps",
                Counter::default(),
            ),
            prompt_tokens: register(
                with,
                "vllm:prompt_tokens",
                "Prompt tokens of all requests",
                Counter::default(),
            ),
            generated_tokens: register(
                with,
                "vllm:generation_tokens",
                "Generated tokens",
                Counter::default(),
            ),
            cache_queries: register(
                with,
                "vllm:prefix_cache_queries",
                "Prompt tokens that were looked up in the prefix cache",
                Counter::default(),
            ),
            cache_hits: register(
                with,
                "vllm:prefix_cache_hits",
                "Prompt tokens found in the prefix cache",
                Counter::default(),
            ),
            hits_by_tier: register(
                with,
                "firstlight:prefix_cache_tier_hits",
                "Prompt tokens found in the prefix cache by tier",
                Family::default(),
            ),
            cached_tokens: register(
                with,
                "vllm:prompt_tokens_cached",
                "Prompt tokens that were not prefilled because the prefix cache had them",
                Counter::default(),
            ),
            lost_tokens: register(
                with,
                "firstlight:prefix_cache_lost_tokens",
                "Tokens of shared prefixes that were prefilled again, by reason",
                Family::default(),
            ),
            verified_prefixes: register(
                with,
                "firstlight:prefix_cache_verified",
                "Cached states that were verified by recomputing their tokens",
                Counter::default(),
            ),
            mismatches: register(
                with,
                "firstlight:prefix_cache_mismatch",
                "Cached states that failed verification; the first one disables the prefix cache",
                Counter::default(),
            ),
            ended: register(
                with,
                "vllm:request_success",
                "Ended requests by reason, errors included",
                Family::default(),
            ),
            registry: Mutex::new(registry),
            labels,
            process_start: settings.process_start,
            end_rate: Mutex::default(),
        }
    }

    /// Registers the values that are known once the engine is built.
    pub(crate) fn engine_built(&self, pages: &Pages, budget: StepBudget) {
        let text = |name: &'static str, value: usize| (name, value.to_string());
        let info = vec![
            text("block_size", Pages::tokens_of_a_block()),
            text("num_gpu_blocks", pages.blocks()),
            text("num_state_slots", pages.sequences()),
            text("max_num_batched_tokens", budget.tokens),
        ];
        self.register_late(
            "vllm:cache_config",
            "Blocks and slots of the engine's caches",
            Info::new(info),
        );
    }

    /// Registers a metric when its value becomes known; until then it is absent.
    fn register_late(&self, name: &str, help: &str, metric: impl Metric) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let with = registry.sub_registry_with_labels(self.labels.clone().into_iter());
        with.register(name, help, metric);
    }

    pub(crate) fn usage(&self, usage: &Usage) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.running.set(count(usage.running));
        self.waiting.set(count(usage.waiting));
        let taken = usage.blocks - usage.free_blocks;
        self.cache_use.set(if usage.blocks == 0 {
            0.0
        } else {
            taken as f64 / usage.blocks as f64
        });
        self.slots.get_or_create(&SlotUse { r#use: "running" }).set(count(usage.running));
        self.slots.get_or_create(&SlotUse { r#use: "snapshot" }).set(count(usage.snapshots));
        self.slots.get_or_create(&SlotUse { r#use: "free" }).set(count(usage.free_slots));
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.snapshot_bytes.get_or_create(&DEVICE).set(bytes(usage.snapshot_bytes));
        self.snapshot_bytes.get_or_create(&RAM).set(bytes(usage.saved_snapshot_bytes));
        self.preempted_bytes.set(bytes(usage.preempted_bytes));
    }

    pub(crate) fn settings(&self, choices: usize, max_tokens: usize) {
        self.choices.observe(choices as f64);
        self.max_tokens.observe(max_tokens as f64);
    }

    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens.get()
    }

    pub(crate) fn prefix_verified(&self, same: bool) {
        self.verified_prefixes.inc();
        self.mismatches.inc_by(u64::from(!same));
    }

    pub(crate) fn cached_tokens(&self) -> u64 {
        self.cached_tokens.get()
    }

    pub(crate) fn generation_tokens(&self) -> u64 {
        self.generated_tokens.get()
    }

    pub(crate) fn iteration(&self, tokens: usize) {
        if tokens > 0 {
            self.iteration_tokens.observe(tokens as f64);
        }
    }

    pub(crate) fn preempted(&self, saved: bool) {
        self.preemptions.inc();
        self.saved_preemptions.inc_by(u64::from(saved));
    }

    pub(crate) fn step_failed(&self) {
        self.failed_steps.inc();
    }

    /// Estimates when the next sequence ends, from a moving average: whole seconds, at least one.
    pub(crate) fn retry_after(&self) -> Duration {
        let end_rate = self.end_rate.lock().unwrap_or_else(PoisonError::into_inner);
        Duration::from_secs(end_rate.seconds.ceil().clamp(1.0, 60.0) as u64)
    }

    pub(crate) fn encode(&self) -> String {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }

    pub(crate) fn first_token_of_process(&self, now: Instant) {
        let mut end_rate = self.end_rate.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut end_rate.first_token_counted, true) {
            let seconds = Share::default();
            seconds.set(now.saturating_duration_since(self.process_start).as_secs_f64());
            let help = "Seconds from process start to its first token";
            self.register_late("firstlight:start_to_first_token_seconds", help, seconds);
        }
    }

    pub(crate) fn sequence_ended(&self, now: Instant) {
        let mut end_rate = self.end_rate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = end_rate.last.replace(now) {
            let seconds = now.saturating_duration_since(last).as_secs_f64();
            end_rate.seconds += (seconds - end_rate.seconds) / 8.0;
        }
    }
}

fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}
