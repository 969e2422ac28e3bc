//! Loaded kernels.
#![allow(unsafe_code)] // Calls of the driver.

use super::context::Context;
use super::driver::{Driver, Handle};
use super::source::SourceParts;
use super::{Bundle, Cache, Cuda, CudaError, KernelSource, Launch, Origin, resolve};
use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// `CUfunction_attribute` numbers.
const THREADS: c_int = 0;
const STATIC_SHARED_BYTES: c_int = 1;
const LOCAL_BYTES: c_int = 3;
const REGISTERS: c_int = 4;
const DYNAMIC_SHARED_BYTES: c_int = 8;
const ANY_CLUSTER_SIZE: c_int = 14;

/// What a kernel takes of a multiprocessor, as the driver reads it from the binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    /// Most threads of a block.
    pub threads: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, bytes.
    pub static_shared_bytes: u32,
    /// Local memory of a thread, bytes: 0 where nothing is spilled.
    pub local_bytes: u32,
}

/// A kernel on one GPU.
#[derive(Debug, Clone)]
pub struct Kernel {
    context: Arc<Context>,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: &'static str,
    function: Handle,
    origin: Origin,
    resources: Resources,
    /// Sizes of its parameters, where the driver tells.
    parameters: Option<Vec<usize>>,
    /// Dynamic shared memory already allowed.
    shared: AtomicU32,
}

// SAFETY: the driver's handles may be used from every thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Modules that the context has loaded, by source key. They are unloaded with the context.
#[derive(Default)]
pub(super) struct Modules {
    loaded: Mutex<BTreeMap<[u8; 32], Loaded>>,
    /// Kernels that were asked for, by what a source is made of: a key is a hash over a long text, too slow for every
    /// call of a model's every layer.
    known: Mutex<BTreeMap<SourceParts, Arc<Inner>>>,
}

struct Loaded {
    module: Handle,
    origin: Origin,
}

impl Modules {
    /// Unloads everything; nobody has a function of them any more.
    pub(super) fn unload(&self, driver: &Driver) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        for loaded in std::mem::take(&mut *loaded).into_values() {
            // SAFETY: loaded once, unloaded once.
            unsafe { (driver.module_unload)(loaded.module) };
        }
    }
}

impl Cuda {
    /// A kernel from the bundle, the cache on disk or the compiler, in this order. A second call for the same source
    /// is only a look-up.
    ///
    /// # Errors
    /// [`CudaError::NoCompiler`], [`CudaError::Compile`], or an error of the driver that loads it.
    pub fn kernel(&self, source: &KernelSource, bundle: &Bundle) -> Result<Kernel, CudaError> {
        let context = self.context();
        let driver = context.enter()?;
        let known = || context.modules.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = known().get(&source.parts()) {
            return Ok(Kernel { context: Arc::clone(context), inner: Arc::clone(inner) });
        }
        let key = source.key();
        let loaded = || context.modules.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |key| loaded().get(key).map(|loaded| (loaded.module, loaded.origin.clone()));
        let (module, origin) = match find(&key) {
            Some(found) => found,
            None => {
                let cache = Cache::of_user();
                let limit = driver.interface().0;
                // Not under the lock: what is bundled need not wait for what is compiled.
                let (image, origin) = resolve::resolve(source, bundle, cache.as_ref(), limit)?;
                let mut loaded = loaded();
                match loaded.get(&key) {
                    // Another thread wanted the same one and was faster.
                    Some(loaded) => (loaded.module, loaded.origin.clone()),
                    None => {
                        let mut module = std::ptr::null_mut();
                        // SAFETY: the image is a whole cubin, whose own headers tell its length.
                        let code =
                            unsafe { (driver.module_load)(&raw mut module, image.as_ptr().cast()) };
                        context.check("cuModuleLoadData", code)?;
                        loaded.insert(key, Loaded { module, origin: origin.clone() });
                        (module, origin)
                    }
                }
            }
        };
        let name = CString::new(source.name())
            .map_err(|_| CudaError::refused("a kernel's name holds a zero byte"))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded and the name ends with a zero.
        let code = unsafe { (driver.module_function)(&raw mut function, module, name.as_ptr()) };
        context.check("cuModuleGetFunction", code)?;
        let attribute = |number| {
            let mut value = 0;
            // SAFETY: the pointer is to a local that outlives the call.
            let code = unsafe { (driver.function_attribute)(&raw mut value, number, function) };
            context.check("cuFuncGetAttribute", code).map(|()| value.unsigned_abs())
        };
        let resources = Resources {
            threads: attribute(THREADS)?,
            registers: attribute(REGISTERS)?,
            static_shared_bytes: attribute(STATIC_SHARED_BYTES)?,
            local_bytes: attribute(LOCAL_BYTES)?,
        };
        let inner = Arc::new(Inner {
            name: source.name(),
            function,
            origin,
            resources,
            parameters: parameters(driver, function),
            shared: AtomicU32::new(0),
        });
        known().insert(source.parts(), Arc::clone(&inner));
        Ok(Kernel { context: Arc::clone(context), inner })
    }
}

/// Sizes of a function's parameters; `None` where the driver is too old to tell.
fn parameters(driver: &Driver, function: Handle) -> Option<Vec<usize>> {
    let ask = driver.parameter?;
    let size = |index| {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the pointers are to locals; past the last parameter the driver gives an error.
        let code = unsafe { ask(function, index, &raw mut offset, &raw mut size) };
        (code == 0).then_some(size)
    };
    Some((0..).map_while(size).collect())
}

impl Kernel {
    /// Its function's name.
    pub fn name(&self) -> &str {
        self.inner.name
    }

    /// Where its binary came from.
    pub fn origin(&self) -> &Origin {
        &self.inner.origin
    }

    /// What it takes of a multiprocessor.
    pub fn resources(&self) -> Resources {
        self.inner.resources
    }

    /// Blocks of a launch that one multiprocessor can hold at once.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when a block asks for more shared memory than there is, or an error of the driver.
    pub fn blocks_per_multiprocessor(
        &self,
        threads: u32,
        shared_bytes: u32,
    ) -> Result<u32, CudaError> {
        let driver = self.context.enter()?;
        self.allow_shared(shared_bytes)?;
        let mut blocks = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe {
            (driver.occupancy)(
                &raw mut blocks,
                self.inner.function,
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
        self.inner.function
    }

    /// Refuses arguments that are not what the binary takes: the driver would read past their end.
    pub(super) fn check_args(&self, given: &[usize]) -> Result<(), CudaError> {
        match &self.inner.parameters {
            Some(wanted) if wanted != given => Err(CudaError::refused(format!(
                "kernel `{}` takes parameters of {wanted:?} bytes, got {given:?}",
                self.inner.name
            ))),
            _ => Ok(()),
        }
    }

    /// Raises the limit of dynamic shared memory, and allows clusters of more than eight blocks, once.
    pub(super) fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        if self.inner.shared.load(Ordering::Relaxed) >= bytes {
            return Ok(());
        }
        let (context, driver) = (&self.context, self.context.driver);
        let wanted = c_int::try_from(bytes)
            .map_err(|_| CudaError::refused(format!("{bytes} bytes of shared memory")))?;
        // SAFETY: the function is loaded.
        let code = unsafe {
            (driver.function_set_attribute)(self.inner.function, DYNAMIC_SHARED_BYTES, wanted)
        };
        context.check("cuFuncSetAttribute", code).map_err(|_| {
            CudaError::refused(format!(
                "kernel `{}` asks for {bytes} bytes of shared memory, more than this GPU gives a block",
                self.inner.name
            ))
        })?;
        // SAFETY: as above. Architectures without clusters refuse this, and need it not.
        unsafe { (driver.function_set_attribute)(self.inner.function, ANY_CLUSTER_SIZE, 1) };
        self.inner.shared.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// A refused launch with its shape, which is nearly always the reason.
    pub(super) fn explain(&self, error: CudaError, launch: &Launch) -> CudaError {
        match error {
            CudaError::Call { call, code, name, what } => CudaError::Call {
                call,
                code,
                name,
                what: format!(
                    "{what}; kernel `{}`, grid {:?}, block {:?} of at most {} threads, cluster {:?}, {} bytes of dynamic and {} of static shared memory",
                    self.inner.name,
                    launch.grid,
                    launch.block,
                    self.inner.resources.threads,
                    launch.cluster,
                    launch.shared_bytes,
                    self.inner.resources.static_shared_bytes
                ),
            },
            other => other,
        }
    }
}
