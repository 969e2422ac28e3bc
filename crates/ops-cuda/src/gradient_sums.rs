//! The last launch of a gradient: gradients of weights from the partial sums of blocks. The contract is in `gradient_sums.cu`.

use crate::{Planner, arguments, int, source};
use device::cuda::{Buffer, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::DType;

const PARTS: &[SourcePart] =
    &[source!("include/order.cuh"), source!("include/storage.cuh"), source!("gradient_sums.cu")];

/// Columns of a block, and threads of a column.
const COLUMNS: usize = 32;
const TEAM: u32 = 32;

arguments! {
    Arguments: gradient_sums {
        partial: Pointer, first: Pointer, second: Nullable, count: i32, stride: i32, size: i32, second_size: i32, first_f32: i32,
        second_f32: i32,
    }
}

/// The kernel for outputs of a storage type.
pub(crate) fn source(dtype: DType, arch: GpuArch) -> KernelSource {
    KernelSource::new("gradient_sums", PARTS, arch).define("DTYPE", dtype)
}

/// Partial sums, and the outputs that their sums are.
pub(crate) struct GradientSums<'a> {
    /// Storage type of the outputs that are not f32.
    pub(crate) dtype: DType,
    /// f32 `[matrices, count, stride]`.
    pub(crate) partial: &'a Buffer,
    pub(crate) matrices: usize,
    pub(crate) count: usize,
    pub(crate) stride: usize,
    /// Output of the first columns, and how many of each matrix.
    pub(crate) first: (&'a str, usize),
    /// Output of the next columns, if there is one, and how many. With it there is one matrix.
    pub(crate) second: Option<(&'a str, usize)>,
}

impl GradientSums<'_> {
    /// Plans the launch.
    ///
    /// # Errors
    /// As [`Planner::kernel`] and [`Planner::output`].
    pub(crate) fn plan(&self, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
        let (first, size) = self.first;
        let (second, second_size) = self.second.unzip();
        let output = second.map(|name| planner.output(name)).transpose()?;
        let kernel = planner.kernel(&source(self.dtype, planner.arch()))?;
        let args = Arguments {
            partial: self.partial,
            first: &*planner.output(first)?,
            second: output.as_deref(),
            count: int(self.count)?,
            stride: int(self.stride)?,
            size: int(size)?,
            second_size: int(second_size.unwrap_or(0))?,
            first_f32: planner.gives_f32(first),
            second_f32: second.map_or(0, |name| planner.gives_f32(name)),
        };
        let columns = (size + second_size.unwrap_or(0)).div_ceil(COLUMNS);
        let grid = [columns as u32, self.matrices as u32, 1];
        let launch = Launch { block: [COLUMNS as u32, TEAM, 1], ..Launch::new(grid, 32, 0) };
        let launch = planner.overlapping(launch);
        planner.launch(kernel, launch, args);
        Ok(())
    }
}
