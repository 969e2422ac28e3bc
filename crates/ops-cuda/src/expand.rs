//! Dequantizes weights to bf16 in a separate launch, for kernels that multiply many rows.

use super::{Planner, arguments, int};
use crate::source;
use device::cuda::{Buffer, DeviceError, GpuArch, KernelSource, Launch, Part};
use ops::DType;
use std::sync::Arc;

const PARTS: &[Part] = &[source!("include/storage.cuh"), source!("expand.cu")];

/// Elements per block of `expand.cu`.
const OF_BLOCK: usize = 4096;

arguments! {
    Args: expand {
        w: Pointer, w_scale: Pointer, w_zero: Nullable, w_offset: Nullable, order: Nullable, o: Pointer, rows: i32, inputs: i32,
        each: i32, group: i32, factor_bits: i32,
    }
}

/// The dequantization kernel for a weight type.
pub(crate) fn source(weights: DType, arch: GpuArch) -> KernelSource {
    let source = KernelSource::new("expand", PARTS, arch).define("DTYPE", DType::Bf16);
    match weights {
        DType::U4 => source.define("INTEGERS", 1).define("WEIGHT_BITS", 4),
        DType::I8 => source.define("INTEGERS", 1).define("WEIGHT_BITS", 8),
        _ => source.define("INTEGERS", 0).define("WEIGHT_BITS", 8),
    }
}

/// Quantized matrices, with their scales and zero points or offsets.
pub(crate) struct Expand<'a> {
    /// e4m3, i8 or u4.
    pub(crate) dtype: DType,
    /// `[matrices, rows, columns]`.
    pub(crate) w: &'a Buffer,
    /// `[matrices, groups, rows]`.
    pub(crate) scale: &'a Buffer,
    /// Type of `scale`: 32 is f32, 16 is f16, 17 is bf16.
    pub(crate) factor_bits: i32,
    /// Zero points, u8, of `scale`'s shape.
    pub(crate) zero: Option<&'a Buffer>,
    /// Offsets, f32, of `scale`'s shape.
    pub(crate) offset: Option<&'a Buffer>,
    /// i32 `[columns]`: the output column of each input column.
    pub(crate) order: Option<&'a Buffer>,
    /// Number of matrices, rows and columns.
    pub(crate) shape: [usize; 3],
    /// Group size in columns.
    pub(crate) group: usize,
}

impl Expand<'_> {
    /// Plans the launch and returns the bf16 weights `[matrices, rows, columns]`. A kernel that reads weights before `wait_for_previous`
    /// must not overlap it (PDL).
    pub(crate) fn plan(&self, planner: &mut Planner<'_>) -> Result<Arc<Buffer>, DeviceError> {
        let [matrices, rows, columns] = self.shape;
        let elements = matrices * rows * columns;
        let o = planner.scratch(elements.div_ceil(2))?;
        let kernel = planner.kernel(&source(self.dtype, planner.arch()))?;
        let args = Args {
            w: self.w,
            w_scale: self.scale,
            w_zero: self.zero,
            w_offset: self.offset,
            order: self.order,
            o: &o,
            rows: int(matrices * rows)?,
            inputs: int(columns)?,
            each: int(rows)?,
            group: int(self.group)?,
            factor_bits: self.factor_bits,
        };
        let blocks = elements.div_ceil(OF_BLOCK) as u32;
        planner.launch_auxiliary(kernel, Launch::new([blocks, 1, 1], 256, 0), args);
        Ok(o)
    }
}
