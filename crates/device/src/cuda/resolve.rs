//! Resolves a source to a binary: from the bundle, the cache, or the compiler.

use super::{Bundle, Cache, DeviceError, KernelSource, Nvrtc, compiler_process};
use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

/// Keys of kernels that are being compiled: cases are verified concurrently, and neighbours need the same kernels.
static COMPILING: Mutex<BTreeSet<[u8; 32]>> = Mutex::new(BTreeSet::new());
/// Notified when one of them is done.
static COMPILED: Condvar = Condvar::new();

/// The origin of a kernel's binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelOrigin {
    /// Built in.
    Bundle,
    /// Compiled earlier on this machine.
    Cache,
    /// Compiled now, by this version of NVRTC.
    Compiler(u32, u32),
}

impl std::fmt::Display for KernelOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bundle => f.write_str("bundle"),
            Self::Cache => f.write_str("cache"),
            Self::Compiler(major, minor) => write!(f, "NVRTC {major}.{minor}"),
        }
    }
}

/// The binary of a source. The compiler's version must not exceed CUDA `newest`, the driver's: the driver cannot load
/// later binaries.
pub(super) fn resolve(
    source: &KernelSource,
    bundle: &Bundle,
    cache: Option<&Cache>,
    newest: u32,
) -> Result<(Vec<u8>, KernelOrigin), DeviceError> {
    let key = source.key();
    if let Some(binary) = bundle.find(&key) {
        return Ok((binary, KernelOrigin::Bundle));
    }
    if let Some(binary) = cache.and_then(|cache| cache.find(&key)) {
        return Ok((binary, KernelOrigin::Cache));
    }
    compiled_once(&key, cache, || {
        let nvrtc = Nvrtc::find(newest).map_err(|tried| DeviceError::NoCompiler {
            kernel: source.label(),
            arch: source.arch().to_string(),
            tried,
        })?;
        let binary = compiler_process::compile(nvrtc, source)?;
        let (major, minor) = nvrtc.version();
        Ok((binary, KernelOrigin::Compiler(major, minor)))
    })
}

/// Compiles a kernel, unless another thread has compiled it meanwhile.
fn compiled_once(
    key: &[u8; 32],
    cache: Option<&Cache>,
    compile: impl FnOnce() -> Result<(Vec<u8>, KernelOrigin), DeviceError>,
) -> Result<(Vec<u8>, KernelOrigin), DeviceError> {
    let _claim = Claim::of(*key);
    if let Some(binary) = cache.and_then(|cache| cache.find(key)) {
        return Ok((binary, KernelOrigin::Cache));
    }
    let (binary, origin) = compile()?;
    if let Some(cache) = cache {
        // If the cache cannot be written, the next process compiles again.
        let _ = cache.keep(key, &binary);
    }
    Ok((binary, origin))
}

/// The exclusive right of one thread to compile a kernel.
struct Claim([u8; 32]);

impl Claim {
    fn of(key: [u8; 32]) -> Self {
        let mut compiling = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        while !compiling.insert(key) {
            compiling = COMPILED.wait(compiling).unwrap_or_else(PoisonError::into_inner);
        }
        Self(key)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        COMPILING.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
        COMPILED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{ComputeCapability, GpuArch, SourcePart, bundle};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn the_bundle_comes_before_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let arch = GpuArch::of(ComputeCapability::new(8, 0));
        let text = SourcePart::Text("extern \"C\" __global__ void f() {}");
        let parts = Box::leak(Box::new([text]));
        let source = KernelSource::new("f", parts, arch);
        let bundled = vec![(source.clone(), b"bundled".to_vec())];
        let bundle = bundle::tests::packed(bundled);
        cache.keep(&source.key(), b"cached").unwrap();
        let found = |bundle| resolve(&source, bundle, Some(&cache), 12).unwrap();
        assert_eq!(found(&bundle), (b"bundled".to_vec(), KernelOrigin::Bundle));
        assert_eq!(found(&Bundle::new(&[])), (b"cached".to_vec(), KernelOrigin::Cache));
    }
    #[test]
    fn threads_that_want_the_same_kernel_have_it_compiled_once() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, compiled) = (Cache::at(folder.path()), AtomicUsize::new(0));
        let compile = || {
            compiled.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            Ok((b"binary".to_vec(), KernelOrigin::Compiler(13, 0)))
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                for key in [[7; 32], [8; 32]] {
                    let (cache, compile) = (&cache, &compile);
                    scope.spawn(move || {
                        let (binary, _) = compiled_once(&key, Some(cache), compile).unwrap();
                        assert_eq!(binary, b"binary");
                    });
                }
            }
        });
        assert_eq!(compiled.into_inner(), 2);
    }
}
