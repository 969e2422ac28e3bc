use std::path::PathBuf;

/// What went wrong on a GPU. After every one of these but [`CudaError::Lost`] the device can go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver, no GPU, or none that can be used.
    #[error("{reason}")]
    Unavailable {
        /// Why, in one sentence.
        reason: String,
    },
    /// The GPU has too little free memory, kept blocks given back already.
    #[error(
        "out of GPU memory: {asked} bytes were asked for, {free} of {total} bytes are free, {held} are held by firstlight"
    )]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that the driver says are free.
        free: u64,
        /// Bytes of the GPU.
        total: u64,
        /// Bytes that live buffers of this process hold.
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
        /// The driver's text.
        what: String,
    },
    /// An error inside a kernel ended the context: every later call on this device gives this error.
    #[error("the GPU's context was lost in {call}: {name} ({what}); kernels before it: {kernels}")]
    Lost {
        /// The driver's function that reported it.
        call: &'static str,
        /// The code's name.
        name: String,
        /// The driver's text.
        what: String,
        /// The kernels that were launched since the last time the stream was known to be good.
        kernels: String,
    },
    /// An argument that this room refuses before the driver sees it.
    #[error("{what}")]
    Refused {
        /// What was given and what was wanted.
        what: String,
    },
    /// A tensor whose elements do not lie as a kernel reads them: a copy of it would.
    #[error("this variant wants the tokens of tensor `{tensor}` {wanted}")]
    Layout {
        /// The tensor.
        tensor: &'static str,
        /// How they are wanted.
        wanted: &'static str,
    },
    /// A kernel that is neither in the bundle nor in the cache, and no compiler to make it.
    #[error("kernel `{kernel}` for {arch} is not built in, and NVRTC was not found to compile it")]
    NoCompiler {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// Where NVRTC was looked for.
        tried: Vec<PathBuf>,
    },
    /// The compiler refused a kernel.
    #[error("kernel `{kernel}` for {arch} does not compile: {log}")]
    Compile {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// The compiler's words.
        log: String,
    },
}

impl CudaError {
    pub(super) fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into() }
    }

    pub(super) fn refused(what: impl Into<String>) -> Self {
        Self::Refused { what: what.into() }
    }

    /// What to do about it, where there is something to say.
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
