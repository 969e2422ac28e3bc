//! Compile-time parameters of the kernels, and the shared memory of their blocks.

use super::experts::Experts;
use super::record;
use crate::source;
use device::cuda::{
    ComputeCapability, CudaCapabilities, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::DType;

/// Warps of a block that multiply.
pub(super) const WARPS: usize = 8;
/// Rows of a matrix product, each a chunk of a row of w: a ring stage.
const STAGE_ROWS: usize = 16;
/// Maximum number of ring stages of a block in one stage of the sequence: their sums are in shared memory.
pub(super) const SUM_STAGES: usize = 20;
/// Maximum number of columns of a block: two threads add up one.
pub(super) const MAX_COLUMNS: usize = 32 * WARPS / 2;
/// Shared memory of x in f16, bytes.
const X: usize = 16 << 10;
/// Static shared memory of a block, bytes: state of all stages, and barriers.
const STATIC_BYTES: usize = 8 << 10;
/// Bytes that loads read beyond the scales of a block's last row; they are unused.
const SLACK: usize = 256;
/// Maximum number of stages of a launch.
pub(super) const MAX_STAGES: usize = 128;

/// Numbers of warps that multiply: all, or six if K is three quarters of a supported width, so that rows of w are
/// whole chunks.
const WORKING: [usize; 2] = [WARPS, 6];

/// Supported forms of x: whether it is f32, its columns if all warps multiply, and whether it is normalized. Not
/// every kernel has all of them: see [`Weights::has_form`].
pub(super) const FORMS_OF_X: [(bool, usize, bool); 4] =
    [(true, 2048, true), (false, 4096, true), WIDEST, PLAIN];
const WIDEST: (bool, usize, bool) = (false, 8192, false);
const PLAIN: (bool, usize, bool) = (false, 2048, false);

/// The code of a form in kernels: see FORM in `phase.cuh`.
pub(super) fn form_of_x((f32, inputs, normed): (bool, usize, bool)) -> usize {
    let loads = inputs / (WARPS * 32 * if f32 { 2 } else { 4 });
    loads * 4 + usize::from(f32) * 2 + usize::from(normed)
}

/// The form of such an x and the number of warps that multiply it; `None` if no kernel has code for it.
pub(crate) fn x_of(f32: bool, inputs: usize, normed: bool) -> Option<(usize, usize)> {
    WORKING.into_iter().find_map(|working| {
        let of_all = inputs * WARPS / working;
        let whole = of_all * working == inputs * WARPS;
        let form = FORMS_OF_X.into_iter().find(|of| whole && *of == (f32, of_all, normed))?;
        Some((form_of_x(form), working))
    })
}

/// Columns of Kimi-Linear's residual stream: there are kernels for its norms, routers and experts, but not for its
/// projections.
pub(super) const OF_EXPERTS_ALONE: usize = 2304;

/// Number of warps that multiply rows of `columns` columns, if that is a supported residual stream: a row of w is two
/// or three chunks.
pub(crate) fn warps_of_stream(columns: usize) -> Option<usize> {
    let alone = (columns == OF_EXPERTS_ALONE).then_some(6);
    alone.or_else(|| x_of(true, columns, true).map(|(_, working)| working))
}

/// The sources that all kernels share, followed by the kernel's own.
macro_rules! parts {
    ($($part:literal)*) => {
        &[
            source!("../include/ampere.cuh"),
            source!("../include/storage.cuh"),
            source!("phase.cuh"),
            source!("barriers.cuh"),
            $(source!($part),)*
        ]
    };
}

const CHAIN: &[SourcePart] = parts!(
    "weights.cuh" "input.cuh" "linear.cuh" "scan.cuh"
    "chain.cu"
);
const CHAIN_OF_EXPERTS: &[SourcePart] = parts!(
    "../moe/choose.cuh" "weights.cuh" "input.cuh" "linear.cuh" "scan.cuh"
    "norm.cuh" "experts.cuh" "chain.cu"
);
const SCAN: &[SourcePart] = parts!("scan.cuh" "scan.cu");

/// Compile-time parameters of a kernel: the storage of weights, and its experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weights {
    /// Warps that multiply them.
    pub(crate) working: usize,
    /// e4m3, i8 or u4.
    pub(crate) dtype: DType,
    /// Columns of a row that share a scale; 0: the whole row.
    pub(crate) blocks: usize,
    /// Type of a group scale.
    pub(crate) factor: DType,
    /// Whether groups have offsets too.
    pub(crate) offset: bool,
    /// The experts that the kernel is compiled for; their weights are stored in the same way.
    pub(crate) experts: Option<Experts>,
}

impl Weights {
    /// With a scale for each row.
    pub(crate) const fn by_rows(dtype: DType) -> Self {
        let factor = DType::F32;
        Self { working: WARPS, dtype, blocks: 0, factor, offset: false, experts: None }
    }

    /// The kernel for these experts; its projections have row scales.
    pub(super) fn of_experts(experts: Experts) -> Self {
        let working = warps_of_stream(experts.hidden).unwrap_or(WARPS);
        Self { working, experts: Some(experts), ..Self::by_rows(DType::E4m3) }
    }

    /// Whether the kernels have code for a form of x. Kernels with experts have only the forms that models combine
    /// with them; with group-scaled i8, a fourth form would exceed the registers.
    pub(crate) fn has_form(self, form: usize) -> bool {
        if self.experts.is_some_and(|experts| !experts.by_chunks(self)) {
            false
        } else if form == form_of_x(WIDEST) {
            self.experts.is_none()
        } else if form == form_of_x(PLAIN) {
            self.experts.is_some() || self.blocks == 0 || self.bits() == 4
        } else {
            FORMS_OF_X.map(form_of_x).contains(&form)
        }
    }

    pub(super) fn bits(self) -> usize {
        if self.dtype == DType::U4 { 4 } else { 8 }
    }

    /// Columns of a chunk of a row: 16 bytes of each lane of each warp, twice.
    pub(super) fn chunk(self) -> usize {
        self.working * 2 * 4 * 128 / self.bits()
    }

    /// Bytes of a ring stage.
    pub(super) fn stage(self) -> usize {
        let experts = self.experts.filter(|experts| !experts.by_chunks(self));
        experts.map_or(STAGE_ROWS * self.chunk() * self.bits() / 8, Experts::stage)
    }

    /// Shared memory of x in f16, bytes.
    pub(super) fn x_bytes(self) -> usize {
        self.experts.map_or(X, |of| X.max(of.chosen * of.inner * DType::F16.bytes()))
    }

    /// Rows of w in a ring stage if a row has `inputs` columns.
    pub(super) fn rows_of_stage(self, inputs: usize) -> usize {
        STAGE_ROWS * self.chunk() / inputs
    }

    /// Shared memory for the scales of half a stage, bytes: sufficient for the projections of known models.
    fn factor_bytes(self) -> usize {
        match (self.blocks, self.factor.bytes()) {
            (0, _) => 0,
            (32, 2) => 12 << 10,
            (32, _) => 20 << 10,
            (_, 2) => 4 << 10,
            (_, _) => 8 << 10,
        }
    }

    /// Why the scales of a block's columns do not fit in shared memory with the worst alignment of its first column.
    pub(super) fn no_room_for(
        self,
        inputs: usize,
        columns: usize,
        of_block: usize,
    ) -> Option<String> {
        if self.blocks == 0 {
            return None;
        }
        let types = [Some(self.factor), self.offset.then_some(DType::F32)];
        for size in types.into_iter().flatten().map(DType::bytes) {
            let whole = 16 / size;
            if !columns.is_multiple_of(whole) {
                return Some(format!(
                    "needs M a multiple of {whole} with these scales, got {columns}"
                ));
            }
            // A block's first column is even.
            let stride = (whole - 2 + of_block).div_ceil(whole) * 16;
            let (wanted, there) = (inputs / self.blocks * stride, self.factor_bytes());
            if wanted > there {
                return Some(format!("has room for {there} bytes of factors, not for {wanted}"));
            }
        }
        None
    }

    fn factors(self) -> usize {
        2 * self.factor_bytes() * if self.offset { 2 } else { 1 }
    }

    fn x_and_sum_bytes(self) -> usize {
        self.x_bytes() + SUM_STAGES * WARPS * STAGE_ROWS * DType::F32.bytes()
    }

    /// Bytes of the ring: as many stages as fit in the shared memory of the GPUs that the kernel is compiled for.
    fn ring(self) -> usize {
        const SHARED: usize = 227 << 10;
        let stage = self.stage();
        (SHARED - STATIC_BYTES - self.x_and_sum_bytes() - self.factors() - SLACK) / stage * stage
    }

    fn shared_bytes(self) -> usize {
        self.ring() + self.x_and_sum_bytes() + self.factors() + SLACK
    }

    /// Why no kernel with these parameters runs on this GPU.
    pub(crate) fn unfit(self, here: &CudaCapabilities) -> Option<String> {
        if let Some(reason) = unfit(here) {
            return Some(reason);
        }
        let (wanted, there) = (self.shared_bytes() + STATIC_BYTES, here.shared_bytes as usize);
        (wanted > there)
            .then(|| format!("needs {wanted} bytes of shared memory, a block has {there}"))
    }

    /// One block per SM: the computing warps, a warp that loads weights and, with group scales, a warp that loads
    /// scales.
    pub(crate) fn launch(self, here: &CudaCapabilities) -> Launch {
        let threads = 32 * (WARPS + if self.blocks == 0 { 1 } else { 2 });
        let grid = [here.multiprocessors, 1, 1];
        let launch = Launch::new(grid, threads as u32, self.shared_bytes() as u32);
        Launch { overlaps: true, together: true, ..launch }
    }

    /// The kernel of fused sequences and of a single projection.
    pub(crate) fn source(self, arch: GpuArch) -> KernelSource {
        let parts = if self.experts.is_some() { CHAIN_OF_EXPERTS } else { CHAIN };
        self.defined("persistent_chain", parts, arch)
    }

    fn defined(
        self,
        name: &'static str,
        parts: &'static [SourcePart],
        arch: GpuArch,
    ) -> KernelSource {
        let factor_bits = match self.factor {
            DType::F16 => 16,
            DType::Bf16 => 17,
            _ => 32,
        };
        let Experts { of, always, chosen, inner, hidden } = self.experts.unwrap_or_default();
        KernelSource::new(name, parts, arch)
            .define("DTYPE", DType::Bf16)
            .define("WORKING", self.working)
            .define("WEIGHT_BITS", self.bits())
            .define("INTEGERS", u8::from(self.dtype != DType::E4m3))
            .define("BLOCKS", self.blocks)
            .define("FACTOR_BITS", factor_bits)
            .define("OFFSET", u8::from(self.offset))
            .define("RING_BYTES", self.ring())
            .define("FACTOR_BYTES", self.factor_bytes())
            .define("SUM_STAGES", SUM_STAGES)
            .define("MOST_PHASES", MAX_STAGES)
            .define("PHASE_BYTES", record::BYTES)
            .define("STAGE_BYTES", self.stage())
            .define("X_BYTES", self.x_bytes())
            .define("EXPERTS", of)
            .define("ALWAYS", always)
            .define("CHOSEN", chosen)
            .define("INNER", inner)
            .define("HIDDEN", hidden)
    }
}

/// Default parameters. A stage without weights runs in every kernel.
pub(super) const ANY: Weights = Weights::by_rows(DType::E4m3);

/// The kernel of a single scan.
pub(crate) fn scan_source(arch: GpuArch) -> KernelSource {
    ANY.defined("ssd_persistent", SCAN, arch)
}

/// One block of computing warps per SM.
pub(crate) fn scan_launch(here: &CudaCapabilities) -> Launch {
    let launch = Launch::new([here.multiprocessors, 1, 1], 32 * WARPS as u32, 0);
    Launch { overlaps: true, ..launch }
}

/// Why no persistent kernel runs on this GPU.
pub(crate) fn unfit(here: &CudaCapabilities) -> Option<String> {
    let old = here.compute < ComputeCapability::new(9, 0);
    old.then(|| format!("needs compute capability 9.0, this GPU has {}", here.compute))
}

/// Bundled kernels: fused sequences for the weights of known models, and a single scan for verification.
pub(crate) fn bundled() -> Vec<KernelSource> {
    let rows = Weights::by_rows;
    let blocks = |dtype, blocks, factor| Weights { blocks, factor, ..rows(dtype) };
    let experts = |hidden| Weights::of_experts(Experts::of_stream(hidden));
    let weights = [
        rows(DType::E4m3),
        rows(DType::I8),
        blocks(DType::I8, 32, DType::F16),
        blocks(DType::U4, 128, DType::Bf16),
        blocks(DType::U4, 128, DType::F16),
        blocks(DType::U4, 32, DType::F16),
        Weights { offset: true, ..blocks(DType::U4, 32, DType::F32) },
        // Granite 4.0 H Tiny's.
        Weights { working: 6, ..rows(DType::E4m3) },
        experts(1536),
        experts(2048),
        // Kimi-Linear's.
        experts(2304),
        Weights { working: 6, ..blocks(DType::U4, 128, DType::Bf16) },
    ];
    let arch = || GpuArch::of(ComputeCapability::new(9, 0));
    let chains = weights.map(|weights| weights.source(arch()));
    chains.into_iter().chain([scan_source(arch())]).collect()
}
