//! Launches kernels; every launch is counted here.
#![allow(unsafe_code)] // Calls of the driver.

use super::args::PlacedArgs;
use super::driver::{self, LaunchAttribute};
use super::{Args, DeviceError, Kernel, OperandAddresses, Stream};
use std::sync::Arc;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
const COOPERATIVE: u32 = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
const CLUSTER_DIMENSION: u32 = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC_SERIALIZATION: u32 = 6;

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x, y and z; an empty grid runs nothing.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// Blocks per cluster; all ones for none.
    pub cluster: [u32; 3],
    /// Programmatic dependent launch (PDL): the kernel may start before the previous one in the stream ends, and has to
    /// wait for it with `griddepcontrol.wait`.
    pub overlaps: bool,
    /// Cooperative launch: all blocks are resident at once, or the launch is refused.
    pub together: bool,
}

impl Launch {
    /// A launch without clusters.
    pub const fn new(grid: [u32; 3], threads: u32, shared_bytes: u32) -> Self {
        let block = [threads, 1, 1];
        Self { grid, block, shared_bytes, cluster: [1; 3], overlaps: false, together: false }
    }

    /// Sets the cluster size.
    #[must_use]
    pub const fn with_cluster(mut self, cluster: [u32; 3]) -> Self {
        self.cluster = cluster;
        self
    }
}

impl Stream {
    /// Launches a kernel and counts it under `name` as evidence: the count is incremented once the driver has accepted
    /// the launch (or, during capture, when the graph is launched).
    ///
    /// # Safety
    /// The arguments must match the kernel's parameters. The memory that they point to must be large enough and stay
    /// allocated until the stream is synchronised.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] for arguments that do not match the kernel, buffers of another device, or a grid that
    /// is not a multiple of the cluster; [`DeviceError::Call`] if the driver refuses. An error inside the kernel is
    /// reported at the next synchronisation.
    pub unsafe fn launch(
        &self,
        name: &str,
        kernel: &Kernel,
        launch: &Launch,
        args: &Args,
    ) -> Result<(), DeviceError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.launch_relocated(name, kernel, launch, args, OperandAddresses::default()) }
    }

    /// As [`Stream::launch`], with the operands at other addresses.
    ///
    /// # Safety
    /// As of [`Stream::launch`], for the arguments with those addresses.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub unsafe fn launch_relocated(
        &self,
        name: &str,
        kernel: &Kernel,
        launch: &Launch,
        args: &Args,
        moves: OperandAddresses<'_>,
    ) -> Result<(), DeviceError> {
        let context = self.context();
        let driver = context.enter()?;
        if !Arc::ptr_eq(kernel.context(), context) {
            return Err(DeviceError::refused("a kernel of one device was launched on another"));
        }
        args.check_device(context)?;
        kernel.check_args(args)?;
        if launch.grid.contains(&0) {
            // CUDA refuses an empty grid. As on every backend, an empty call counts as a launch of no blocks.
            context.launches.record_grid(name, launch.grid);
            return Ok(());
        }
        let clustered = launch.cluster != [1; 3];
        if launch.grid.iter().zip(launch.cluster).any(|(grid, cluster)| grid % cluster.max(1) != 0)
        {
            let what = format!(
                "grid {:?} is not made of whole clusters {:?}",
                launch.grid, launch.cluster
            );
            return Err(DeviceError::refused(what));
        }
        kernel.allow(launch.shared_bytes, launch.cluster.iter().product())?;
        let (mut attributes, mut count) =
            ([LaunchAttribute { id: 0, pad: 0, value: [0; 16] }; 3], 0);
        if clustered {
            attributes[count].id = CLUSTER_DIMENSION;
            attributes[count].value[..3].copy_from_slice(&launch.cluster);
            count += 1;
        }
        if launch.overlaps {
            attributes[count].id = PROGRAMMATIC_SERIALIZATION;
            attributes[count].value[0] = 1;
            count += 1;
        }
        if launch.together {
            attributes[count].id = COOPERATIVE;
            attributes[count].value[0] = 1;
            count += 1;
        }
        let config = driver::LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            stream: self.raw(),
            attributes: attributes.as_ptr(),
            attribute_count: count as u32,
        };
        let mut placed = PlacedArgs::new();
        let pointers = args.place(moves, &mut placed, |map, address| {
            // SAFETY: the tensor map was encoded by the driver, and belongs to this call.
            let code = unsafe { (driver.replace_address)(map, address) };
            context.check("cuTensorMapReplaceAddress", code)
        })?;
        // SAFETY: the driver copies configuration, attributes and arguments before it returns; the caller guarantees
        // that the arguments match the kernel.
        let code = unsafe {
            (driver.launch)(&raw const config, kernel.raw(), pointers.as_ptr(), std::ptr::null())
        };
        context.check("cuLaunchKernelEx", code).map_err(|error| kernel.explain(error, launch))?;
        match self.captured().as_mut() {
            Some(captured) => captured.push((name.to_owned(), launch.grid)),
            None => {
                context.suspect(name);
                context.launches.record_grid(name, launch.grid);
            }
        }
        Ok(())
    }
}
