//! From a source to a binary: the bundle, then the cache, then the compiler.

use super::{Bundle, Cache, CudaError, KernelSource, Nvrtc, compiler_process};
use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

/// Keys of the kernels that are compiled now: cases are verified side by side, and neighbours want the same kernels.
static COMPILING: Mutex<BTreeSet<[u8; 32]>> = Mutex::new(BTreeSet::new());
/// Told when one of them is done.
static COMPILED: Condvar = Condvar::new();

/// Where a kernel's binary came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Bundle,
    /// Compiled on this machine before.
    Cache,
    /// Compiled just now, by this version of NVRTC.
    Compiler(u32, u32),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bundle => f.write_str("bundle"),
            Self::Cache => f.write_str("cache"),
            Self::Compiler(major, minor) => write!(f, "NVRTC {major}.{minor}"),
        }
    }
}

/// The binary of a source. The compiler may be of any version up to CUDA `newest`, the driver's: the driver loads no
/// binary of a later one.
pub(super) fn resolve(
    source: &KernelSource,
    bundle: &Bundle,
    cache: Option<&Cache>,
    newest: u32,
) -> Result<(Vec<u8>, Origin), CudaError> {
    let key = source.key();
    if let Some(binary) = bundle.find(&key) {
        return Ok((binary, Origin::Bundle));
    }
    if let Some(binary) = cache.and_then(|cache| cache.find(&key)) {
        return Ok((binary, Origin::Cache));
    }
    compiled_once(&key, cache, || {
        let nvrtc = Nvrtc::find(newest).map_err(|tried| CudaError::NoCompiler {
            kernel: source.label(),
            arch: source.arch().to_string(),
            tried,
        })?;
        let binary = compiler_process::compile(nvrtc, source)?;
        let (major, minor) = nvrtc.version();
        Ok((binary, Origin::Compiler(major, minor)))
    })
}

/// Compiles what no other thread has compiled by the time that this one may.
fn compiled_once(
    key: &[u8; 32],
    cache: Option<&Cache>,
    compile: impl FnOnce() -> Result<(Vec<u8>, Origin), CudaError>,
) -> Result<(Vec<u8>, Origin), CudaError> {
    let _claim = Claim::of(*key);
    if let Some(binary) = cache.and_then(|cache| cache.find(key)) {
        return Ok((binary, Origin::Cache));
    }
    let (binary, origin) = compile()?;
    if let Some(cache) = cache {
        // A cache that cannot be written costs the next one a compilation, nothing else.
        let _ = cache.keep(key, &binary);
    }
    Ok((binary, origin))
}

/// The right to compile a kernel, which one thread has at a time.
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
    use crate::cuda::{ComputeCapability, GpuArch, Part, bundle};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn the_bundle_comes_before_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let arch = GpuArch::of(ComputeCapability::new(8, 0));
        let text = Part::Text("extern \"C\" __global__ void f() {}");
        let parts = Box::leak(Box::new([text]));
        let source = KernelSource::new("f", parts, arch);
        let bundled = vec![(source.clone(), b"bundled".to_vec())];
        let bundle = bundle::tests::packed(bundled);
        cache.keep(&source.key(), b"cached").unwrap();
        let found = |bundle| resolve(&source, bundle, Some(&cache), 12).unwrap();
        assert_eq!(found(&bundle), (b"bundled".to_vec(), Origin::Bundle));
        assert_eq!(found(&Bundle::new(&[])), (b"cached".to_vec(), Origin::Cache));
    }
    #[test]
    fn threads_that_want_the_same_kernel_have_it_compiled_once() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, compiled) = (Cache::at(folder.path()), AtomicUsize::new(0));
        let compile = || {
            compiled.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            Ok((b"binary".to_vec(), Origin::Compiler(13, 0)))
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
