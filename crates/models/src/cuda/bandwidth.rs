//! The bandwidth of the GPU's memory, measured now.

use super::CudaEngine;
use device::cuda::CudaError;
use std::time::Instant;

/// Far more than L2 holds.
const BYTES: usize = 1 << 30;

impl CudaEngine {
    /// Bytes per second of a copy, which reads every byte and writes it.
    pub(super) fn copy_bandwidth(&self) -> Result<f64, CudaError> {
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
        let times = (0..5).map(|_| once()).collect::<Result<Vec<f64>, CudaError>>()?;
        Ok(2.0 * BYTES as f64 / times.into_iter().fold(f64::MAX, f64::min))
    }
}
