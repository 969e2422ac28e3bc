//! The protocol between ranks: frames over TCP, with a heartbeat in both directions.
//!
//! A frame is its kind (one byte), the length of its content (four bytes, little-endian) and the content. Frames longer
//! than [`MAX_CONTENT`] are refused, so that no peer can exhaust memory.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Maximum bytes of a frame's content.
pub(super) const MAX_CONTENT: usize = 1 << 20;
/// Heartbeat interval of an idle side.
const BEAT: Duration = Duration::from_secs(1);
/// A side that sends nothing for this long is lost.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// Queued frames in each direction.
const WAITING: usize = 4;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rank 0 to any client: a nonce of this connection.
    Challenge = 1,
    /// A rank's first message: its identity, with the proof that it belongs to this job.
    Hello,
    /// All ranks are connected: start.
    Start,
    /// Heartbeat.
    Beat,
    /// Header of a file of a run folder.
    File,
    /// Bytes of that file.
    Data,
    /// The run folder is complete, or why there is none.
    Done,
    /// A rank was lost: stop.
    Ends,
    /// The result of the whole fleet.
    Verdict,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Challenge,
        Self::Hello,
        Self::Start,
        Self::Beat,
        Self::File,
        Self::Data,
        Self::Done,
        Self::Ends,
        Self::Verdict,
    ];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A frame.
pub(super) type Frame = (Kind, Vec<u8>);

/// Writes a frame.
pub(super) fn write(to: &mut impl Write, kind: Kind, content: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(5 + content.len());
    frame.push(kind as u8);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(content);
    to.write_all(&frame)?;
    to.flush()
}

/// Reads a frame of at most `most` bytes; the error is a sentence.
pub(super) fn read(from: &mut impl Read, most: usize) -> Result<Frame, String> {
    let said = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            format!("it sent nothing for {} s", SILENCE.as_secs())
        }
        std::io::ErrorKind::UnexpectedEof => "its connection was closed".to_owned(),
        _ => format!("its connection broke: {error}"),
    };
    let mut head = [0_u8; 5];
    from.read_exact(&mut head).map_err(said)?;
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length) as usize;
    let kind = Kind::of(kind).filter(|_| length <= most);
    let Some(kind) = kind else {
        return Err("it does not use the protocol of a fleet".to_owned());
    };
    let mut content = vec![0; length];
    from.read_exact(&mut content).map_err(said)?;
    Ok((kind, content))
}

/// A record from a frame.
pub(super) fn record<T: DeserializeOwned>(content: &[u8]) -> Result<T, String> {
    serde_json::from_slice(content).map_err(|error| format!("it sent an invalid message: {error}"))
}

/// A connection with its heartbeat. When dropped, it sends its queued frames and closes.
pub(super) struct Link {
    out: Option<SyncSender<Frame>>,
    pub(super) told: Receiver<Result<Frame, String>>,
    writer: Option<std::thread::JoinHandle<()>>,
    stream: TcpStream,
}

impl Link {
    pub(super) fn over(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let (mut reads, mut writes) = (stream.try_clone()?, stream.try_clone()?);
        let (out, waiting) = sync_channel::<Frame>(WAITING);
        let (tell, told) = sync_channel(WAITING);
        std::thread::spawn(move || {
            loop {
                let frame = match read(&mut reads, MAX_CONTENT) {
                    Ok((Kind::Beat, _)) => continue,
                    frame => frame,
                };
                let ends = frame.is_err();
                if tell.send(frame).is_err() || ends {
                    return;
                }
            }
        });
        let writer = std::thread::spawn(move || {
            loop {
                let (kind, content) = match waiting.recv_timeout(BEAT) {
                    Ok(frame) => frame,
                    Err(RecvTimeoutError::Timeout) => (Kind::Beat, Vec::new()),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                // The other thread detects and reports the reason.
                if write(&mut writes, kind, &content).is_err() {
                    return;
                }
            }
        });
        Ok(Self { out: Some(out), told, writer: Some(writer), stream })
    }

    /// Sends a frame; a lost peer is detected by the receiving thread.
    pub(super) fn send(&self, kind: Kind, content: &[u8]) {
        if let Some(out) = &self.out {
            let _ = out.send((kind, content.to_vec()));
        }
    }

    /// The sending half, for another thread; it keeps the connection open.
    pub(super) fn frame_sender(&self) -> Option<SyncSender<Frame>> {
        self.out.clone()
    }

    /// Sends a record.
    pub(super) fn send_record(&self, kind: Kind, record: &impl Serialize) {
        self.send(kind, &serde_json::to_vec(record).unwrap_or_default());
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        drop(self.out.take());
        let _ = self.writer.take().map(std::thread::JoinHandle::join);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A proof that only ranks of one job can compute: HMAC-SHA256 (RFC 2104) with their shared secret.
///
/// The secret never crosses the network, and a proof is valid for one connection, because it covers the peer's nonce.
pub(super) fn proof(secret: &str, parts: &[&[u8]]) -> String {
    const BLOCK: usize = 64;
    let mut key = [0_u8; BLOCK];
    match secret.as_bytes() {
        long if long.len() > BLOCK => key[..32].copy_from_slice(&Sha256::digest(long)),
        short => key[..short.len()].copy_from_slice(short),
    }
    let mut inner = Sha256::new_with_prefix(key.map(|byte| byte ^ 0x36));
    for part in parts {
        // With their lengths, so that different lists of parts are different messages.
        inner.update((part.len() as u64).to_le_bytes());
        inner.update(part);
    }
    let mut outer = Sha256::new_with_prefix(key.map(|byte| byte ^ 0x5c));
    outer.update(inner.finalize());
    outer.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares two proofs in constant time.
pub(super) fn same(one: &str, other: &str) -> bool {
    let differs = one.bytes().zip(other.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differs == 0
}

/// Unpredictable bytes, from the seeds that the standard library gets from the system for its hash maps.
pub(super) fn drawn() -> [u8; 32] {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut bytes = [0; 32];
    for piece in bytes.chunks_mut(8) {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        piece.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_and_invalid_ones_are_rejected() {
        let mut bytes = Vec::new();
        write(&mut bytes, Kind::Data, b"abc").unwrap();
        write(&mut bytes, Kind::Beat, b"").unwrap();
        let mut from = bytes.as_slice();
        assert_eq!(read(&mut from, 8).unwrap(), (Kind::Data, b"abc".to_vec()));
        assert_eq!(read(&mut from, 8).unwrap(), (Kind::Beat, Vec::new()));
        assert_eq!(read(&mut from, 8).unwrap_err(), "its connection was closed");
        let odd = "it does not use the protocol of a fleet";
        // A frame that is too long, one of an unknown kind, and a browser.
        assert_eq!(read(&mut bytes.as_slice(), 2).unwrap_err(), odd);
        assert_eq!(read(&mut &[0, 0, 0, 0, 0][..], 8).unwrap_err(), odd);
        assert_eq!(read(&mut &b"GET / HTTP/1.1\r\n"[..], MAX_CONTENT).unwrap_err(), odd);
    }

    #[test]
    fn proof_depends_on_the_secret_and_every_part() {
        // RFC 4231's second case, with the data as one part after its length.
        let of = |secret, parts: &[&[u8]]| proof(secret, parts);
        let first = of("Jefe", &[b"what do ya want ", b"for nothing?"]);
        assert_eq!(first.len(), 64);
        assert!(same(&first, &of("Jefe", &[b"what do ya want ", b"for nothing?"])));
        for other in [
            of("jefe", &[b"what do ya want ", b"for nothing?"]),
            of("Jefe", &[b"what do ya want", b" for nothing?"]),
            of("Jefe", &[b"what do ya want for nothing?"]),
            of(&"Jefe".repeat(40), &[b"what do ya want ", b"for nothing?"]),
            String::new(),
        ] {
            assert!(!same(&first, &other));
        }
        assert_ne!(drawn(), drawn());
    }

    #[test]
    fn silent_and_closed_peers_give_different_errors() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let (one, other) = (TcpStream::connect(to).unwrap(), server.accept().unwrap().0);
        let (one, other) = (Link::over(one).unwrap(), Link::over(other).unwrap());
        one.send(Kind::Data, b"abc");
        assert_eq!(other.told.recv().unwrap().unwrap(), (Kind::Data, b"abc".to_vec()));
        // A heartbeat keeps a connection open without a message.
        assert!(other.told.recv_timeout(Duration::from_millis(1500)).is_err());
        drop(one);
        assert_eq!(other.told.recv().unwrap().unwrap_err(), "its connection was closed");
    }
}
