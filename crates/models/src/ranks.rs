//! Ranks of a split model: processes that each have a part of the model, and the connections between them.
//!
//! Rank 0 leads. It receives the requests for steps, sends each as an order to the other ranks, and all ranks execute
//! it. Contributions to the residual stream are summed at rank 0 in the order of ranks, so that all ranks have the same
//! bits.

mod leader;
mod line;
mod order;
mod stages;

pub use leader::follow;
pub use order::Opening;

use crate::{Engine, Model, ModelError, open};
use architectures::ShardRank;
use device::Device;
use leader::LeaderEngine;
use line::{Frame, Kind, Line};
use order::Order;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Describes how the process of a rank ended: `signal: 9 (SIGKILL)`. `None` if it is still running after the duration,
/// or unknown.
pub type RankEnded = Box<dyn Fn(usize, Duration) -> Option<String> + Send>;

/// Time within which a process ends after its connection has closed.
const ENDING: Duration = Duration::from_secs(5);

/// This rank's connections to the others.
#[derive(Clone)]
pub struct Ranks {
    place: ShardRank,
    star: Arc<Mutex<Star>>,
}

/// A star topology around rank 0.
struct Star {
    rank: usize,
    /// Rank 0: connections to the others, starting at rank 1. Other ranks: the connection to rank 0.
    lines: Vec<Line>,
    /// The current order. Frames of older orders belong to abandoned steps.
    order: u32,
    /// An order that arrived instead of a sum.
    next: Option<Frame>,
    ended: RankEnded,
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ranks({:?})", self.place)
    }
}

impl Ranks {
    /// Rank 0: waits until all others have joined with their secret.
    ///
    /// # Errors
    /// [`ModelError::Rank`] naming one that has ended or did not join in time.
    pub fn lead(
        listener: &TcpListener,
        ranks: usize,
        secret: &[u8],
        within: Duration,
        ended: RankEnded,
    ) -> Result<Self, ModelError> {
        let until = Instant::now() + within;
        let mut lines: Vec<Option<Line>> = (1..ranks).map(|_| None).collect();
        listener.set_nonblocking(true).map_err(broken)?;
        while let Some(missing) = lines.iter().position(Option::is_none) {
            let rank = missing + 1;
            if let Ok((stream, _)) = listener.accept() {
                // Connections without the secret are ignored.
                let place = |line: &mut Line| Some(line.welcome(secret).ok()? as usize);
                let line = Line::new(stream).ok();
                let joined = line.and_then(|mut line| Some((place(&mut line)?, line)));
                if let Some((rank, line)) = joined
                    && let Some(free) = lines.get_mut(rank.wrapping_sub(1))
                {
                    *free = Some(line);
                }
                continue;
            }
            let gone = (1..ranks).find_map(|rank| Some((rank, ended(rank, Duration::ZERO)?)));
            if let Some((rank, why)) = gone {
                return Err(ModelError::rank(rank, format!("has ended: {why}")));
            }
            if Instant::now() > until {
                return Err(ModelError::rank(rank, "did not come in time"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let lines = lines.into_iter().flatten().collect();
        let star = Star { rank: 0, lines, order: 0, next: None, ended };
        Ok(Self { place: ShardRank { rank: 0, ranks }, star: Arc::new(Mutex::new(star)) })
    }

    /// Another rank: joins rank 0.
    ///
    /// # Errors
    /// [`ModelError::Rank`] when rank 0 is not reachable.
    pub fn join(at: SocketAddr, place: ShardRank, secret: &[u8]) -> Result<Self, ModelError> {
        let mut line = Line::new(TcpStream::connect(at).map_err(broken)?).map_err(broken)?;
        line.greet(secret, place.rank as u32).map_err(broken)?;
        let ended = Box::new(|_, _| None);
        let star = Star { rank: place.rank, lines: vec![line], order: 0, next: None, ended };
        Ok(Self { place, star: Arc::new(Mutex::new(star)) })
    }

    /// This rank's number and the number of ranks.
    pub fn place(&self) -> ShardRank {
        self.place
    }

    /// Opens a model on all ranks. `part` is this rank's part, the first one; the others open theirs on the order.
    ///
    /// # Errors
    /// As [`crate::open`], and [`ModelError::Rank`] when another rank could not open it.
    pub fn open(
        &self,
        part: Model,
        device: Device,
        opening: &Opening,
    ) -> Result<Box<dyn Engine>, ModelError> {
        // The other ranks use the same state type.
        let mut ordered = opening.clone();
        ordered.states = part.architecture.scan_states;
        self.order(&Order::Open(ordered))?;
        Ok(Box::new(LeaderEngine::new(self.open_part(part, device, opening)?, self.clone())))
    }

    fn open_part(
        &self,
        part: Model,
        device: Device,
        opening: &Opening,
    ) -> Result<Box<dyn Engine>, ModelError> {
        let part = Model { ranks: Some(self.clone()), ..part };
        let engine = open(part, device, opening.storage, opening.capacity)?;
        // Waits until all ranks have opened it.
        self.sum(&mut [0.0])?;
        Ok(engine)
    }

    /// The result of an operation, if it succeeded on all ranks.
    ///
    /// # Errors
    /// This rank's own, or [`ModelError::Call`] of another rank's.
    fn alike<T>(&self, done: Result<T, ModelError>) -> Result<T, ModelError> {
        let mut all = [if done.is_ok() { 1.0 } else { 0.0 }];
        self.sum(&mut all)?;
        match done {
            Ok(_) if (all[0] as usize) < self.place.ranks => {
                Err(ModelError::fault("another rank could not do its part"))
            }
            done => done,
        }
    }

    fn star(&self) -> MutexGuard<'_, Star> {
        self.star.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an order to the other ranks.
    fn order(&self, order: &Order) -> Result<(), ModelError> {
        let mut star = self.star();
        star.order = star.order.wrapping_add(1);
        // Orders contain numbers and strings, which always serialize.
        let text = serde_json::to_vec(order).unwrap_or_default();
        star.tell_all(Kind::Order, &text)
    }

    /// Waits for the next order.
    fn next(&self) -> Result<Order, ModelError> {
        let mut star = self.star();
        let frame = match star.next.take() {
            Some(frame) => frame,
            None => loop {
                let Ok(frame) = star.lines[0].read() else { return Err(star.gone(0)) };
                match frame.kind {
                    Kind::Order => break frame,
                    // Belongs to a step that this rank abandoned.
                    Kind::Values => {}
                    Kind::Fault => return Err(reported_fault(&frame)),
                }
            },
        };
        star.order = frame.order;
        serde_json::from_slice(&frame.bytes)
            .map_err(|error| ModelError::rank(0, format!("gives an order that is none: {error}")))
    }

    /// Reports to rank 0 that this rank cannot execute the order.
    fn refuse(&self, why: &ModelError) -> Result<(), ModelError> {
        self.star().tell_all(Kind::Fault, why.to_string().as_bytes())
    }

    /// Broadcasts bytes from rank 0 to all ranks.
    ///
    /// # Errors
    /// [`ModelError::Rank`] naming the one that has ended.
    pub(crate) fn hand_out(&self, own: Vec<u8>) -> Result<Vec<u8>, ModelError> {
        let mut star = self.star();
        if self.place.rank > 0 {
            return star.answer();
        }
        star.tell_all(Kind::Values, &own)?;
        Ok(own)
    }

    /// All-reduces values: the element-wise sum over ranks, with the same bits on all of them.
    ///
    /// # Errors
    /// [`ModelError::Rank`] naming the one that has ended; [`ModelError::Call`] naming one that failed.
    pub(crate) fn sum(&self, values: &mut [f32]) -> Result<(), ModelError> {
        let mut star = self.star();
        if self.place.rank > 0 {
            star.tell_all(Kind::Values, &bytes_of(values))?;
            let sum = star.answer()?;
            return put(&sum, 0, values, |value, sum| *value = sum);
        }
        for rank in 1..self.place.ranks {
            let part = star.part(rank)?;
            put(&part, rank, values, |value, part| *value += part)?;
        }
        star.tell_all(Kind::Values, &bytes_of(values))
    }
}

impl Star {
    /// Sends values to one rank, through rank 0.
    fn tell(&mut self, rank: usize, bytes: &[u8]) -> Result<(), ModelError> {
        let (order, at) = (self.order, rank - 1);
        self.lines[at].write(Kind::Values, order, bytes).map_err(|_| self.gone(at))
    }

    /// Sends a frame on all connections.
    fn tell_all(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), ModelError> {
        let order = self.order;
        let sent = |line: &mut Line| line.write(kind, order, bytes);
        let failed = self.lines.iter_mut().map(sent).position(|sent| sent.is_err());
        failed.map_or(Ok(()), |at| Err(self.gone(at)))
    }

    /// A rank's contribution to a sum.
    fn part(&mut self, rank: usize) -> Result<Vec<u8>, ModelError> {
        let at = rank - 1;
        loop {
            let Ok(frame) = self.lines[at].read() else { return Err(self.gone(at)) };
            if frame.order != self.order {
                continue;
            }
            match frame.kind {
                Kind::Values => return Ok(frame.bytes),
                Kind::Fault => {
                    let why = String::from_utf8_lossy(&frame.bytes);
                    return Err(ModelError::fault(format!("rank {rank} failed: {why}")));
                }
                Kind::Order => return Err(ModelError::rank(rank, "gives orders")),
            }
        }
    }

    /// The sum from rank 0.
    fn answer(&mut self) -> Result<Vec<u8>, ModelError> {
        let Ok(frame) = self.lines[0].read() else { return Err(self.gone(0)) };
        match frame.kind {
            Kind::Values => Ok(frame.bytes),
            Kind::Fault => Err(reported_fault(&frame)),
            Kind::Order => {
                self.next = Some(frame);
                Err(ModelError::rank(0, "has given the step up"))
            }
        }
    }

    /// The error of a broken connection; the other ranks are informed.
    fn gone(&mut self, at: usize) -> ModelError {
        let rank = if self.rank == 0 { at + 1 } else { 0 };
        let why = (self.ended)(rank, ENDING).map(|why| format!(": {why}")).unwrap_or_default();
        let error = ModelError::rank(rank, format!("has ended{why}"));
        let (order, words) = (self.order, error.to_string());
        for (other, line) in self.lines.iter_mut().enumerate() {
            if other != at {
                // A second broken connection is not reported.
                let _ = line.write(Kind::Fault, order, words.as_bytes());
            }
        }
        error
    }
}

/// The error of a connection that could not be established.
fn broken(error: std::io::Error) -> ModelError {
    ModelError::Rank { what: format!("ranks have no line to one another: {error}") }
}

/// The error that rank 0 reports about another rank.
fn reported_fault(frame: &Frame) -> ModelError {
    ModelError::Rank { what: String::from_utf8_lossy(&frame.bytes).into_owned() }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn put(
    bytes: &[u8],
    rank: usize,
    values: &mut [f32],
    with: impl Fn(&mut f32, f32),
) -> Result<(), ModelError> {
    if bytes.len() != size_of_val(values) {
        let (got, wanted) = (bytes.len() / size_of::<f32>(), values.len());
        return Err(ModelError::rank(rank, format!("has {got} values of a sum of {wanted}")));
    }
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        with(value, f32::from_le_bytes(*bytes));
    }
    Ok(())
}
