//! One connection of rank 0: authenticates a rank and receives its messages. Connections that cannot prove to belong to
//! this job are ignored.

use crate::commands::check::fleet::folder::{IncomingFolder, seal};
use crate::commands::check::fleet::wire::{
    Frame, Kind, Link, SILENCE, drawn, read, record, same, write,
};
use crate::commands::check::fleet::{
    CheckResult, Hello, RankSettings, StopMessage, of_done, of_hello,
};
use serde::Serialize;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, SyncSender};

/// Maximum bytes of a rank's first message; a host with sixteen GPUs sends a kilobyte.
const HELLO: usize = 16 << 10;
/// Additional connections that may be open at once, for example from a port scanner.
const STRAY: u32 = 32;

/// Events from connections to rank 0.
pub(super) enum Event {
    Joined(RemoteRank),
    /// A rank's check has ended, and its run folder was received.
    Done(u32, CheckResult),
    Lost(u32, String),
}

/// A connected rank.
pub(super) struct RemoteRank {
    pub(super) hello: Hello,
    out: SyncSender<Frame>,
}

impl RemoteRank {
    pub(super) fn send_record(&self, kind: Kind, record: &impl Serialize) {
        let _ = self.out.send((kind, serde_json::to_vec(record).unwrap_or_default()));
    }
}

/// State shared by all connections.
struct FleetState {
    version: String,
    size: u32,
    job: String,
    out: PathBuf,
    open: AtomicU32,
}

/// Accepts connections for the lifetime of this process.
pub(super) fn accept(listener: TcpListener, own: &RankSettings, out: &Path, send: Sender<Event>) {
    let known = Arc::new(FleetState {
        version: own.hello.version.clone(),
        size: own.rank.size,
        job: own.rank.job.clone(),
        out: out.to_owned(),
        open: AtomicU32::new(0),
    });
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (known, send) = (Arc::clone(&known), send.clone());
            if known.open.fetch_add(1, Ordering::Relaxed) >= known.size + STRAY {
                known.open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            std::thread::spawn(move || {
                serve(stream, &known, &send);
                known.open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
}

fn serve(mut stream: TcpStream, known: &FleetState, send: &Sender<Event>) {
    let challenge = drawn();
    // A foreign connection is not an event of any rank.
    let Some(hello) = authenticated(&mut stream, &challenge, known) else { return };
    let Ok(link) = Link::over(stream) else { return };
    if let Some(why) = refused(&hello, known) {
        return link.send_record(Kind::Ends, &StopMessage { why });
    }
    let Some(out) = link.frame_sender() else { return };
    let rank = hello.rank;
    if send.send(Event::Joined(RemoteRank { hello, out })).is_err() {
        return;
    }
    let event = match arrives(rank, &link, &challenge, known) {
        Ok(done) => Event::Done(rank, done),
        Err(why) => Event::Lost(rank, why),
    };
    let lost = matches!(event, Event::Lost(..));
    if send.send(event).is_err() || lost {
        return;
    }
    // The rank waits for the verdict; closing the connection now counts as a loss.
    while let Ok(told) = link.told.recv() {
        if let Err(why) = told {
            let _ = send.send(Event::Lost(rank, why));
        }
    }
}

/// The rank that connected, once it is authenticated.
fn authenticated(stream: &mut TcpStream, challenge: &[u8], known: &FleetState) -> Option<Hello> {
    stream.set_read_timeout(Some(SILENCE)).ok()?;
    stream.set_write_timeout(Some(SILENCE)).ok()?;
    write(stream, Kind::Challenge, challenge).ok()?;
    let (kind, content) = read(stream, HELLO).ok()?;
    let hello: Hello = record(&content).ok().filter(|_| kind == Kind::Hello)?;
    same(&hello.proof, &of_hello(&known.job, challenge, &hello)).then_some(hello)
}

/// Why a rank of this job cannot take part.
fn refused(hello: &Hello, known: &FleetState) -> Option<String> {
    let Hello { rank, size, host, version, .. } = hello;
    if *version != known.version {
        return Some(format!(
            "rank {rank} ({host}) is firstlight {version}, rank 0 is {}",
            known.version
        ));
    }
    if *size != known.size || !(1..known.size).contains(rank) {
        return Some(format!(
            "rank {rank} ({host}) counts {size} ranks, rank 0 counts {}",
            known.size
        ));
    }
    None
}

/// Receives the run folder, which gets its name once it is complete.
fn arrives(
    rank: u32,
    link: &Link,
    challenge: &[u8],
    known: &FleetState,
) -> Result<CheckResult, String> {
    let place = known.out.join(format!(".rank-{rank}"));
    let mut arriving = IncomingFolder::into(place.clone());
    loop {
        let told = link
            .told
            .recv()
            .map_err(|_| "its connection was lost".to_owned())
            .and_then(|told| told);
        let came = match told {
            Ok((Kind::File, content)) => record(&content).and_then(|sent| arriving.file(sent)),
            Ok((Kind::Data, content)) => arriving.data(&content),
            Ok((Kind::Done, content)) => {
                let done: CheckResult = record(&content)?;
                arriving.whole()?;
                let mut there = String::new();
                if place.is_dir() {
                    there = seal(&place)
                        .map_err(|error| format!("its folder cannot be read: {error:#}"))?;
                }
                if !same(&done.proof, &of_done(&known.job, challenge, &there)) {
                    return Err("its run folder differs from the one that it announced".to_owned());
                }
                if place.is_dir() {
                    let name = known.out.join(format!("rank-{rank}"));
                    std::fs::rename(&place, name)
                        .map_err(|error| format!("its folder cannot be saved: {error}"))?;
                }
                return Ok(done);
            }
            Ok(_) => Err("it sent an unexpected message".to_owned()),
            Err(why) => Err(why),
        };
        if let Err(why) = came {
            // The partial result is not a run folder.
            let _ = std::fs::remove_dir_all(&place);
            return Err(why);
        }
    }
}
