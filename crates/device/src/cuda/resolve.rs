//! From a source to a binary: the bundle, then the cache, then the compiler.

use super::{Bundle, Cache, CudaError, KernelSource, Nvrtc};

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
    let nvrtc = Nvrtc::find(newest).map_err(|tried| CudaError::NoCompiler {
        kernel: source.label(),
        arch: source.arch().to_string(),
        tried,
    })?;
    let (binary, _) = nvrtc.compile(source)?;
    if let Some(cache) = cache {
        // A cache that cannot be written costs the next process a compilation, nothing else.
        let _ = cache.keep(&key, &binary);
    }
    let (major, minor) = nvrtc.version();
    Ok((binary, Origin::Compiler(major, minor)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{ComputeCapability, GpuArch};

    #[test]
    fn the_bundle_comes_before_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let arch = GpuArch::of(ComputeCapability::new(8, 0));
        let source = KernelSource::new("f", &["extern \"C\" __global__ void f() {}"], arch);
        let bytes = Bundle::pack(vec![(source.key(), b"bundled".to_vec())]);
        let bundle = Bundle::new(Box::leak(bytes.into_boxed_slice()));
        cache.keep(&source.key(), b"cached").unwrap();
        let found = |bundle| resolve(&source, bundle, Some(&cache), 12).unwrap();
        assert_eq!(found(&bundle), (b"bundled".to_vec(), Origin::Bundle));
        assert_eq!(found(&Bundle::EMPTY), (b"cached".to_vec(), Origin::Cache));
    }
}
