//! Kernels: functions of loaded modules, and their launch limits.
#![allow(unsafe_code)] // Calls of the driver.

use super::context::Context;
use super::driver::{Driver, Handle};
use super::{Args, DeviceError, KernelOrigin, Launch};
use std::ffi::{CString, c_int};
use std::sync::{Arc, Mutex, PoisonError};

/// `CUfunction_attribute` numbers.
const THREADS: c_int = 0;
const STATIC_SHARED_BYTES: c_int = 1;
const LOCAL_BYTES: c_int = 3;
const REGISTERS: c_int = 4;
const DYNAMIC_SHARED_BYTES: c_int = 8;
const ANY_CLUSTER_SIZE: c_int = 14;
/// The largest cluster size that needs no opt-in.
const PORTABLE_CLUSTER: u32 = 8;

/// Resources of a kernel on an SM, as read by the driver from the binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    /// Maximum threads per block.
    pub threads: u32,
    /// Registers per thread.
    pub registers: u32,
    /// Static shared memory per block, in bytes.
    pub static_shared_bytes: u32,
    /// Local memory per thread, in bytes: 0 without spills.
    pub local_bytes: u32,
}

/// A kernel on one GPU.
#[derive(Debug, Clone)]
pub struct Kernel {
    context: Arc<Context>,
    function: Arc<Function>,
}

/// A function of a loaded module. There is one object per driver handle, because the limits are state of the handle: a
/// second object would overwrite limits that it does not know.
#[derive(Debug)]
pub(super) struct Function {
    name: &'static str,
    raw: Handle,
    origin: KernelOrigin,
    resources: Resources,
    /// Offsets relative to the first parameter, and sizes, if the driver reports them.
    parameters: Option<Vec<(usize, usize)>>,
    limits: Mutex<Limits>,
}

/// The opt-in limits set for launches of a function. They are raised and never lowered, because another thread's launch
/// may rely on them.
#[derive(Debug, Default)]
struct Limits {
    shared_bytes: u32,
    any_cluster: bool,
}

// SAFETY: the driver's handles may be used from every thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Looks up a function of a module, and its resources.
    pub(super) fn find(
        context: &Context,
        module: Handle,
        name: &'static str,
        origin: KernelOrigin,
    ) -> Result<Self, DeviceError> {
        let driver = context.driver;
        let terminated = CString::new(name)
            .map_err(|_| DeviceError::refused("a kernel's name holds a zero byte"))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is loaded and the name ends with a zero.
        let code = unsafe { (driver.module_function)(&raw mut raw, module, terminated.as_ptr()) };
        context.check("cuModuleGetFunction", code)?;
        let attribute = |number| {
            let mut value = 0;
            // SAFETY: the pointer is to a local that outlives the call.
            let code = unsafe { (driver.function_attribute)(&raw mut value, number, raw) };
            context.check("cuFuncGetAttribute", code).map(|()| value.unsigned_abs())
        };
        let resources = Resources {
            threads: attribute(THREADS)?,
            registers: attribute(REGISTERS)?,
            static_shared_bytes: attribute(STATIC_SHARED_BYTES)?,
            local_bytes: attribute(LOCAL_BYTES)?,
        };
        let parameters = parameters(driver, raw);
        Ok(Self { name, raw, origin, resources, parameters, limits: Mutex::default() })
    }
}

/// Offsets relative to the first parameter, and sizes of a function's parameters; `None` if the driver is too old to
/// report them. The first offset is not always 0: on Hopper, parameters begin 16 bytes after a multiple of 64, and
/// tensor maps are aligned to that by their address.
fn parameters(driver: &Driver, function: Handle) -> Option<Vec<(usize, usize)>> {
    let ask = driver.parameter?;
    let place = |index| {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the pointers are to locals; past the last parameter the driver returns an error.
        let code = unsafe { ask(function, index, &raw mut offset, &raw mut size) };
        (code == 0).then_some((offset, size))
    };
    let (first, _) = place(0).unwrap_or_default();
    let from_first = |(offset, size): (usize, usize)| (offset.wrapping_sub(first), size);
    Some((0..).map_while(place).map(from_first).collect())
}

impl Kernel {
    pub(super) fn new(context: &Arc<Context>, function: Arc<Function>) -> Self {
        Self { context: Arc::clone(context), function }
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        self.function.name
    }

    /// The origin of its binary.
    pub fn origin(&self) -> &KernelOrigin {
        &self.function.origin
    }

    /// Its resources on an SM.
    pub fn resources(&self) -> Resources {
        self.function.resources
    }

    /// Blocks of a launch that can be resident on one SM at once (occupancy).
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if a block needs more shared memory than an SM has, or an error of the driver.
    pub fn blocks_per_multiprocessor(
        &self,
        threads: u32,
        shared_bytes: u32,
    ) -> Result<u32, DeviceError> {
        let driver = self.context.enter()?;
        self.allow(shared_bytes, 1)?;
        let mut blocks = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe {
            (driver.occupancy)(
                &raw mut blocks,
                self.function.raw,
                threads as c_int,
                shared_bytes as usize,
            )
        };
        self.context.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(blocks.unsigned_abs())
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> Handle {
        self.function.raw
    }

    /// Refuses arguments of another kernel, or with a layout other than the binary's: the driver would read past their
    /// end.
    pub(super) fn check_args(&self, args: &Args) -> Result<(), DeviceError> {
        let (name, kernels) = (self.function.name, args.kernels());
        if !kernels.contains(&name) {
            let what = format!("kernel `{name}` was given the arguments of {kernels:?}");
            return Err(DeviceError::refused(what));
        }
        match &self.function.parameters {
            Some(wanted) if !args.layout().eq(wanted.iter().copied()) => {
                let given: Vec<_> = args.layout().collect();
                Err(DeviceError::refused(format!(
                    "kernel `{name}` takes parameters with offsets and bytes {wanted:?}, got {given:?}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Allows a launch this much dynamic shared memory, and clusters of this many blocks.
    pub(super) fn allow(&self, shared_bytes: u32, cluster: u32) -> Result<(), DeviceError> {
        // Read and changed under one lock, so that no thread sets a limit below one that another has raised.
        let mut limits = self.function.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if limits.shared_bytes < shared_bytes {
            self.set(DYNAMIC_SHARED_BYTES, shared_bytes).map_err(|_| {
                DeviceError::refused(format!(
                    "kernel `{}` asks for {shared_bytes} bytes of shared memory, more than this GPU gives a block",
                    self.function.name
                ))
            })?;
            limits.shared_bytes = shared_bytes;
        }
        if cluster > PORTABLE_CLUSTER && !limits.any_cluster {
            self.set(ANY_CLUSTER_SIZE, 1)?;
            limits.any_cluster = true;
        }
        Ok(())
    }

    fn set(&self, attribute: c_int, value: u32) -> Result<(), DeviceError> {
        let value = c_int::try_from(value)
            .map_err(|_| DeviceError::refused(format!("{value} is no limit of a kernel")))?;
        // SAFETY: the function is loaded.
        let code = unsafe {
            (self.context.driver.function_set_attribute)(self.function.raw, attribute, value)
        };
        self.context.check("cuFuncSetAttribute", code)
    }

    /// Adds the launch shape, which is nearly always the reason, to an error.
    pub(super) fn explain(&self, error: DeviceError, launch: &Launch) -> DeviceError {
        match error {
            DeviceError::Call { call, code, name, what } => DeviceError::Call {
                call,
                code,
                name,
                what: format!(
                    "{what}; kernel `{}`, grid {:?}, block {:?} of at most {} threads, cluster {:?}, {} bytes of dynamic and {} of static shared memory",
                    self.function.name,
                    launch.grid,
                    launch.block,
                    self.function.resources.threads,
                    launch.cluster,
                    launch.shared_bytes,
                    self.function.resources.static_shared_bytes
                ),
            },
            other => other,
        }
    }
}
