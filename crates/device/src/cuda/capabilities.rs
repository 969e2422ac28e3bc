/// A GPU's compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// Generation.
    pub major: u32,
    /// Member of it.
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

/// What a GPU can do, as far as choosing a kernel needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaCapabilities {
    /// The driver's name for it.
    pub name: String,
    /// Its compute capability.
    pub compute: ComputeCapability,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Most shared memory that one block may ask for, bytes.
    pub shared_bytes: u32,
    /// L2 cache, bytes.
    pub l2_bytes: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// The newest CUDA that the driver supports.
    pub driver: (u32, u32),
}
