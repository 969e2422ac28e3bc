//! Arguments of a kernel: one parameter block, which can be launched again with operands at other addresses.

use super::context::Context;
use super::driver::RawTensorMap;
use super::memory::bytes_of;
use super::memory::context_of;
use super::{Buffer, DeviceError, TmaDescriptor};
use std::ffi::c_void;
use std::sync::Arc;

/// Declares the arguments of a kernel as a struct, `Name: kernel { field: Kind, .. }`, or of several kernels with the
/// same parameters, `Name: one | other { .. }`. Fields have the names and the order of the kernel's parameters and are
/// of kind `Pointer`, `Nullable` (may be null), `Map` (a tensor map for TMA), `i32`, `i64`, `f32`, `f64`, or `(Group)`:
/// consecutive parameters that other kernels share, declared as `Group { .. }`.
///
/// CUDA's parameter layout is that of a C struct, so this struct has the layout of the kernel's parameter block, with a
/// reference instead of each address; [`Args`] are made from it. A launch compares names, offsets and sizes with those
/// of the kernel.
#[macro_export]
macro_rules! arguments {
    (@kind $a:lifetime Pointer) => { &$a $crate::cuda::Buffer };
    (@kind $a:lifetime Nullable) => { Option<&$a $crate::cuda::Buffer> };
    (@kind $a:lifetime Map) => { $crate::cuda::Map<$a> };
    (@kind $a:lifetime ($group:ident)) => { $group<$a> };
    (@kind $a:lifetime $number:ident) => { <$number as $crate::cuda::Number<$a>>::Type };
    (@parts ($group:ident)) => { $group::LAYOUT.parameters };
    (@parts $kind:ident) => { &[] };
    ($(#[$about:meta])* $visible:vis $name:ident $(: $($kernel:ident)|+)? {
        $($field:ident: $kind:tt),* $(,)?
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        $visible struct $name<'a> { $($visible $field: $crate::arguments!(@kind 'a $kind)),* }

        impl $name<'_> {
            const FIELDS: &'static [$crate::cuda::Parameter] = &[$($crate::cuda::Parameter {
                name: stringify!($field),
                kind: stringify!($kind),
                offset: std::mem::offset_of!($name<'static>, $field),
                bytes: size_of::<$crate::arguments!(@kind 'static $kind)>(),
                parts: $crate::arguments!(@parts $kind),
            }),*];
            $visible const LAYOUT: &'static $crate::cuda::ParameterLayout =
                &$crate::cuda::ParameterLayout {
                    kernels: &[$($(stringify!($kernel)),+)?],
                    parameters: &$crate::cuda::Parameter::each::<
                        { $crate::cuda::Parameter::count(<$name<'static>>::FIELDS) },
                    >(Self::FIELDS),
                };
        }

        impl $crate::cuda::Argument for $name<'_> {
            fn put(self, offset: usize, args: &mut $crate::cuda::Args) {
                $($crate::cuda::Argument::put(
                    self.$field,
                    offset + std::mem::offset_of!($name<'static>, $field),
                    args,
                );)*
            }
        }

        impl From<$name<'_>> for $crate::cuda::Args {
            fn from(given: $name<'_>) -> Self {
                Self::of($name::LAYOUT, given)
            }
        }
    };
}

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the kernel's source.
    pub name: &'static str,
    /// Its kind in [`arguments!`](crate::arguments).
    pub kind: &'static str,
    /// Offset in the parameter block, in bytes.
    pub offset: usize,
    /// Size, in bytes.
    pub bytes: usize,
    /// The parameters of a group.
    pub parts: &'static [Parameter],
}

impl Parameter {
    /// Number of parameters, with those of groups.
    pub const fn count(fields: &[Self]) -> usize {
        let (mut count, mut at) = (0, 0);
        while at < fields.len() {
            let parts = fields[at].parts.len();
            count += if parts > 0 { parts } else { 1 };
            at += 1;
        }
        count
    }

    /// Parameters with groups expanded.
    pub const fn each<const COUNT: usize>(fields: &[Self]) -> [Self; COUNT] {
        let none = Self { name: "", kind: "", offset: 0, bytes: 0, parts: &[] };
        let (mut each, mut count, mut at) = ([none; COUNT], 0, 0);
        while at < fields.len() {
            let (field, mut part) = (fields[at], 0);
            if field.parts.is_empty() {
                each[count] = field;
                count += 1;
            }
            while part < field.parts.len() {
                each[count] = field.parts[part];
                each[count].offset += field.offset;
                count += 1;
                part += 1;
            }
            at += 1;
        }
        each
    }
}

/// The parameters of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterLayout {
    /// The kernels.
    pub kernels: &'static [&'static str],
    /// In declaration order.
    pub parameters: &'static [Parameter],
}

/// A tensor map (TMA descriptor) as a field of an argument struct, with the size and alignment of the parameter.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Map<'a> {
    map: &'a TmaDescriptor,
    rest: [u64; 15],
}

impl<'a> From<&'a TmaDescriptor> for Map<'a> {
    fn from(map: &'a TmaDescriptor) -> Self {
        Self { map, rest: [0; 15] }
    }
}

/// A kernel argument.
pub trait Argument {
    /// Writes it at `offset` of the parameter block.
    fn put(self, offset: usize, args: &mut Args);
}

impl Argument for &Buffer {
    fn put(self, offset: usize, args: &mut Args) {
        match (&args.device, context_of(self)) {
            (None, Ok(context)) => args.device = Some(Arc::clone(context)),
            (Some(device), Ok(context)) => args.mixed |= !Arc::ptr_eq(device, context),
            (_, Err(_)) => args.mixed = true,
        }
        args.write(offset, &self.address().to_ne_bytes());
        args.point(offset, false, self.operand(), self.address());
    }
}

impl Argument for Option<&Buffer> {
    fn put(self, offset: usize, args: &mut Args) {
        if let Some(buffer) = self {
            buffer.put(offset, args);
        }
    }
}

impl Argument for Map<'_> {
    fn put(self, offset: usize, args: &mut Args) {
        args.write(offset, bytes_of(&self.map.raw.0));
        args.point(offset, true, self.map.operand, self.map.address);
    }
}

/// A number as a field of a struct with a lifetime parameter that no other field may use.
pub trait Number<'a> {
    /// The number's own type.
    type Type;
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Number<'_> for $number {
            type Type = Self;
        }

        impl Argument for $number {
            fn put(self, offset: usize, args: &mut Args) {
                args.write(offset, &self.to_ne_bytes());
            }
        }
    )*};
}
numbers!(i32 i64 f32 f64);

/// One cache line, the alignment of a parameter block: no parameter has a larger one.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// A pointer in the parameter block to an operand of a plan.
#[derive(Debug, Clone, Copy)]
struct OperandPointer {
    offset: usize,
    /// Whether it is a tensor map instead of a pointer.
    map: bool,
    operand: u8,
    /// The address in the plan.
    address: u64,
}

/// Maximum number of parameters of a kernel.
const MAX_ARGUMENTS: usize = 64;
/// Maximum size of a parameter block, in cache lines.
const MAX_LINES: usize = 32;

/// Arguments of a kernel, from its struct of [`arguments!`](crate::arguments).
#[derive(Debug, Clone)]
pub struct Args {
    layout: &'static ParameterLayout,
    block: Vec<Line>,
    pointers: Vec<OperandPointer>,
    /// The device of the buffers.
    device: Option<Arc<Context>>,
    mixed: bool,
}

/// The operand addresses of a plan when it was made, and those of a launch.
#[derive(Debug, Clone, Copy, Default)]
pub struct OperandAddresses<'a> {
    /// Addresses in the plan's arguments, by operand number ([`Buffer::as_operand`]).
    pub planned: &'a [u64],
    /// Addresses of the launch, in the same order.
    pub now: &'a [u64],
}

impl OperandAddresses<'_> {
    /// Difference between both addresses of an operand, modulo 2^64.
    fn of(&self, operand: u8) -> u64 {
        let at = usize::from(operand);
        match (self.planned.get(at), self.now.get(at)) {
            (Some(planned), Some(now)) => now.wrapping_sub(*planned),
            _ => 0,
        }
    }
}

/// Pointers to a launch's arguments, and a copy of the parameter block for other operand addresses.
pub(super) struct PlacedArgs {
    pointers: [*const c_void; MAX_ARGUMENTS],
    block: [Line; MAX_LINES],
}

impl PlacedArgs {
    pub(super) fn new() -> Self {
        Self { pointers: [std::ptr::null(); MAX_ARGUMENTS], block: [Line([0; 8]); MAX_LINES] }
    }
}

impl Args {
    #[doc(hidden)] // For `arguments!`.
    pub fn of(layout: &'static ParameterLayout, given: impl Argument) -> Self {
        let end = layout.parameters.last().map_or(0, |last| last.offset + last.bytes);
        let block = vec![Line([0; 8]); end.div_ceil(size_of::<Line>())];
        let mut args = Self { layout, block, pointers: Vec::new(), device: None, mixed: false };
        given.put(0, &mut args);
        args
    }

    /// Writes one argument, which is aligned to its size or to 8 bytes.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let words = self.block.iter_mut().flat_map(|line| line.0.iter_mut()).skip(offset / 8);
        for (word, part) in words.zip(bytes.chunks(8)) {
            let mut whole = word.to_ne_bytes();
            whole[offset % 8..][..part.len()].copy_from_slice(part);
            *word = u64::from_ne_bytes(whole);
        }
    }

    fn point(&mut self, offset: usize, map: bool, operand: Option<u8>, address: u64) {
        let into = operand.map(|operand| OperandPointer { offset, map, operand, address });
        self.pointers.extend(into);
    }

    /// The kernels with these parameters.
    pub(super) fn kernels(&self) -> &'static [&'static str] {
        self.layout.kernels
    }

    /// The parameter block up to the end of the last argument, for records that kernels read.
    pub fn bytes(&self) -> impl Iterator<Item = u8> {
        let end = self.layout.parameters.last().map_or(0, |last| last.offset + last.bytes);
        self.block.iter().flat_map(|line| line.0).flat_map(u64::to_ne_bytes).take(end)
    }

    /// Offsets and sizes of the arguments, in bytes.
    pub(super) fn layout(&self) -> impl Iterator<Item = (usize, usize)> + Clone {
        self.layout.parameters.iter().map(|parameter| (parameter.offset, parameter.bytes))
    }

    /// Pointers to the arguments, as the driver takes them: into this block, or, with other operand addresses, into a
    /// copy with those addresses. `replace` writes an address into a tensor map.
    pub(super) fn place<'p>(
        &'p self,
        moves: OperandAddresses<'_>,
        placed: &'p mut PlacedArgs,
        replace: impl Fn(&mut RawTensorMap, u64) -> Result<(), DeviceError>,
    ) -> Result<&'p [*const c_void], DeviceError> {
        let (count, lines) = (self.layout.parameters.len(), self.block.len());
        if count > MAX_ARGUMENTS || lines > MAX_LINES {
            let what = format!(
                "{count} arguments in {lines} lines, more than {MAX_ARGUMENTS} or {MAX_LINES}"
            );
            return Err(DeviceError::refused(what));
        }
        let mut block = self.block.as_slice();
        if self.pointers.iter().any(|into| moves.of(into.operand) != 0) {
            let copy = &mut placed.block[..lines];
            copy.copy_from_slice(block);
            for into in &self.pointers {
                let address = into.address.wrapping_add(moves.of(into.operand));
                let line = into.offset / 64;
                if !into.map {
                    copy[line].0[into.offset / 8 % 8] = address;
                } else if address != into.address {
                    let mut map = RawTensorMap([0; 16]);
                    map.0[..8].copy_from_slice(&copy[line].0);
                    map.0[8..].copy_from_slice(&copy[line + 1].0);
                    replace(&mut map, address)?;
                    copy[line].0.copy_from_slice(&map.0[..8]);
                    copy[line + 1].0.copy_from_slice(&map.0[8..]);
                }
            }
            block = copy;
        }
        let start = block.as_ptr().cast::<u8>();
        for (pointer, (offset, _)) in placed.pointers.iter_mut().zip(self.layout()) {
            *pointer = start.wrapping_add(offset).cast();
        }
        Ok(&placed.pointers[..count])
    }

    /// Refuses buffers of another device than that of the launch.
    pub(super) fn check_device(&self, context: &Arc<Context>) -> Result<(), DeviceError> {
        let other = self.device.as_ref().is_some_and(|device| !Arc::ptr_eq(device, context));
        if self.mixed || other {
            return Err(DeviceError::refused(
                "a kernel's arguments point to buffers of more than one device",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::arguments! { Pair { none: Nullable, into: i64 } }
    crate::arguments! {
        Several: several { count: i32, by: f32, map: Map, wide: i64, pair: (Pair), last: i32 }
    }

    #[allow(unsafe_code)] // Arguments are read as the driver reads them.
    fn words(pointer: *const c_void, count: usize) -> Vec<u64> {
        // SAFETY: the arguments below are at least as long, and live.
        unsafe { std::slice::from_raw_parts(pointer.cast(), count) }.to_vec()
    }

    #[test]
    fn arguments_have_the_c_layout_and_move_with_their_operands() {
        let raw = RawTensorMap(std::array::from_fn(|i| i as u64));
        let map = TmaDescriptor { raw, address: 4096, operand: Some(1) };
        let (map, pair) = (Map::from(&map), Pair { none: None, into: 8192 });
        let given = Several { count: -2, by: 1.5, map, wide: -3, pair, last: 7 };
        let mut args = Args::from(given);
        args.point(208, false, Some(0), 8192);
        let layout = [(0, 4), (4, 4), (64, 128), (192, 8), (200, 8), (208, 8), (216, 4)];
        assert!(args.layout().eq(layout));
        let replace = |map: &mut RawTensorMap, address| {
            map.0[0] = address;
            Ok(())
        };
        let mut placed = PlacedArgs::new();
        let pointers = args.place(OperandAddresses::default(), &mut placed, replace).unwrap();
        assert!(pointers[2].addr().is_multiple_of(64));
        assert_eq!(words(pointers[2], 16), (0..16).collect::<Vec<u64>>());
        let first = words(pointers[0], 1)[0];
        assert_eq!((first as u32 as i32, f32::from_bits((first >> 32) as u32)), (-2, 1.5));
        assert_eq!(words(pointers[3], 4), [-3i64 as u64, 0, 8192, 7]);

        // Pointers into an operand change with it; everything else stays.
        let moves = OperandAddresses { planned: &[8000, 4000], now: &[500, 70_000] };
        let mut placed = PlacedArgs::new();
        let pointers = args.place(moves, &mut placed, replace).unwrap();
        assert_eq!(words(pointers[0], 1), [first]);
        assert_eq!(words(pointers[3], 4), [-3i64 as u64, 0, 692, 7]);
        assert_eq!(words(pointers[2], 16)[..3], [70_096, 1, 2]);
        assert!(pointers[2].addr().is_multiple_of(64));
    }
}
