//! `firstlight check --fleet OUT`: a check on each rank that a launcher started, and one folder for all of them.
//!
//! Each rank is two processes: one that communicates, and the check itself. Rank 0 listens, starts all ranks at the
//! same time, receives their run folders and compares them. A lost rank is named, and the others stop: otherwise the
//! waiting nodes would stay allocated.

mod compare;
mod folder;
mod follower;
mod leader;
mod shares;
mod wire;

use super::part::{Part, reserved_time};
use crate::Outcome;
use crate::cli::Check;
use crate::commands::gpu_group::chosen;
use crate::output::Output;
use crate::ranks::{self, Rank};
use crate::stopping;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time limit for all ranks to connect: container images are pulled meanwhile. With a budget, a third of it.
const MEETING: Duration = Duration::from_secs(300);
/// Polling interval.
const LOOK: Duration = Duration::from_millis(50);

/// A rank's first message.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Hello {
    version: String,
    rank: u32,
    size: u32,
    local_rank: u32,
    host: String,
    /// Boot ID: the same for all ranks of one running kernel, in any container.
    boot: String,
    /// UUIDs of the visible GPUs.
    gpus: Vec<String>,
    /// Nonce for the proof of rank 0.
    drawn: String,
    proof: String,
}

/// Rank 0's message that all ranks are connected.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Start {
    /// The GPUs assigned to this rank, if other ranks of its host see the same ones.
    gpus: Option<Vec<String>>,
    /// Rest of the budget in milliseconds.
    millis: Option<u64>,
    proof: String,
}

/// The result of a rank's check.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct CheckResult {
    /// Exit status of the check.
    code: Option<i32>,
    /// Why it did not finish.
    broke: Option<String>,
    /// Proof over the transferred folder.
    proof: String,
}

/// Why all ranks have to stop.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct StopMessage {
    why: String,
}

/// The result of the fleet, as an exit status.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Verdict {
    code: u8,
}

/// This rank's identity and settings.
struct RankSettings {
    rank: Rank,
    hello: Hello,
    /// The end of the budget.
    end: Option<Instant>,
    limit: Option<Duration>,
    stop: Arc<AtomicBool>,
}

impl RankSettings {
    fn meeting_deadline(&self) -> Instant {
        Instant::now() + self.limit.map_or(MEETING, |limit| limit / 3)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

pub(super) fn run(out: &Path, arguments: &Check, output: &Output) -> anyhow::Result<Outcome> {
    let limit = arguments.budget.map(Duration::from_secs);
    let end = limit.map(|limit| Instant::now() + limit);
    let variables = |name: &str| std::env::var(name).ok();
    let mut rank = ranks::of(&variables)?;
    rank.port = arguments.fleet.fleet_port.unwrap_or(rank.port);
    let stop = Arc::new(AtomicBool::new(false));
    stopping::on_signals(&stop).context("cannot wait for signals")?;
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        rank: rank.rank,
        size: rank.size,
        local_rank: rank.local_rank,
        host: if arguments.redact { String::new() } else { host() },
        boot: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
        gpus: chosen::visible(&arguments.environment.waiting),
        drawn: hex(&wire::drawn()),
        proof: String::new(),
    };
    let own = RankSettings { rank, hello, end, limit, stop };
    match own.rank.rank {
        0 => leader::run(own, out, output),
        _ => follower::run(&own),
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "unknown-host".to_owned() } else { name.trim().to_owned() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The message that a rank authenticates in its first message.
fn of_hello(job: &str, challenge: &[u8], hello: &Hello) -> String {
    let Hello { rank, size, drawn, .. } = hello;
    let who = format!("{rank} of {size}");
    wire::proof(job, &[b"hello", challenge, who.as_bytes(), drawn.as_bytes()])
}

/// The message that rank 0 authenticates when it starts a rank.
fn of_start(job: &str, hello: &Hello) -> String {
    wire::proof(job, &[b"start", hello.drawn.as_bytes(), hello.rank.to_string().as_bytes()])
}

/// The message that a rank authenticates with its run folder.
fn of_done(job: &str, challenge: &[u8], seal: &str) -> String {
    wire::proof(job, &[b"done", challenge, seal.as_bytes()])
}

/// A rank's running check.
struct RunningCheck {
    part: Part,
    /// Deadline at which it is killed.
    last: Option<Instant>,
}

impl RunningCheck {
    /// `left` of the budget `limit`.
    fn start(
        folder: &Path,
        gpus: Option<&[String]>,
        left: Option<Duration>,
        limit: Option<Duration>,
    ) -> anyhow::Result<Self> {
        /// Time limit of a check without a budget.
        const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
        let kept = limit.map(reserved_time).unwrap_or_default();
        let now = Instant::now();
        let until = now + left.unwrap_or(LONGEST).saturating_sub(kept);
        // The reserved time is for the end of the check, the transfer to rank 0, and the report of all.
        let last = left.map(|left| now + left.saturating_sub(kept / 2));
        let only = gpus.map(|gpus| (chosen::VISIBLE, gpus.join(",")));
        let variables: Vec<(&str, String)> = only.into_iter().collect();
        Ok(Self { part: Part::start(until, Some(folder), &variables)?, last })
    }

    /// The result, once the check has ended or was killed.
    fn ended(&mut self) -> Option<(Option<i32>, Option<String>)> {
        if let Some(status) = self.part.ended() {
            return Some((status.code(), self.part.failure(status)));
        }
        self.last
            .filter(|last| Instant::now() >= *last)
            .map(|_| (None, Some("its check exceeded the budget and was stopped".to_owned())))
    }
}
