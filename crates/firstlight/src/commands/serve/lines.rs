//! What `serve` says: a few lines of how it is set up, then a line for each thing that happens.

use super::sizes::Room;
use crate::backend::Told;
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

/// How the server is set up.
#[derive(Debug, Serialize)]
pub(super) struct Listening {
    address: SocketAddr,
    models: Vec<String>,
    max_num_seqs: usize,
    /// States that are kept behind beginnings of prompts.
    prefix_cache_states: usize,
    /// Bytes of RAM for preempted requests and for more such states.
    swap_space: u64,
    max_model_len: usize,
    /// Tokens that the caches hold, of all requests.
    cached_tokens: usize,
    max_num_queued_reqs: usize,
    keys: usize,
    /// Type of the scan's states, where it is not the usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    mamba_ssm_cache_dtype: Option<&'static str>,
    /// What its user should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
}

impl Listening {
    pub(super) fn new(
        address: SocketAddr,
        names: &[String],
        room: &Room,
        queued: usize,
        keys: &[String],
        states: Option<&'static str>,
    ) -> Self {
        let open = keys.is_empty() && !address.ip().is_loopback();
        let warning = "everybody who reaches this address is answered: set FIRSTLIGHT_API_KEY";
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
             room: {max_num_seqs} answers at once, {max_model_len} tokens each at most, {cached_tokens} together\n\
             prefix cache: {prefix_cache_states} states\n\
             RAM: {swap_space:.1} GiB for preempted requests and more such states\n",
            self.models.join(" or ")
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

/// Writes lines on a thread of its own: whoever answers requests does not wait for a terminal.
pub(super) struct Lines {
    json: bool,
    output: Output,
    sender: SyncSender<Option<String>>,
    writer: JoinHandle<()>,
}

/// Lines that may wait to be written. Where nobody reads them, later ones are lost and requests are not.
const WAITING: usize = 4096;

impl Lines {
    pub(super) fn new(output: &Output) -> Self {
        let (sender, lines) = sync_channel::<Option<String>>(WAITING);
        let writer = std::thread::spawn(move || {
            // Nothing is the end, whoever could still send.
            for line in lines.into_iter().map_while(|line| line) {
                // A log that nobody reads any more does not end the server.
                let _ = output::write(&line);
            }
        });
        Self { json: output.json, output: *output, sender, writer }
    }

    /// Where it runs and how it is set up.
    pub(super) fn first(&self, told: &Told, listening: &Listening) -> anyhow::Result<()> {
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

    /// For the server.
    pub(super) fn log(&self) -> Log {
        let (json, sender) = (self.json, self.sender.clone());
        Arc::new(move |record| {
            let line = if json { line_of_json(&record) } else { line(&record) };
            let _ = sender.try_send(Some(line));
        })
    }

    /// The last line, behind all others.
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
        Record::Draining { open: 0 } => "stopping".to_owned(),
        Record::Draining { open } => {
            let are = if *open == 1 { "is" } else { "are" };
            format!("stopping: {} {are} open; again to end at once", count(*open, "answer"))
        }
        Record::Aborted { open } => {
            format!("{} took too long and ended unfinished", count(*open, "answer"))
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
        let _ = write!(line, ": {read} tokens read, {added} added");
        if let Some(first) = request.first_token_ms {
            let _ = write!(line, ", first token after {first} ms");
        }
    }
    let _ = write!(line, ", {total_ms} ms in all");
    match &request.error {
        Some(error) => {
            // One line, whatever a client sent.
            let error = error.replace(char::is_control, " ");
            let _ = write!(line, ": {error}");
        }
        None if *status == 499 => line += ": the client went away",
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
