//! Tensor maps: descriptors for TMA, the tensor memory accelerator.
#![allow(unsafe_code)] // Calls of the driver.

use super::driver::RawTensorMap;
use super::memory::is_of;
use super::{Buffer, Cuda, DeviceError};

/// The TMA element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TmaElement {
    /// float16.
    F16,
    /// bfloat16.
    Bf16,
    /// float32.
    F32,
    /// Bytes.
    U8,
}

impl TmaElement {
    /// Its value in `CUtensorMapDataType`.
    fn value(self) -> i32 {
        match self {
            Self::U8 => 0,
            Self::F16 => 6,
            Self::F32 => 7,
            Self::Bf16 => 9,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

/// TMA swizzle modes: a permutation of 16-byte words within rows of shared memory that avoids bank conflicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swizzle {
    /// No permutation.
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}

impl Swizzle {
    /// Its value in `CUtensorMapSwizzle`.
    fn value(self) -> i32 {
        match self {
            Self::None => 0,
            Self::Bytes32 => 1,
            Self::Bytes64 => 2,
            Self::Bytes128 => 3,
        }
    }

    /// Maximum size of the inner box dimension, in bytes.
    fn row_bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Bytes32 => Some(32),
            Self::Bytes64 => Some(64),
            Self::Bytes128 => Some(128),
        }
    }
}

/// A tensor in GPU memory as described to TMA, with the contiguous dimension first; elements outside it read as zero.
#[derive(Debug, Clone, Copy)]
pub struct TiledLayout<'a> {
    /// Element type.
    pub element: TmaElement,
    /// Offset of the first element in the buffer, in bytes.
    pub offset: u64,
    /// Sizes of one to five dimensions, the contiguous one first, in elements.
    pub sizes: &'a [u64],
    /// Strides of every dimension except the first, in bytes.
    pub strides: &'a [u64],
    /// Box size along each dimension, in elements.
    pub tile: &'a [u32],
    /// Swizzle mode in shared memory.
    pub swizzle: Swizzle,
}

/// A TMA descriptor: an encoded tensor map (`CUtensorMap`), passed to kernels by value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TmaDescriptor {
    pub(super) raw: RawTensorMap,
    /// Address of the first element.
    pub(super) address: u64,
    /// The index of the plan's operand that it points to.
    pub(super) operand: Option<u8>,
}

impl std::fmt::Debug for TmaDescriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TmaDescriptor")
    }
}

impl TiledLayout<'_> {
    /// Why TMA would refuse the layout; the driver reports only "invalid value".
    fn refusal(&self, address: u64, buffer_bytes: u64) -> Option<String> {
        let rank = self.sizes.len();
        if !(1..=5).contains(&rank) || self.strides.len() + 1 != rank || self.tile.len() != rank {
            return Some(format!(
                "a tensor map wants 1 to 5 sizes, as many tile sizes and one stride less, got {rank}, {} and {}",
                self.tile.len(),
                self.strides.len()
            ));
        }
        if !(address + self.offset).is_multiple_of(16) {
            return Some(format!(
                "a tensor map wants an address that is a multiple of 16, got offset {}",
                self.offset
            ));
        }
        if let Some(size) = self.sizes.iter().find(|size| **size == 0 || **size > 1 << 32) {
            return Some(format!("a tensor map wants sizes from 1 to 2^32, got {size}"));
        }
        if let Some(stride) =
            self.strides.iter().find(|stride| !stride.is_multiple_of(16) || **stride >= 1 << 40)
        {
            return Some(format!(
                "a tensor map wants strides that are multiples of 16 bytes below 2^40, got {stride}"
            ));
        }
        if let Some(tile) = self.tile.iter().find(|tile| !(1..=256).contains(*tile)) {
            return Some(format!("a tensor map wants tiles of 1 to 256 elements, got {tile}"));
        }
        let row = u64::from(self.tile[0]) * self.element.bytes();
        if !row.is_multiple_of(16) || self.swizzle.row_bytes().is_some_and(|most| row > most) {
            return Some(format!(
                "a tensor map's tile row is {row} bytes, expected a multiple of 16 and at most what {:?} covers",
                self.swizzle
            ));
        }
        let rows =
            self.sizes[1..].iter().zip(self.strides).map(|(size, stride)| (size - 1) * stride);
        let end = self.offset + rows.sum::<u64>() + self.sizes[0] * self.element.bytes();
        (end > buffer_bytes)
            .then(|| format!("a tensor map covers {end} bytes of a buffer of {buffer_bytes}"))
    }
}

impl Cuda {
    /// Encodes a tensor map for a tensor in `buffer`.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] with the reason (a misaligned address, a stride that is not a multiple of 16 bytes,
    /// ...).
    pub fn tensor_map(
        &self,
        buffer: &Buffer,
        layout: &TiledLayout<'_>,
    ) -> Result<TmaDescriptor, DeviceError> {
        let context = self.context();
        is_of(buffer, context)?;
        if let Some(what) = layout.refusal(buffer.address(), buffer.bytes() as u64) {
            return Err(DeviceError::refused(what));
        }
        /// Element strides of 1: every element is copied.
        const UNIT_STRIDES: [u32; 5] = [1; 5];
        /// `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`. The zeros below mean no interleaving and zero fill outside.
        const PROMOTE_256: i32 = 3;
        let driver = context.enter()?;
        let mut raw = RawTensorMap([0; 16]);
        let address = buffer.address() + layout.offset;
        // SAFETY: the arrays have `rank` entries (strides one less), as checked by `refusal`.
        let code = unsafe {
            (driver.encode_tiled)(
                &raw mut raw,
                layout.element.value(),
                layout.sizes.len() as u32,
                address,
                layout.sizes.as_ptr(),
                layout.strides.as_ptr(),
                layout.tile.as_ptr(),
                UNIT_STRIDES.as_ptr(),
                0,
                layout.swizzle.value(),
                PROMOTE_256,
                0,
            )
        };
        context.check("cuTensorMapEncodeTiled", code)?;
        Ok(TmaDescriptor { raw, address, operand: buffer.operand() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut TiledLayout<'_>), expect: Option<&str>) {
        let mut layout = TiledLayout {
            element: TmaElement::Bf16,
            offset: 0,
            sizes: &[128, 32, 100],
            strides: &[256, 8192],
            tile: &[64, 1, 64],
            swizzle: Swizzle::Bytes128,
        };
        change(&mut layout);
        let refusal = layout.refusal(512, 8192 * 100);
        assert_eq!(refusal.as_deref(), expect);
    }

    #[test]
    fn invalid_layouts_are_refused_with_the_reason() {
        check(|_| (), None);
        check(
            |layout| layout.offset = 8,
            Some("a tensor map wants an address that is a multiple of 16, got offset 8"),
        );
        check(
            |layout| layout.strides = &[200, 8192],
            Some("a tensor map wants strides that are multiples of 16 bytes below 2^40, got 200"),
        );
        check(
            |layout| layout.tile = &[128, 1, 64],
            Some(
                "a tensor map's tile row is 256 bytes, expected a multiple of 16 and at most what Bytes128 covers",
            ),
        );
        check(
            |layout| layout.tile = &[64, 1, 512],
            Some("a tensor map wants tiles of 1 to 256 elements, got 512"),
        );
        check(
            |layout| layout.sizes = &[128, 0, 100],
            Some("a tensor map wants sizes from 1 to 2^32, got 0"),
        );
        check(
            |layout| layout.strides = &[256],
            Some(
                "a tensor map wants 1 to 5 sizes, as many tile sizes and one stride less, got 3, 3 and 1",
            ),
        );
        check(
            |layout| layout.sizes = &[128, 32, 101],
            Some("a tensor map covers 827392 bytes of a buffer of 819200"),
        );
    }
}
