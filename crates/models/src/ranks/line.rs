//! A connection between two processes: frames over TCP on the loopback interface.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Values of a sum.
    Values,
    /// An order.
    Order,
    /// The error of a rank that cannot continue.
    Fault,
}

/// A message.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    /// The order that it belongs to.
    pub(super) order: u32,
    pub(super) bytes: Vec<u8>,
}

/// Size of a frame's header: its kind, its order, and its length.
const HEAD: usize = 1 + 4 + 8;

/// Maximum size of a frame; the sum over a chunk's tokens is far smaller.
const MOST: u64 = 1 << 32;

/// Time within which a joining process has to identify itself.
const GREETING: Duration = Duration::from_secs(2);

pub(super) struct Line(TcpStream);

impl Line {
    pub(super) fn new(stream: TcpStream) -> Result<Self> {
        // A step waits for each message.
        stream.set_nodelay(true)?;
        stream.set_nonblocking(false)?;
        Ok(Self(stream))
    }

    /// Identifies this process to rank 0.
    pub(super) fn identify(&mut self, secret: &[u8], rank: u32) -> Result<()> {
        self.write(Kind::Order, rank, secret)
    }

    /// Reads which rank joins.
    ///
    /// # Errors
    /// When the secret is wrong.
    pub(super) fn read_rank(&mut self, secret: &[u8]) -> Result<u32> {
        self.0.set_read_timeout(Some(GREETING))?;
        let mut head = [0; HEAD];
        self.0.read_exact(&mut head)?;
        let mut said = vec![0; secret.len()];
        self.0.read_exact(&mut said)?;
        self.0.set_read_timeout(None)?;
        match said == secret {
            true => Ok(parsed(&head)?.1),
            false => Err(ErrorKind::PermissionDenied.into()),
        }
    }

    pub(super) fn write(&mut self, kind: Kind, order: u32, bytes: &[u8]) -> Result<()> {
        let mut frame = Vec::with_capacity(HEAD + bytes.len());
        frame.push(kind as u8);
        frame.extend(order.to_le_bytes());
        frame.extend((bytes.len() as u64).to_le_bytes());
        frame.extend_from_slice(bytes);
        self.0.write_all(&frame)
    }

    pub(super) fn read(&mut self) -> Result<Frame> {
        let mut head = [0; HEAD];
        self.0.read_exact(&mut head)?;
        let (kind, order, length) = parsed(&head)?;
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        Ok(Frame { kind, order, bytes })
    }
}

fn parsed(head: &[u8; HEAD]) -> Result<(Kind, u32, usize)> {
    let wrong = || Error::from(ErrorKind::InvalidData);
    let (kind, rest) = head.split_first().ok_or_else(wrong)?;
    let (order, length) = rest.split_first_chunk().ok_or_else(wrong)?;
    let length = u64::from_le_bytes(*length.first_chunk().ok_or_else(wrong)?);
    let kind = [Kind::Values, Kind::Order, Kind::Fault].into_iter().find(|of| *of as u8 == *kind);
    match kind.filter(|_| length <= MOST) {
        Some(kind) => Ok((kind, u32::from_le_bytes(*order), length as usize)),
        None => Err(wrong()),
    }
}
