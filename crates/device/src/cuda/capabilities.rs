/// A GPU's compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

impl ComputeCapability {
    /// A capability from its two numbers.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl std::fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The capabilities of a GPU by which a kernel is selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaCapabilities {
    /// The driver's name of the GPU.
    pub name: String,
    /// Its compute capability.
    pub compute: ComputeCapability,
    /// Number of SMs.
    pub multiprocessors: u32,
    /// Maximum shared memory of a block with opt-in, in bytes.
    pub shared_bytes: u32,
    /// L2 cache, in bytes.
    pub l2_bytes: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// The newest CUDA that the driver supports.
    pub driver: (u32, u32),
}
