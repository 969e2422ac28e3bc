//! Rank 0: listens, starts all ranks, receives their run folders, and stops all when one is lost.

mod connection;

use super::{
    LOOK, RankSettings, RunningCheck, Start, StopMessage, Verdict, compare, of_start, shares,
};
use crate::Outcome;
use crate::failure::Failure;
use crate::output::Output;
use crate::redact::Redaction;
use crate::run_folder::{self, RunFolder};
use connection::{Event, RemoteRank, accept};
use facts::RankPart;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A rank counts as hanging when it takes this much, and this many times, longer than the first finished one.
const LONGER: Duration = Duration::from_secs(120);
const TIMES: u32 = 2;
/// Time limit for the last messages to the other ranks.
const GOODBYE: Duration = Duration::from_secs(2);

/// The state of a rank.
pub(super) struct RankState {
    pub(super) part: RankPart,
    /// Exit status of its check; `None` while it runs, and if it did not finish.
    pub(super) code: Option<i32>,
    pub(super) done: bool,
}

/// The state of rank 0.
struct Fleet<'a> {
    own: RankSettings,
    out: &'a Path,
    far: BTreeMap<u32, RemoteRank>,
    events: Receiver<Event>,
    known: Vec<RankState>,
    began: Instant,
}

/// Why the fleet stops early, in one sentence that names the lost rank.
struct FleetFailure(String);

pub(super) fn run(own: RankSettings, out: &Path, output: &Output) -> anyhow::Result<Outcome> {
    run_folder::check_creatable(out)?;
    let listener = listen(own.rank.port)?;
    let mut folder = RunFolder::create(Some(out), &own.hello.host, Redaction::from_environment())?;
    let (send, events) = channel();
    accept(listener, &own, out, send);
    let known = (0..own.rank.size).map(|rank| RankState {
        part: RankPart { rank, ..RankPart::default() },
        code: None,
        done: false,
    });
    let mut fleet = Fleet {
        known: known.collect(),
        own,
        out,
        far: BTreeMap::new(),
        events,
        began: Instant::now(),
    };
    let until = fleet.own.meeting_deadline();
    let (launcher, size) = (fleet.own.rank.launcher, fleet.own.rank.size);
    if !output.json {
        let (leader, port) = (&fleet.own.rank.leader, fleet.own.rank.port);
        output.text(&format!(
            "fleet: {size} ranks by {launcher}; rank 0 listens on {leader}:{port}"
        ))?;
    }
    let ended = fleet.wait_for_ranks(until).and_then(|()| fleet.check());
    folder.note(&match &ended {
        Ok(()) => "every rank has finished".to_owned(),
        Err(FleetFailure(why)) => why.clone(),
    });
    if let Err(FleetFailure(why)) = &ended {
        // The others are stopped first; the report may take a moment.
        fleet.send_to_all(super::wire::Kind::Ends, &StopMessage { why: why.clone() });
    }
    let because = ended.as_ref().err().map(|FleetFailure(why)| why.as_str());
    let compared = compare::of(launcher, out, fleet.known.iter_mut(), because);
    let report = compared.report;
    let outcome = compared.outcome;
    let code = match (&ended, outcome) {
        (Err(_), _) => 2,
        (_, Outcome::Good) => 0,
        (_, Outcome::Bad) => 1,
        (_, Outcome::Unclear) => 3,
    };
    let written = compare::write(&report, &mut folder, ended.is_ok());
    let said = written.and_then(|()| {
        if output.json {
            return output.document(&report);
        }
        output.text(&report::terminal::fleet(&report, output.style()))?;
        output.text(&format!("report: {}", folder.path().join("report.html").display()))
    });
    // Last, because launchers kill all ranks as soon as one has exited with findings.
    if ended.is_ok() {
        fleet.send_to_all(super::wire::Kind::Verdict, &Verdict { code });
    }
    fleet.flush_messages();
    said?;
    match ended {
        Ok(()) => Ok(outcome),
        Err(FleetFailure(why)) => {
            let hint = format!("{} has the results until then", out.display());
            Err(Failure::hinted(why, hint))
        }
    }
}

/// Listens on all addresses: a host's name often resolves to its loopback address locally, and to another address
/// elsewhere.
fn listen(port: u16) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
    listener.map_err(|error| {
        let what = format!("rank 0 cannot listen on port {port}: {error}");
        Failure::hinted(what, "the check of another fleet may use it; --fleet-port selects another port, the same on all ranks")
    })
}

impl Fleet<'_> {
    /// Waits until every rank is connected.
    fn wait_for_ranks(&mut self, until: Instant) -> Result<(), FleetFailure> {
        while self.far.len() + 1 < self.known.len() {
            match self.events.recv_timeout(LOOK) {
                Ok(Event::Joined(far)) => {
                    let rank = far.hello.rank;
                    if self.far.contains_key(&rank) {
                        let why = format!("two processes claim to be rank {rank}");
                        far.send_record(super::wire::Kind::Ends, &StopMessage { why: why.clone() });
                        return Err(FleetFailure(why));
                    }
                    self.known[rank as usize].part.host.clone_from(&far.hello.host);
                    self.far.insert(rank, far);
                }
                Ok(Event::Lost(rank, why)) => return Err(self.lost(rank, &why)),
                Ok(Event::Done(..)) | Err(RecvTimeoutError::Disconnected) => {}
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.own.stopped() {
                return Err(FleetFailure("rank 0 received a signal to stop".to_owned()));
            }
            if Instant::now() >= until {
                let there = |rank: &u32| *rank == 0 || self.far.contains_key(rank);
                let missing: Vec<String> = (0..self.own.rank.size)
                    .filter(|rank| !there(rank))
                    .map(|rank| rank.to_string())
                    .collect();
                let seconds = self.began.elapsed().as_secs();
                let s = if missing.len() == 1 { "" } else { "s" };
                let why =
                    format!("rank{s} {} did not connect within {seconds} s", missing.join(", "));
                return Err(FleetFailure(why));
            }
        }
        self.known[0].part.host.clone_from(&self.own.hello.host);
        Ok(())
    }

    /// Starts all ranks and waits until every one is done.
    fn check(&mut self) -> Result<(), FleetFailure> {
        let hellos: Vec<_> = std::iter::once(&self.own.hello)
            .chain(self.far.values().map(|far| &far.hello))
            .collect();
        let shares = shares::of(&hellos);
        let left = self.own.end.map(|end| end.saturating_duration_since(Instant::now()));
        let millis = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        for (far, gpus) in self.far.values().zip(shares.iter().skip(1)) {
            let proof = of_start(&self.own.rank.job, &far.hello);
            far.send_record(super::wire::Kind::Start, &Start { gpus: gpus.clone(), millis, proof });
        }
        let began = Instant::now();
        let gpus = shares.first().and_then(Option::as_deref);
        let started = RunningCheck::start(&self.out.join("rank-0"), gpus, left, self.own.limit);
        let mut checking = match started {
            Ok(checking) => Some(checking),
            Err(error) => return Err(FleetFailure(format!("rank 0 cannot check: {error:#}"))),
        };
        let mut hangs_at = None;
        while let Some(waiting) =
            self.known.iter().find(|known| !known.done).map(|known| known.part.rank)
        {
            match self.events.recv_timeout(LOOK) {
                Ok(Event::Done(rank, done)) => {
                    let known = &mut self.known[rank as usize];
                    known.done = true;
                    known.code = done.code;
                    known.part.broke = done.broke;
                }
                Ok(Event::Lost(rank, why)) => return Err(self.lost(rank, &why)),
                Ok(Event::Joined(far)) => {
                    let why = format!("there is a rank {} already", far.hello.rank);
                    far.send_record(super::wire::Kind::Ends, &StopMessage { why });
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if let Some((code, broke)) = checking.as_mut().and_then(RunningCheck::ended) {
                checking = None;
                let known = &mut self.known[0];
                (known.done, known.code, known.part.broke) = (true, code, broke);
            }
            if hangs_at.is_none() && self.known.iter().any(|known| known.done) {
                hangs_at = Some(Instant::now() + LONGER + TIMES * began.elapsed());
            }
            let now = Instant::now();
            if self.own.end.is_some_and(|end| now >= end) {
                return Err(self.lost(waiting, "it did not finish within the budget"));
            }
            if hangs_at.is_some_and(|at| now >= at) {
                return Err(self.lost(waiting, "it did not finish long after the other ranks"));
            }
            if self.own.stopped() {
                return Err(FleetFailure("rank 0 received a signal to stop".to_owned()));
            }
        }
        Ok(())
    }

    fn lost(&mut self, rank: u32, why: &str) -> FleetFailure {
        let seconds = self.began.elapsed().as_secs();
        let part = &mut self.known[rank as usize].part;
        part.broke = Some(why.to_owned());
        let why = format!("rank {rank} ({}) was lost after {seconds} s: {why}", part.host);
        self.far.remove(&rank);
        FleetFailure(why)
    }

    fn send_to_all(&self, kind: super::wire::Kind, record: &impl Serialize) {
        self.far.values().for_each(|far| far.send_record(kind, record));
    }

    /// Waits a moment for the last messages to be sent.
    fn flush_messages(self) {
        let until = Instant::now() + GOODBYE;
        let mut there = self.far;
        // A rank closes its connection after receiving the message.
        while !there.is_empty() {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Lost(rank, _)) => drop(there.remove(&rank)),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}
