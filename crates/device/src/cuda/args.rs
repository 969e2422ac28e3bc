//! Arguments of a kernel, in the order of its parameters, which can be launched again over memory that lies elsewhere.

use super::context::Context;
use super::driver::RawTensorMap;
use super::memory::bytes_of;
use super::{Buffer, CudaError, TensorMap};
use std::ffi::c_void;
use std::sync::Arc;

/// One cache line: every argument starts at one, which satisfies any alignment a parameter can have.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Where an argument's bytes stand, and what it points to.
#[derive(Debug, Clone, Copy)]
struct Argument {
    line: usize,
    bytes: usize,
    /// The operand of a plan that it points into, and the address it was given then.
    place: Option<(u8, u64)>,
}

/// Most parameters of a kernel.
const MOST: usize = 64;
/// Most of them that are descriptors for the copy engine.
const MOST_MAPS: usize = 16;

/// Arguments of a kernel, in the order of its parameters.
#[derive(Debug, Clone, Default)]
pub struct Args {
    lines: Vec<Line>,
    arguments: Vec<Argument>,
    /// The device whose memory they point to.
    device: Option<Arc<Context>>,
    mixed: bool,
}

/// Where the operands of a plan lie: each one's address when it was planned, and the one to launch with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moves<'a> {
    /// Addresses that the plan's arguments hold, by the operand's number ([`Buffer::as_operand`]).
    pub planned: &'a [u64],
    /// Addresses to launch with, as many.
    pub now: &'a [u64],
}

impl Moves<'_> {
    /// How far an operand has moved, modulo 2^64.
    fn of(&self, operand: u8) -> u64 {
        let at = usize::from(operand);
        match (self.planned.get(at), self.now.get(at)) {
            (Some(planned), Some(now)) => now.wrapping_sub(*planned),
            _ => 0,
        }
    }
}

/// Pointers to a launch's arguments, and the values of those that have moved.
pub(super) struct Placed {
    pointers: [*const c_void; MOST],
    words: [u64; MOST],
    maps: [Map; MOST_MAPS],
}

/// A descriptor where the driver wants it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Map(RawTensorMap);

impl Placed {
    pub(super) fn new() -> Self {
        let maps = [Map(RawTensorMap([0; 16])); MOST_MAPS];
        Self { pointers: [std::ptr::null(); MOST], words: [0; MOST], maps }
    }
}

impl Args {
    /// No arguments yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(mut self, bytes: &[u8], place: Option<(u8, u64)>) -> Self {
        let line = self.lines.len();
        self.arguments.push(Argument { line, bytes: bytes.len(), place });
        self.lines.resize(line + bytes.len().div_ceil(size_of::<Line>()).max(1), Line([0; 8]));
        let words = self.lines[line..].iter_mut().flat_map(|line| line.0.iter_mut());
        for (word, part) in words.zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..part.len()].copy_from_slice(part);
            *word = u64::from_ne_bytes(whole);
        }
        self
    }

    /// A pointer to the start of a buffer.
    #[must_use]
    pub fn buffer(self, buffer: &Buffer) -> Self {
        self.buffer_at(buffer, 0)
    }

    /// A pointer into a buffer, `offset` bytes from its start.
    #[must_use]
    pub fn buffer_at(mut self, buffer: &Buffer, offset: usize) -> Self {
        match &self.device {
            None => self.device = Some(Arc::clone(buffer.context())),
            Some(device) => self.mixed |= !Arc::ptr_eq(device, buffer.context()),
        }
        let address = buffer.address() + offset as u64;
        let place = buffer.operand().map(|operand| (operand, address));
        self.push(&address.to_ne_bytes(), place)
    }

    /// A pointer, or null.
    #[must_use]
    pub fn maybe(self, buffer: Option<&Buffer>) -> Self {
        match buffer {
            Some(buffer) => self.buffer(buffer),
            None => self.push(&0u64.to_ne_bytes(), None),
        }
    }

    /// A 32-bit integer.
    #[must_use]
    pub fn i32(self, value: i32) -> Self {
        self.push(&value.to_ne_bytes(), None)
    }

    /// A 64-bit integer.
    #[must_use]
    pub fn i64(self, value: i64) -> Self {
        self.push(&value.to_ne_bytes(), None)
    }

    /// A float32.
    #[must_use]
    pub fn f32(self, value: f32) -> Self {
        self.push(&value.to_ne_bytes(), None)
    }

    /// A float64.
    #[must_use]
    pub fn f64(self, value: f64) -> Self {
        self.push(&value.to_ne_bytes(), None)
    }

    /// A descriptor for the copy engine.
    #[must_use]
    pub fn map(self, map: &TensorMap) -> Self {
        self.push(bytes_of(&map.raw.0), map.operand.map(|operand| (operand, map.address)))
    }

    /// Sizes of the arguments, bytes.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> + Clone {
        self.arguments.iter().map(|argument| argument.bytes)
    }

    /// Pointers to the arguments, as the driver takes them, each moved with the operand that it points into. `replace` writes
    /// an address into a descriptor.
    pub(super) fn place<'p>(
        &'p self,
        moves: Moves<'_>,
        placed: &'p mut Placed,
        replace: impl Fn(&mut RawTensorMap, u64) -> Result<(), CudaError>,
    ) -> Result<&'p [*const c_void], CudaError> {
        let count = self.arguments.len();
        if count > MOST {
            return Err(CudaError::refused(format!("{count} arguments, more than {MOST}")));
        }
        let mut maps = placed.maps.iter_mut();
        for (at, argument) in self.arguments.iter().enumerate() {
            let lines = &self.lines[argument.line..];
            let moved = argument.place.map(|(operand, address)| (moves.of(operand), address));
            placed.pointers[at] = match moved {
                None | Some((0, _)) => lines.as_ptr().cast(),
                Some((by, address)) if argument.bytes == size_of::<u64>() => {
                    placed.words[at] = address.wrapping_add(by);
                    (&raw const placed.words[at]).cast()
                }
                Some((by, address)) => {
                    let Some(map) = maps.next() else {
                        let what = format!("more than {MOST_MAPS} tensor maps of one kernel");
                        return Err(CudaError::refused(what));
                    };
                    for (word, from) in map.0.0.iter_mut().zip(lines.iter().flat_map(|line| line.0))
                    {
                        *word = from;
                    }
                    replace(&mut map.0, address.wrapping_add(by))?;
                    (&raw const *map).cast()
                }
            };
        }
        Ok(&placed.pointers[..count])
    }

    /// Refuses buffers of another device than the one the launch goes to.
    pub(super) fn check_device(&self, context: &Arc<Context>) -> Result<(), CudaError> {
        let other = self.device.as_ref().is_some_and(|device| !Arc::ptr_eq(device, context));
        if self.mixed || other {
            return Err(CudaError::refused(
                "a kernel's arguments point to buffers of more than one device",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(unsafe_code)] // Arguments are read as the driver reads them.
    fn words(pointer: *const c_void, count: usize) -> Vec<u64> {
        // SAFETY: the arguments below are at least as long, and live.
        unsafe { std::slice::from_raw_parts(pointer.cast(), count) }.to_vec()
    }

    #[test]
    fn arguments_keep_their_bytes_sizes_and_alignment() {
        let raw = RawTensorMap(std::array::from_fn(|i| i as u64));
        let map = TensorMap { raw, address: 4096, operand: Some(1) };
        let args = Args::new().i32(-2).f32(1.5).map(&map).i64(-3).maybe(None);
        let args = args.push(&8192u64.to_ne_bytes(), Some((0, 8192)));
        assert!(args.sizes().eq([4, 4, 128, 8, 8, 8]));
        let replace = |map: &mut RawTensorMap, address| {
            map.0[0] = address;
            Ok(())
        };
        let mut placed = Placed::new();
        let pointers = args.place(Moves::default(), &mut placed, replace).unwrap();
        assert!(pointers.iter().all(|pointer| pointer.addr().is_multiple_of(64)));
        assert_eq!(words(pointers[2], 16), (0..16).collect::<Vec<u64>>());
        assert_eq!(words(pointers[0], 1)[0] as u32 as i32, -2);
        assert_eq!(f32::from_bits(words(pointers[1], 1)[0] as u32), 1.5);
        assert_eq!(words(pointers[3], 1)[0] as i64, -3);
        assert_eq!([words(pointers[4], 1)[0], words(pointers[5], 1)[0]], [0, 8192]);

        // What points into an operand moves with it, everything else stays.
        let moves = Moves { planned: &[8000, 4000], now: &[500, 70_000] };
        let mut placed = Placed::new();
        let pointers = args.place(moves, &mut placed, replace).unwrap();
        assert_eq!([words(pointers[4], 1)[0], words(pointers[5], 1)[0]], [0, 692]);
        assert_eq!(words(pointers[2], 3), [70_096, 1, 2]);
        assert!(pointers[2].addr().is_multiple_of(64));
    }
}
