use super::Planner;
use device::cuda::{CudaCapabilities, DeviceError};

/// One implementation of an op for NVIDIA GPUs.
pub struct CudaVariant<P: 'static> {
    /// Name, unique within the op, for example `hopper`.
    pub name: &'static str,
    /// Why it cannot run this problem on this GPU; `None` when it can.
    pub why_not: fn(&P, &CudaCapabilities) -> Option<String>,
    /// Plans its launches; the first one added by [`Planner::launch`] must be the main kernel.
    pub plan: fn(&P, &mut Planner<'_>) -> Result<(), DeviceError>,
}
