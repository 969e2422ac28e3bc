//! Loaded modules of a context, and their kernels.
#![allow(unsafe_code)] // Calls of the driver.

use super::context::Context;
use super::driver::{Driver, Handle};
use super::kernel::Function;
use super::source::SourceIdentity;
use super::{Bundle, Cache, Cuda, DeviceError, Kernel, KernelOrigin, KernelSource, resolve};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Modules of a context, by source key. They are unloaded with the context.
#[derive(Default)]
pub(super) struct Modules {
    /// Each key has a separate lock: a request for a module that is being loaded waits for it, and bundled modules do
    /// not wait for compilations.
    by_key: Mutex<BTreeMap<[u8; 32], Arc<LoadedModule>>>,
    /// Requested kernels, by the identity of their source: its key is a hash of a long text, too slow for every call of
    /// every layer.
    known: Mutex<BTreeMap<SourceIdentity, Arc<Function>>>,
    /// Nanoseconds of loading, summed over all threads.
    nanos: AtomicU64,
}

/// The module of a key, once it is loaded.
type LoadedModule = Mutex<Option<Module>>;

struct Module {
    raw: Handle,
    origin: KernelOrigin,
    functions: BTreeMap<&'static str, Arc<Function>>,
}

/// Locks a mutex, even after a panic elsewhere: the state is never left half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Modules {
    /// Unloads everything; no function is in use any more.
    pub(super) fn unload(&self, driver: &Driver) {
        for module in std::mem::take(&mut *lock(&self.by_key)).into_values() {
            if let Some(module) = lock(&module).take() {
                // SAFETY: loaded once, unloaded once.
                unsafe { (driver.module_unload)(module.raw) };
            }
        }
    }
}

impl Cuda {
    /// Number of modules loaded so far, and the seconds for finding, compiling and loading them, summed over all
    /// threads.
    pub fn modules_loaded(&self) -> (usize, f64) {
        let modules = &self.context().modules;
        (lock(&modules.by_key).len(), modules.nanos.load(Ordering::Relaxed) as f64 / 1e9)
    }

    /// A kernel from the bundle, the cache on disk or the compiler, in this order. Further calls for the same source
    /// are look-ups.
    ///
    /// # Errors
    /// [`DeviceError::NoCompiler`], [`DeviceError::Compile`], or an error of the driver that loads it.
    pub fn kernel(&self, source: &KernelSource, bundle: &Bundle) -> Result<Kernel, DeviceError> {
        let context = self.context();
        let driver = context.enter()?;
        let _also_while_recording = driver.relaxed();
        let known = lock(&context.modules.known).get(&source.identity()).cloned();
        let function = match known {
            Some(function) => function,
            None => {
                let function = find(context, source, bundle)?;
                lock(&context.modules.known).insert(source.identity(), Arc::clone(&function));
                function
            }
        };
        Ok(Kernel::new(context, function))
    }
}

/// The function of a source's module; loads the module if necessary.
fn find(
    context: &Context,
    source: &KernelSource,
    bundle: &Bundle,
) -> Result<Arc<Function>, DeviceError> {
    let place = Arc::clone(lock(&context.modules.by_key).entry(source.key()).or_default());
    let mut place = lock(&place);
    let module = match place.take() {
        Some(module) => module,
        None => Module::load(context, source, bundle)?,
    };
    let module = place.insert(module);
    if let Some(function) = module.functions.get(source.name()) {
        return Ok(Arc::clone(function));
    }
    let found = Function::find(context, module.raw, source.name(), module.origin.clone())?;
    let function = Arc::new(found);
    module.functions.insert(source.name(), Arc::clone(&function));
    Ok(function)
}

impl Module {
    fn load(
        context: &Context,
        source: &KernelSource,
        bundle: &Bundle,
    ) -> Result<Self, DeviceError> {
        let (driver, start) = (context.driver, Instant::now());
        let cache = Cache::of_user();
        let limit = driver.interface().0;
        let (image, origin) = resolve::resolve(source, bundle, cache.as_ref(), limit)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is a whole cubin, whose headers contain its length.
        let code = unsafe { (driver.module_load)(&raw mut raw, image.as_ptr().cast()) };
        context.check("cuModuleLoadData", code)?;
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        context.modules.nanos.fetch_add(nanos, Ordering::Relaxed);
        Ok(Self { raw, origin, functions: BTreeMap::new() })
    }
}
