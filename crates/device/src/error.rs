use std::path::PathBuf;

/// An error of a device other than the processor. After every error except [`DeviceError::Lost`] the device stays
/// usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no usable driver or GPU.
    #[error("{reason}")]
    Unavailable {
        /// Why, in one sentence.
        reason: String,
    },
    /// The GPU has too little free memory, even after freeing cached blocks.
    #[error(
        "out of GPU memory: {asked} bytes were asked for, {free} of {total} bytes are free, {held} are held by firstlight"
    )]
    OutOfMemory {
        /// Requested bytes.
        asked: u64,
        /// Free bytes, from the driver.
        free: u64,
        /// Bytes of the GPU.
        total: u64,
        /// Bytes in live buffers of this process.
        held: u64,
    },
    /// The driver refused a call.
    #[error("{call} failed: {name} ({what})")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// The driver's code.
        code: i32,
        /// The code's name.
        name: String,
        /// The driver's message.
        what: String,
    },
    /// An error inside a kernel ended the context: every later call on this device returns this error.
    #[error("the GPU's context was lost in {call}: {name} ({what}); kernels before it: {kernels}")]
    Lost {
        /// The driver's function that reported it.
        call: &'static str,
        /// The code's name.
        name: String,
        /// The driver's message.
        what: String,
        /// Kernels launched since the last successful synchronisation.
        kernels: String,
    },
    /// An argument that is refused before the driver sees it.
    #[error("{what}")]
    Refused {
        /// The actual and the expected value.
        what: String,
    },
    /// A tensor with a memory layout that the kernel does not support: a contiguous copy would work.
    #[error("this variant wants the tokens of tensor `{tensor}` {wanted}")]
    Layout {
        /// The tensor.
        tensor: &'static str,
        /// The required layout.
        wanted: &'static str,
    },
    /// A kernel that is neither in the bundle nor in the cache, and no compiler is installed.
    #[error("kernel `{kernel}` for {arch} is not built in, and NVRTC was not found to compile it")]
    NoCompiler {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// Searched paths of NVRTC.
        tried: Vec<PathBuf>,
    },
    /// The compiler refused a kernel.
    #[error("kernel `{kernel}` for {arch} does not compile: {log}")]
    Compile {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// The compiler's log.
        log: String,
    },
}

impl DeviceError {
    pub(crate) fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into() }
    }

    pub(crate) fn refused(what: impl Into<String>) -> Self {
        Self::Refused { what: what.into() }
    }

    /// A hint for the user, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::OutOfMemory { .. } => Some(
                "use a smaller batch or shorter sequences; `nvidia-smi` shows who else holds memory"
                    .to_owned(),
            ),
            Self::Lost { .. } => Some(
                "this process cannot use the GPU any more, start it again; `compute-sanitizer` finds the access"
                    .to_owned(),
            ),
            Self::NoCompiler { tried, .. } => {
                let tried: Vec<String> =
                    tried.iter().map(|path| path.display().to_string()).collect();
                Some(format!(
                    "`pip install nvidia-cuda-nvrtc-cu12` into the active environment, or set FIRSTLIGHT_NVRTC to libnvrtc.so.12 (looked at {})",
                    tried.join(", ")
                ))
            }
            _ => None,
        }
    }
}
