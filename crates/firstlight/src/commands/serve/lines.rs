//! Output of `serve`: a few lines about its configuration, then a line per event.

use super::sizes::EngineSizes;
use crate::backend::DeviceNotice;
use crate::output::{self, Output};
use api::{Log, Record, RequestRecord};
use report::count;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

/// The configuration of the server.
#[derive(Debug, Serialize)]
pub(super) struct Listening {
    address: SocketAddr,
    models: Vec<String>,
    max_num_seqs: usize,
    /// Cached states of the prefix cache.
    prefix_cache_states: usize,
    /// Bytes of RAM for preempted requests and evicted states.
    swap_space: u64,
    max_model_len: usize,
    /// Capacity of the caches in tokens, for all requests together.
    cached_tokens: usize,
    max_num_queued_reqs: usize,
    keys: usize,
    /// Type of the scan's states, if it is not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    mamba_ssm_cache_dtype: Option<&'static str>,
    /// A warning for the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
}

impl Listening {
    pub(super) fn new(
        address: SocketAddr,
        names: &[String],
        room: &EngineSizes,
        queued: usize,
        keys: &[String],
        states: Option<&'static str>,
    ) -> Self {
        let open = keys.is_empty() && !address.ip().is_loopback();
        let warning = "every client that reaches this address is served: set FIRSTLIGHT_API_KEY";
        Self {
            address,
            models: names.to_vec(),
            max_num_seqs: room.sequences,
            prefix_cache_states: room.snapshots,
            swap_space: room.swap_space,
            max_model_len: room.tokens,
            cached_tokens: room.capacity.sequences * room.capacity.tokens,
            max_num_queued_reqs: queued,
            keys: keys.len(),
            mamba_ssm_cache_dtype: states,
            warning: open.then_some(warning),
        }
    }

    fn text(&self) -> String {
        let Self {
            address, max_num_seqs, max_model_len, cached_tokens, prefix_cache_states, ..
        } = self;
        let swap_space = self.swap_space as f64 / f64::from(1 << 30);
        let mut text = format!(
            "listening: http://{address}, model {}\n\
             capacity: {} at once, at most {max_model_len} tokens each, {cached_tokens} in total\n\
             prefix cache: {}\n\
             RAM: {swap_space:.1} GiB for preempted requests and more states\n",
            self.models.join(" or "),
            count(*max_num_seqs, "sequence"),
            count(*prefix_cache_states, "state")
        );
        if let Some(states) = self.mamba_ssm_cache_dtype {
            let _ = writeln!(text, "states: {states}");
        }
        if let Some(warning) = self.warning {
            let _ = writeln!(text, "warning: {warning}");
        }
        text
    }
}

/// Writes lines on a separate thread, so that requests do not wait for a terminal.
pub(super) struct Lines {
    json: bool,
    output: Output,
    sender: SyncSender<Option<String>>,
    writer: JoinHandle<()>,
}

/// Maximum number of queued lines. If the output blocks, further lines are dropped; requests are not.
const WAITING: usize = 4096;

impl Lines {
    pub(super) fn new(output: &Output) -> Self {
        let (sender, lines) = sync_channel::<Option<String>>(WAITING);
        let writer = std::thread::spawn(move || {
            // `None` ends the log, even while senders exist.
            for line in lines.into_iter().map_while(|line| line) {
                // A closed log does not end the server.
                let _ = output::write(&line);
            }
        });
        Self { json: output.json, output: *output, sender, writer }
    }

    /// Prints the device and the configuration.
    pub(super) fn first(&self, told: &DeviceNotice, listening: &Listening) -> anyhow::Result<()> {
        if self.json {
            let mut document =
                json!({ "schema": facts::SCHEMA, "event": "listening", "device": told });
            if let (Some(all), Ok(serde_json::Value::Object(own))) =
                (document.as_object_mut(), serde_json::to_value(listening))
            {
                all.extend(own);
            }
            return output::write(&format!("{document}\n"));
        }
        self.output.text(&(told.text(&self.output) + &listening.text()))
    }

    /// The log callback of the server.
    pub(super) fn log(&self) -> Log {
        let (json, sender) = (self.json, self.sender.clone());
        Arc::new(move |record| {
            let line = if json { line_of_json(&record) } else { line(&record) };
            let _ = sender.try_send(Some(line));
        })
    }

    /// Prints the last line after all others.
    pub(super) fn end(self, what: &str) {
        let line = match self.json {
            true => format!("{}\n", json!({ "time": stamp(), "event": "stopped", "what": what })),
            false => format!("{} {what}\n", clock()),
        };
        let Self { sender, writer, .. } = self;
        let _ = sender.send(Some(line));
        let _ = sender.send(None);
        let _ = writer.join();
    }
}

fn line_of_json(record: &Record) -> String {
    let mut document = json!({ "time": stamp() });
    if let (Some(all), Ok(serde_json::Value::Object(own))) =
        (document.as_object_mut(), serde_json::to_value(record))
    {
        all.extend(own);
    }
    format!("{document}\n")
}

fn line(record: &Record) -> String {
    let what = match record {
        Record::Ready { seconds } => format!("ready after {seconds:.1} s"),
        Record::Draining { open: 0, .. } => "stopping".to_owned(),
        Record::Draining { open, seconds } => {
            let (are, have) = if *open == 1 { ("is", "has") } else { ("are", "have") };
            format!(
                "stopping: {} {are} open and {have} {seconds} s (--shutdown-timeout); signal again to stop immediately",
                count(*open, "answer")
            )
        }
        Record::Aborted { open } => {
            format!("{} exceeded the time limit and was aborted", count(*open, "answer"))
        }
        Record::Request(request) => request_line(request),
    };
    format!("{} {what}\n", clock())
}

fn request_line(request: &RequestRecord) -> String {
    let RequestRecord { route, status, total_ms, .. } = request;
    let mut line = format!("{status} {route}");
    if let (Some(read), Some(added)) = (request.prompt_tokens, request.completion_tokens) {
        // Writing to a String cannot fail.
        let _ = write!(line, ": {read} prompt tokens, {added} generated");
        if let Some(first) = request.first_token_ms {
            let _ = write!(line, ", first token after {first} ms");
        }
    }
    let _ = write!(line, ", {total_ms} ms in total");
    match &request.error {
        Some(error) => {
            // One line, whatever a client sent.
            let error = error.replace(char::is_control, " ");
            let _ = write!(line, ": {error}");
        }
        None if *status == 499 => line += ": the client disconnected",
        None => {}
    }
    line
}

fn stamp() -> String {
    OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default()
}

fn clock() -> String {
    let seconds = format_description!("[hour]:[minute]:[second]Z");
    OffsetDateTime::now_utc().format(seconds).unwrap_or_default()
}
