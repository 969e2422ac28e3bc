//! Timings of a run, and whether decoding and prefill agree.

use super::listener::GenerationRecord;
use crate::backend::DeviceNotice;
use crate::output::Output;
use crate::phases::Phase;
use crate::transfer::short_byte_count;
use facts::{SCHEMA, byte_count};
use models::{Engine, Request, Storage};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Measurements of one run.
pub(super) struct RunTimes {
    family: &'static str,
    backend: &'static str,
    prompt_tokens: Vec<usize>,
    tokens: Vec<Vec<u32>>,
    first_seconds: f64,
    again: Option<Recomputation>,
    /// Tokens per second after each request's first token, of all sequences together.
    tokens_per_second: Option<f64>,
    weight_bytes: u64,
    /// None if it was not to be measured.
    read_bandwidth: Option<f64>,
    /// The largest difference that rounding explains.
    tolerance: f64,
    launches: BTreeMap<String, u64>,
    /// Peak memory of this process: measured, predicted before the weights were read, and the model's share of the
    /// prediction.
    memory_bytes: Option<PeakMemory>,
    device: Option<DeviceNotice>,
    started: Option<Started>,
    verbose: bool,
    /// Processes that have a part of the model: memory and loaded weights are those of rank 0, launches of all.
    ranks: usize,
}

/// The prompt and its answer computed again, with `--verify`.
#[derive(Clone, Copy)]
pub(super) struct Recomputation {
    pub(super) prompt_seconds: f64,
    /// Difference between the logits of decoding and prefill; none without a second token.
    pub(super) difference: Option<f64>,
}

/// Peak memory of a process on the processor, or of its buffers on a GPU.
#[derive(Clone, Copy)]
pub(super) struct PeakMemory {
    pub(super) measured: u64,
    /// Predicted before the weights were read: the memory in use then, and the model's.
    pub(super) predicted: u64,
    /// The model's part of the prediction, for the tokens of this run.
    pub(super) model: u64,
}

impl PeakMemory {
    /// `56.54 MB = 53.92 MiB peak, 50.01 MB = 47.69 MiB predicted (model: 1.20 MB)`: the rest is the program's.
    fn text(self, of_rank: &str) -> String {
        let [measured, predicted] = [self.measured, self.predicted].map(byte_count);
        let model = short_byte_count(self.model);
        let text = format!("{measured} peak{of_rank}, {predicted} predicted");
        if self.model < self.predicted { format!("{text} (model: {model})") } else { text }
    }
}

/// Time before the first token.
#[derive(Serialize)]
pub(super) struct Started {
    /// From process start to the first token.
    pub(super) first_token_seconds: f64,
    /// Loading the weights.
    pub(super) load_seconds: f64,
    /// Bytes of weights that were read.
    pub(super) load_bytes: u64,
    /// Opening the GPU, while files were read.
    pub(super) open_seconds: f64,
    /// Kernel modules loaded for the first step, and the seconds that it took.
    pub(super) kernels: Option<(usize, f64)>,
    pub(super) phases: Vec<Phase>,
}

impl Started {
    fn rate(&self) -> f64 {
        self.load_bytes as f64 / self.load_seconds
    }

    fn text(&self, (cold, warm): (f64, Option<f64>), of_rank: &str, verbose: bool) -> String {
        let [total, load] = [self.first_token_seconds, self.load_seconds];
        let [bytes, rate] = [self.load_bytes, self.rate() as u64].map(short_byte_count);
        let mut out = format!(
            "first token  {total:.2} s after process start\n\
             weights      {bytes}{of_rank} loaded in {load:.2} s, {rate}/s\n\
             prompt       {cold:.1} ms in the first step"
        );
        out += &warm.map_or_else(String::new, |warm| format!(", {warm:.1} ms on a second run"));
        out.push('\n');
        if verbose {
            for Phase { name, seconds } in &self.phases {
                // Writing to a String cannot fail, here and below.
                let _ = writeln!(out, "{seconds:>11.3} s  {name}");
            }
            if let Some((modules, seconds)) = self.kernels {
                let open = self.open_seconds;
                let _ = writeln!(out, "{open:>11.3} s  opening the GPU, while files were read");
                let _ = writeln!(
                    out,
                    "{seconds:>11.3} s  loading {modules} kernel modules, in the first step"
                );
            }
        }
        out
    }
}

impl RunTimes {
    pub(super) fn new(
        engine: &dyn Engine,
        storage: Storage,
        requests: &[Request],
        heard: &GenerationRecord,
        again: Option<Recomputation>,
    ) -> anyhow::Result<Self> {
        let launches = engine.launches()?;
        let decoded: usize = heard.tokens.iter().map(|tokens| tokens.len().saturating_sub(1)).sum();
        let seconds = heard.last_seconds - heard.first_seconds;
        let architecture = engine.architecture();
        let keeps = models::holding(engine.device(), storage).keeps;
        let ranks = architecture.place.ranks.max(architecture.stage.ranks);
        Ok(Self {
            family: architecture.family,
            backend: engine.device().capabilities().backend.as_str(),
            prompt_tokens: requests.iter().map(|request| request.prompt.len()).collect(),
            tokens: heard.tokens.clone(),
            first_seconds: heard.first_seconds,
            again,
            tokens_per_second: (decoded > 0 && seconds > 0.0).then(|| decoded as f64 / seconds),
            weight_bytes: architecture.weight_bytes_per_step(storage.bytes(), keeps, 1),
            read_bandwidth: None,
            tolerance: storage.tolerance_between(architecture),
            launches,
            memory_bytes: None,
            device: None,
            started: None,
            verbose: false,
            ranks,
        })
    }

    /// Adds the device, and the time before the first token.
    pub(super) fn with_start(self, device: DeviceNotice, started: Started, verbose: bool) -> Self {
        Self { device: Some(device), started: Some(started), verbose, ..self }
    }

    /// Adds the bandwidth of the device's memory, whose measurement takes about a second on a processor.
    pub(super) fn with_bandwidth(self, bytes_per_second: Option<f64>) -> Self {
        Self { read_bandwidth: bytes_per_second, ..self }
    }

    /// Adds the peak memory.
    pub(super) fn with_memory(self, memory_bytes: Option<PeakMemory>) -> Self {
        Self { memory_bytes, ..self }
    }

    /// Whether decoding and prefill agree within the storage type's tolerance.
    pub(super) fn agrees(&self) -> bool {
        // NaN does not agree.
        self.difference().is_none_or(|difference| difference <= self.tolerance)
    }

    fn difference(&self) -> Option<f64> {
        self.again.and_then(|again| again.difference)
    }

    /// Tokens per second as a percentage of the limit of reading the weights; for one sequence, because several share
    /// the reads.
    fn percent_of_limit(&self) -> Option<f64> {
        let [_] = self.tokens.as_slice() else { return None };
        let limit = self.read_bandwidth? / self.weight_bytes as f64;
        self.tokens_per_second.map(|rate| 100.0 * rate / limit)
    }

    pub(super) fn print(
        &self,
        output: &Output,
        texts: &[String],
        ended: &[&str],
    ) -> anyhow::Result<()> {
        let answers: Vec<_> = (0..texts.len())
            .map(|index| {
                json!({
                    "prompt_tokens": self.prompt_tokens[index], "tokens": self.tokens[index],
                    "text": texts[index], "ended": ended[index],
                })
            })
            .collect();
        let (cold, warm) = self.first_step_millis();
        let document = json!({
            "schema": SCHEMA, "family": self.family, "backend": self.backend, "answers": answers,
            "device": self.device, "start": self.started,
            "load_bytes_per_second": self.started.as_ref().map(Started::rate),
            "first_step_ms": cold, "prompt_read_again_ms": warm,
            "tokens_per_second": self.tokens_per_second, "weight_bytes_per_token": self.weight_bytes,
            "read_bytes_per_second": self.read_bandwidth,
            "percent_of_bandwidth_limit": self.percent_of_limit(),
            "decode_and_prefill_difference": self.difference(),
            "agree": self.again.map(|_| self.agrees()),
            "launches": self.launches,
            "ranks": self.ranks,
            "predicted_memory_bytes": self.memory_bytes.map(|memory| memory.predicted),
            "predicted_model_bytes": self.memory_bytes.map(|memory| memory.model),
            "peak_memory_bytes": self.memory_bytes.map(|memory| memory.measured),
        });
        if output.json {
            return output.document(&document);
        }
        // A single answer was already streamed.
        if texts.len() > 1 {
            let numbered = texts.iter().enumerate();
            let lines = numbered.map(|(index, text)| format!("[{index}] {text}\n"));
            output.text(&lines.collect::<String>())?;
        }
        output.notice(|_| self.text(ended));
        Ok(())
    }

    /// Milliseconds of the first step, and of the prompt when it was computed again.
    fn first_step_millis(&self) -> (f64, Option<f64>) {
        (self.first_seconds * 1e3, self.again.map(|again| again.prompt_seconds * 1e3))
    }

    fn text(&self, ended: &[&str]) -> String {
        let mut out = String::new();
        let (cold, warm) = self.first_step_millis();
        let of_rank = if self.ranks > 1 { " of rank 0" } else { "" };
        let prompts: usize = self.prompt_tokens.iter().sum();
        let added: usize = self.tokens.iter().map(Vec::len).sum();
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            out,
            "\n{} on {}: {prompts} token {} read, {added} added ({})",
            self.family,
            self.backend,
            if prompts == 1 { "id" } else { "ids" },
            ended.join(", ")
        );
        if let Some(started) = &self.started {
            out += &started.text((cold, warm), of_rank, self.verbose);
        }
        match self.tokens_per_second {
            Some(rate) => {
                let _ = write!(out, "decoding     {rate:.2} tokens/s");
            }
            None => out += "decoding     not measured: no second token",
        }
        if let Some((percent, bandwidth)) = self.percent_of_limit().zip(self.read_bandwidth) {
            let _ = write!(
                out,
                ", {percent:.0} % of the limit of reading {} of weights at {}/s",
                short_byte_count(self.weight_bytes),
                short_byte_count(bandwidth as u64)
            );
        }
        out.push('\n');
        match self.again.map(|again| again.difference) {
            Some(Some(difference)) => {
                let word = if self.agrees() { "agree" } else { "DISAGREE" };
                let by = match difference {
                    0.0 => "their logits are equal".to_owned(),
                    difference => format!("logits differ by {difference:.1e}"),
                };
                let _ = writeln!(out, "check        decoding and prefill {word}: {by}");
            }
            Some(None) => out += "check        none: no second token\n",
            None => {}
        }
        if let Some(memory) = self.memory_bytes {
            let _ = writeln!(out, "memory       {}", memory.text(of_rank));
        }
        out += "launches     ";
        let launches: Vec<String> =
            self.launches.iter().map(|(kernel, count)| format!("{kernel} {count}")).collect();
        out += &launches.join(", ");
        if self.ranks > 1 {
            let _ = write!(out, " (all {} ranks)", self.ranks);
        }
        out.push('\n');
        out
    }
}
