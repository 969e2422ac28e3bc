use facts::BackendKind;

/// Instruction sets the CPU variants are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust; the compiler's baseline for the target.
    Portable,
    /// 128-bit Arm vectors; part of every 64-bit Arm processor.
    Neon,
    /// 256-bit x86 vectors with fused multiply-add (x86-64-v3).
    Avx2,
    /// 512-bit x86 vectors (F, BW, DQ, VL).
    Avx512,
    /// AVX-512 with the bfloat16 dot product.
    Avx512Bf16,
}

impl Isa {
    /// Every instruction set, widest first.
    pub const ALL: [Isa; 5] = [Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable];

    /// The name used in variant names.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512bf16",
        }
    }

    /// Whether this processor supports it, by its feature flags.
    pub fn is_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::Portable => true,
            Self::Neon => false,
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Self::Avx512 => {
                Self::Avx2.is_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            Self::Avx512Bf16 => Self::Avx512.is_here() && is_x86_feature_detected!("avx512bf16"),
        }
        #[cfg(target_arch = "aarch64")]
        {
            matches!(self, Self::Portable | Self::Neon)
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            self == Self::Portable
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The capabilities of a device by which a kernel variant is selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The backend.
    pub backend: BackendKind,
    /// The driver's name of a GPU; none for the processor.
    pub name: Option<String>,
    /// Instruction sets of the processor, widest first; empty on a GPU.
    pub isas: Vec<Isa>,
    /// Threads that run a grid; 0 for a GPU.
    pub threads: usize,
}

impl Capabilities {
    /// Why a variant for `isa` cannot run here; `None` if it can.
    pub fn lacks(&self, isa: Isa) -> Option<String> {
        if self.isas.contains(&isa) {
            return None;
        }
        let have: Vec<&str> = self.isas.iter().map(|isa| isa.as_str()).collect();
        Some(format!("needs {isa}, this processor has {}", have.join(", ")))
    }
}
