//! CUDA C++ sources of kernels, and the architectures that they are compiled for.

use super::{ComputeCapability, DeviceError};
use sha2::{Digest, Sha256};

/// A real architecture (not a virtual one such as `compute_90`), as in the compiler's options: `sm_90a`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuArch(String);

/// An architecture for which the program has precompiled kernels (the bundle).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundledArch {
    /// Its compute capability.
    pub compute: ComputeCapability,
    /// Maximum shared memory of a block, in bytes.
    pub shared_bytes: u32,
    name: &'static str,
}

const fn bundled(major: u32, minor: u32, name: &'static str, shared_kib: u32) -> BundledArch {
    let compute = ComputeCapability::new(major, minor);
    BundledArch { compute, shared_bytes: shared_kib << 10, name }
}

/// Architectures in the bundle, with the shared memory of a block from the CUDA programming guide's table of technical
/// specifications (12.9). The suffix `a` enables architecture-specific instructions, so such a binary runs on no other
/// chip; binaries without it run on later chips of their generation: a B300 runs the B200's, a GB10 the RTX 5090's.
const BUNDLED: &[BundledArch] = &[
    bundled(8, 0, "sm_80", 163),
    bundled(8, 6, "sm_86", 99),
    bundled(8, 9, "sm_89", 99),
    bundled(9, 0, "sm_90a", 227),
    bundled(10, 0, "sm_100", 227),
    bundled(12, 0, "sm_120", 99),
];

impl BundledArch {
    /// Every bundled architecture.
    pub const ALL: &'static [Self] = BUNDLED;

    /// The architecture.
    pub fn arch(&self) -> GpuArch {
        GpuArch(self.name.to_owned())
    }
}

impl GpuArch {
    /// The architecture to compile for on a GPU of this capability.
    ///
    /// Binaries without the suffix `a` run on later chips of their generation. A chip that no bundled binary runs on gets its
    /// own architecture.
    pub fn of(compute: ComputeCapability) -> Self {
        let exact = BUNDLED.iter().find(|listed| listed.compute == compute);
        let earlier = BUNDLED.iter().rev().find(|listed| {
            listed.compute.major == compute.major
                && listed.compute < compute
                && !listed.name.ends_with('a')
        });
        match exact.or(earlier) {
            Some(listed) => listed.arch(),
            None => {
                let suffix = if compute.major >= 9 { "a" } else { "" };
                Self(format!("sm_{}{}{suffix}", compute.major, compute.minor))
            }
        }
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its name without the minor version: `sm_8`, `sm_10`. Binaries of one generation are similar.
    pub(super) fn generation(&self) -> &str {
        let number = self.0.trim_end_matches('a');
        &number[..number.len().saturating_sub(1)]
    }

    /// Families of GPUs whose binaries compress well together: before Hopper, Hopper, and after it. Most Hopper kernels
    /// exist only for Hopper.
    pub(super) fn family(&self) -> u8 {
        match self.generation() {
            "sm_7" | "sm_8" => 0,
            "sm_9" => 1,
            _ => 2,
        }
    }
}

impl std::fmt::Display for GpuArch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A part of a kernel's source text.
#[derive(Debug, Clone, Copy)]
pub enum SourcePart {
    /// Literal text.
    Text(&'static str),
    /// A compressed file that is embedded in the program.
    Packed {
        /// The Rust source file that embeds it.
        by: &'static str,
        /// Its path relative to that file.
        path: &'static str,
        /// Decompresses it, given these two.
        unpack: fn(&str, &str) -> &'static str,
    },
}

impl SourcePart {
    fn text(self) -> &'static str {
        match self {
            Self::Text(text) => text,
            Self::Packed { by, path, unpack } => unpack(by, path),
        }
    }
}

/// CUDA C++ and its compiler options. Its key is a hash of both, so a binary that was compiled from other text or options is
/// never used.
#[derive(Debug, Clone)]
pub struct KernelSource {
    name: &'static str,
    parts: &'static [SourcePart],
    defines: Vec<(&'static str, String)>,
    arch: GpuArch,
}

/// Identifies a source within one process without reading its text: name, address and number of its parts, and the options.
pub(super) type SourceIdentity = (&'static str, [usize; 2], Vec<(&'static str, String)>, GpuArch);

impl KernelSource {
    /// A cheap key: sources with equal identities are equal, but equal sources may have different identities.
    pub(super) fn identity(&self) -> SourceIdentity {
        let parts = [self.parts.as_ptr().addr(), self.parts.len()];
        (self.name, parts, self.defines.clone(), self.arch.clone())
    }

    /// The kernel `name` (`extern "C"`) in the concatenation of `parts`.
    pub fn new(name: &'static str, parts: &'static [SourcePart], arch: GpuArch) -> Self {
        Self { name, parts, defines: Vec::new(), arch }
    }

    /// Defines a macro.
    #[must_use]
    pub fn define(mut self, name: &'static str, value: impl ToString) -> Self {
        self.defines.push((name, value.to_string()));
        self
    }

    /// The kernel's function name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The target architecture.
    pub fn arch(&self) -> &GpuArch {
        &self.arch
    }

    /// The whole text.
    pub fn text(&self) -> String {
        self.parts.iter().map(|part| part.text()).collect::<Vec<_>>().join("\n")
    }

    /// The kernel and its macros: `attention_hopper<D=128>`.
    pub fn label(&self) -> String {
        let defines: Vec<String> =
            self.defines.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{}<{}>", self.name, defines.join(" "))
    }

    /// The error for a compiler's log.
    pub(super) fn does_not_compile(&self, log: String) -> DeviceError {
        DeviceError::Compile { kernel: self.label(), arch: self.arch.to_string(), log }
    }

    /// The compiler's options.
    pub fn options(&self) -> Vec<String> {
        let mut options = vec![
            format!("--gpu-architecture={}", self.arch),
            "--std=c++17".to_owned(),
            // Without it, unmarked functions are host code, which NVRTC does not compile.
            "-default-device".to_owned(),
        ];
        options.extend(self.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        options
    }

    /// SHA-256 of everything that determines the binary: the text and the options.
    pub fn key(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for part in std::iter::once(self.text()).chain(self.options()) {
            // With lengths, so that different parts cannot have the same concatenation.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_gets_an_architecture_it_can_run() {
        for (major, minor, expect) in [
            (8, 0, "sm_80"),
            (8, 6, "sm_86"),
            (8, 7, "sm_86"),
            (8, 9, "sm_89"),
            (9, 0, "sm_90a"),
            (10, 0, "sm_100"),
            (10, 3, "sm_100"),
            (11, 0, "sm_110a"),
            (12, 1, "sm_120"),
            (7, 5, "sm_75"),
        ] {
            assert_eq!(GpuArch::of(ComputeCapability::new(major, minor)).as_str(), expect);
        }
    }

    #[test]
    fn text_options_and_architecture_change_the_key() {
        let arch = |minor| GpuArch::of(ComputeCapability::new(8, minor));
        let source = || {
            KernelSource::new(
                "f",
                &[SourcePart::Text("int a;"), SourcePart::Text("int b;")],
                arch(0),
            )
        };
        let key = source().key();
        assert_eq!(source().key(), key);
        for other in [
            KernelSource::new(
                "f",
                &[SourcePart::Text("int a;"), SourcePart::Text("int c;")],
                arch(0),
            ),
            KernelSource::new(
                "f",
                &[SourcePart::Text("int a;"), SourcePart::Text("int b;")],
                arch(6),
            ),
            source().define("D", 64),
        ] {
            assert_ne!(other.key(), key, "{other:?}");
        }
        assert_ne!(source().define("D", 64).key(), source().define("D", 128).key());
    }
}
