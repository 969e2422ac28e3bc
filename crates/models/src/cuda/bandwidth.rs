//! Measures the bandwidth of the GPU's memory.

use super::CudaEngine;
use device::cuda::DeviceError;
use std::time::Instant;

/// Far larger than L2.
const BYTES: usize = 1 << 30;

impl CudaEngine {
    /// Bytes per second of a copy, which reads and writes every byte.
    pub(super) fn copy_bandwidth(&self) -> Result<f64, DeviceError> {
        let (from, to) = (self.stream.allocate(BYTES)?, self.stream.allocate(BYTES)?);
        let once = || {
            self.stream.synchronize()?;
            let start = Instant::now();
            for _ in 0..4 {
                self.stream.copy(&from, &to, BYTES)?;
            }
            self.stream.synchronize()?;
            Ok(start.elapsed().as_secs_f64() / 4.0)
        };
        let times = (0..5).map(|_| once()).collect::<Result<Vec<f64>, DeviceError>>()?;
        Ok(2.0 * BYTES as f64 / times.into_iter().fold(f64::MAX, f64::min))
    }
}
