//! Every rank except 0: connects to rank 0, checks, sends its run folder, and exits with the fleet's result.

use super::wire::{Kind, Link, read, record, same};
use super::{
    CheckResult, LOOK, RankSettings, RunningCheck, Start, StopMessage, Verdict, folder, of_done,
    of_hello, of_start,
};
use crate::Outcome;
use crate::failure::Failure;
use anyhow::anyhow;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Timeout of one attempt to reach rank 0, and the pause after it.
const ATTEMPT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum bytes of rank 0's challenge.
const CHALLENGE: usize = 64;

pub(super) fn run(own: &RankSettings) -> anyhow::Result<Outcome> {
    let (stream, challenge) = connect(own)?;
    let link = Link::over(stream)?;
    let start: Start = match wait(own, &link, || None::<()>)? {
        FirstMessage::Frame(Kind::Start, content) => {
            record(&content).map_err(|why| lost(own, &why))?
        }
        _ => return Err(lost(own, "it sent no start message")),
    };
    if !same(&start.proof, &of_start(&own.rank.job, &own.hello)) {
        return Err(lost(own, "it belongs to another job"));
    }
    let left = start.millis.map(Duration::from_millis);
    let place = tempfile::tempdir()?;
    let run = place.path().join("run");
    let mut checking = RunningCheck::start(&run, start.gpus.as_deref(), left, own.limit)?;
    let (code, broke) = match wait(own, &link, || checking.ended())? {
        FirstMessage::Else(ended) => ended,
        FirstMessage::Frame(..) => {
            return Err(lost(own, "it sent a message before the check had ended"));
        }
    };
    drop(checking);
    let mut seal = String::new();
    if run.is_dir() {
        folder::send(&run, &link)?;
        seal = folder::seal(&run)?;
    }
    let proof = of_done(&own.rank.job, &challenge, &seal);
    link.send_record(Kind::Done, &CheckResult { code, broke, proof });
    let verdict: Verdict = match wait(own, &link, || None::<()>)? {
        FirstMessage::Frame(Kind::Verdict, content) => {
            record(&content).map_err(|why| lost(own, &why))?
        }
        _ => return Err(lost(own, "it sent no result")),
    };
    match verdict.code {
        0 => Ok(Outcome::Good),
        1 => Ok(Outcome::Bad),
        3 => Ok(Outcome::Unclear),
        code => Err(anyhow!("rank 0 ended with {code}")),
    }
}

/// Connects to rank 0, which may start later than this rank, and sends this rank's identity.
fn connect(own: &RankSettings) -> anyhow::Result<(TcpStream, Vec<u8>)> {
    let until = own.meeting_deadline();
    let (leader, port) = (&own.rank.leader, own.rank.port);
    loop {
        let last = match attempt(own, until) {
            Ok(met) => return Ok(met),
            Err(why) => why,
        };
        let over = Instant::now() + PAUSE >= until;
        if over || own.stopped() {
            let rank = own.rank.rank;
            let what = format!("rank {rank} cannot reach rank 0 at {leader}:{port}: {last}");
            let hint = "check that rank 0 has started and that its host and port can be reached from here; --fleet-port names another port";
            return Err(Failure::hinted(what, hint));
        }
        std::thread::sleep(PAUSE);
    }
}

fn attempt(own: &RankSettings, until: Instant) -> Result<(TcpStream, Vec<u8>), String> {
    let address = (own.rank.leader.as_str(), own.rank.port);
    let said = |error: std::io::Error| error.to_string();
    let mut last = "its name has no address".to_owned();
    for address in address.to_socket_addrs().map_err(said)? {
        let left = until.saturating_duration_since(Instant::now());
        let Some(left) = Some(left.min(ATTEMPT)).filter(|left| !left.is_zero()) else { break };
        let stream = match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => stream,
            Err(error) => {
                last = error.to_string();
                continue;
            }
        };
        stream.set_read_timeout(Some(super::wire::SILENCE)).map_err(said)?;
        let mut stream = stream;
        let (kind, challenge) = read(&mut stream, CHALLENGE)?;
        if kind != Kind::Challenge {
            return Err("the listening process is not rank 0".to_owned());
        }
        let mut hello = own.hello.clone();
        hello.proof = of_hello(&own.rank.job, &challenge, &hello);
        let hello = serde_json::to_vec(&hello).map_err(|error| error.to_string())?;
        super::wire::write(&mut stream, Kind::Hello, &hello).map_err(said)?;
        return Ok((stream, challenge));
    }
    Err(last)
}

/// The first event: a message of rank 0, or something else.
enum FirstMessage<T> {
    Frame(Kind, Vec<u8>),
    Else(T),
}

fn wait<T>(
    own: &RankSettings,
    link: &Link,
    mut other: impl FnMut() -> Option<T>,
) -> anyhow::Result<FirstMessage<T>> {
    loop {
        match link.told.recv_timeout(LOOK) {
            Ok(Ok((Kind::Ends, content))) => {
                let why = record::<StopMessage>(&content).map_or_else(|why| why, |ends| ends.why);
                let what = format!("{why}; rank {} ended with it", own.rank.rank);
                return Err(Failure::hinted(what, "rank 0's folder has the results until then"));
            }
            Ok(Ok((kind, content))) => return Ok(FirstMessage::Frame(kind, content)),
            Ok(Err(why)) => return Err(lost(own, &why)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(lost(own, "its connection was lost"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(other) = other() {
            return Ok(FirstMessage::Else(other));
        }
        if own.stopped() {
            return Err(Failure::hinted(
                format!("rank {} was asked to end", own.rank.rank),
                "the signal came from outside: a scheduler's time limit, or Ctrl-C",
            ));
        }
    }
}

fn lost(own: &RankSettings, why: &str) -> anyhow::Error {
    let what = format!(
        "rank 0 ({}) was lost: {why}; rank {} ended with it",
        own.rank.leader, own.rank.rank
    );
    Failure::hinted(what, "check its host and the launcher's log")
}
