//! The ranks of a split model: processes that each have a part of every layer, and the line between them.
//!
//! Rank 0 leads: it is asked for steps, hands each on as an order before it takes it itself, and every rank takes it alike. What
//! they add to the residual stream is summed at rank 0, in the order of ranks, so that all of them have the same bits.

mod led;
mod line;
mod order;
mod stages;

pub use led::follow;
pub use order::Opening;

use crate::{Engine, Model, ModelError, open};
use architectures::Place;
use device::Device;
use led::Led;
use line::{Frame, Kind, Line};
use order::Order;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Says how the process of a rank ended: `signal: 9 (SIGKILL)`. None where it runs on for so long, or nobody knows.
pub type RankEnded = Box<dyn Fn(usize, Duration) -> Option<String> + Send>;

/// A process whose line has closed ends within this.
const ENDING: Duration = Duration::from_secs(5);

/// This rank's line to the others.
#[derive(Clone)]
pub struct Ranks {
    place: Place,
    star: Arc<Mutex<Star>>,
}

/// All lines end at rank 0.
struct Star {
    rank: usize,
    /// Rank 0's to the others from rank 1 on, or the one of another rank to rank 0.
    lines: Vec<Line>,
    /// The order that is being carried out: what belongs to an older one is of a step that was given up.
    order: u32,
    /// An order that came in place of a sum.
    next: Option<Frame>,
    ended: RankEnded,
}

impl std::fmt::Debug for Ranks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ranks({:?})", self.place)
    }
}

impl Ranks {
    /// Rank 0: waits until all others have joined, each with the secret that it was given.
    ///
    /// # Errors
    /// [`ModelError::Rank`] naming one that ended before, or did not come in time.
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
                // Whoever else knocks is left alone.
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
        Ok(Self { place: Place { rank: 0, ranks }, star: Arc::new(Mutex::new(star)) })
    }

    /// Another rank: joins rank 0.
    ///
    /// # Errors
    /// [`ModelError::Rank`] when it is not there.
    pub fn join(at: SocketAddr, place: Place, secret: &[u8]) -> Result<Self, ModelError> {
        let mut line = Line::new(TcpStream::connect(at).map_err(broken)?).map_err(broken)?;
        line.greet(secret, place.rank as u32).map_err(broken)?;
        let ended = Box::new(|_, _| None);
        let star = Star { rank: place.rank, lines: vec![line], order: 0, next: None, ended };
        Ok(Self { place, star: Arc::new(Mutex::new(star)) })
    }

    /// Which of them this is.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Opens a model on all ranks. `part` is this rank's, the first one's; the others open theirs by themselves.
    ///
    /// # Errors
    /// As [`crate::open`], and [`ModelError::Rank`] when another rank could not open it.
    pub fn open(
        &self,
        part: Model,
        device: Device,
        opening: &Opening,
    ) -> Result<Box<dyn Engine>, ModelError> {
        // The others hold states as this one does.
        let mut ordered = opening.clone();
        ordered.states = part.architecture.scan_states;
        self.order(&Order::Open(ordered))?;
        Ok(Box::new(Led::new(self.open_part(part, device, opening)?, self.clone())))
    }

    fn open_part(
        &self,
        part: Model,
        device: Device,
        opening: &Opening,
    ) -> Result<Box<dyn Engine>, ModelError> {
        let part = Model { ranks: Some(self.clone()), ..part };
        let engine = open(part, device, opening.storage, opening.capacity)?;
        // All of them are there.
        self.sum(&mut [0.0])?;
        Ok(engine)
    }

    /// What this rank has done, if all have done it.
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

    /// Hands an order on to the other ranks.
    fn order(&self, order: &Order) -> Result<(), ModelError> {
        let mut star = self.star();
        star.order = star.order.wrapping_add(1);
        // What is sent is made of numbers and words, which always serialise.
        let text = serde_json::to_vec(order).unwrap_or_default();
        star.tell_all(Kind::Order, &text)
    }

    /// The next order; waits for it.
    fn next(&self) -> Result<Order, ModelError> {
        let mut star = self.star();
        let frame = match star.next.take() {
            Some(frame) => frame,
            None => loop {
                let Ok(frame) = star.lines[0].read() else { return Err(star.gone(0)) };
                match frame.kind {
                    Kind::Order => break frame,
                    // Of a step that this rank gave up.
                    Kind::Values => {}
                    Kind::Fault => return Err(told(&frame)),
                }
            },
        };
        star.order = frame.order;
        serde_json::from_slice(&frame.bytes)
            .map_err(|error| ModelError::rank(0, format!("gives an order that is none: {error}")))
    }

    /// Tells rank 0 that this rank cannot carry out the order.
    fn refuse(&self, why: &ModelError) -> Result<(), ModelError> {
        self.star().tell_all(Kind::Fault, why.to_string().as_bytes())
    }

    /// What rank 0 has, on all ranks.
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

    /// The sum of what all ranks have in the place of each value, the same bits on all of them.
    ///
    /// # Errors
    /// [`ModelError::Rank`] naming the one that has ended; [`ModelError::Call`] naming one that could not do its part.
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
    /// Sends values to one rank, by rank 0.
    fn tell(&mut self, rank: usize, bytes: &[u8]) -> Result<(), ModelError> {
        let (order, at) = (self.order, rank - 1);
        self.lines[at].write(Kind::Values, order, bytes).map_err(|_| self.gone(at))
    }

    /// Sends a frame on all lines.
    fn tell_all(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), ModelError> {
        let order = self.order;
        let sent = |line: &mut Line| line.write(kind, order, bytes);
        let failed = self.lines.iter_mut().map(sent).position(|sent| sent.is_err());
        failed.map_or(Ok(()), |at| Err(self.gone(at)))
    }

    /// What a rank has of a sum.
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
                    return Err(ModelError::fault(format!("rank {rank} cannot go on: {why}")));
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
            Kind::Fault => Err(told(&frame)),
            Kind::Order => {
                self.next = Some(frame);
                Err(ModelError::rank(0, "has given the step up"))
            }
        }
    }

    /// The error of a line that broke; the other ranks are told.
    fn gone(&mut self, at: usize) -> ModelError {
        let rank = if self.rank == 0 { at + 1 } else { 0 };
        let why = (self.ended)(rank, ENDING).map(|why| format!(": {why}")).unwrap_or_default();
        let error = ModelError::rank(rank, format!("has ended{why}"));
        let (order, words) = (self.order, error.to_string());
        for (other, line) in self.lines.iter_mut().enumerate() {
            if other != at {
                // One that is gone too is told by nobody.
                let _ = line.write(Kind::Fault, order, words.as_bytes());
            }
        }
        error
    }
}

/// A line between processes of one host that could not be laid.
fn broken(error: std::io::Error) -> ModelError {
    ModelError::Rank { what: format!("ranks have no line to one another: {error}") }
}

/// What rank 0 says of another one.
fn told(frame: &Frame) -> ModelError {
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
