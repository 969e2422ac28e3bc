//! What kernels are compiled for, and what their blocks take.

use super::experts::Experts;
use super::record;
use crate::source;
use device::cuda::{ComputeCapability, CudaCapabilities, GpuArch, KernelSource, Launch, Part};
use ops::DType;

/// Warps of a block that multiply.
pub(super) const WARPS: usize = 8;
/// Rows of a matrix product, each a chunk of a row of w, that are multiplied at once: a stage.
const STAGE_ROWS: usize = 16;
/// Stages whose sums a block holds: those of all its columns in one phase.
pub(super) const SUM_STAGES: usize = 20;
/// Columns of a block at most: two threads sum up one.
pub(super) const MOST_COLUMNS: usize = 32 * WARPS / 2;
/// x in f16, bytes.
const X: usize = 16 << 10;
/// What a block has in shared memory beside all that, bytes: what it knows of all phases, and barriers.
const BESIDE: usize = 8 << 10;
/// What is loaded behind the factors of a block's last row, bytes: it belongs to nothing.
const SLACK: usize = 256;
/// Phases of a launch at most.
pub(super) const MOST_PHASES: usize = 128;

/// Of these, those that multiply: all, or so many that narrower rows of w are whole chunks.
const WORKING: [usize; 2] = [WARPS, 6];

/// Forms of x that there is code for: whether it is in f32, how many columns it has where all warps multiply, and whether there is a norm.
/// Not all kernels have all: see [`Weights::has_form`].
pub(super) const FORMS_OF_X: [(bool, usize, bool); 4] =
    [(true, 2048, true), (false, 4096, true), WIDEST, PLAIN];
const WIDEST: (bool, usize, bool) = (false, 8192, false);
const PLAIN: (bool, usize, bool) = (false, 2048, false);

/// A form of x as kernels know it: see FORM in `phase.cuh`.
pub(super) fn form_of_x((f32, inputs, normed): (bool, usize, bool)) -> usize {
    let loads = inputs / (WARPS * 32 * if f32 { 2 } else { 4 });
    loads * 4 + usize::from(f32) * 2 + usize::from(normed)
}

/// The form of such an x, and how many warps multiply it; none where no kernel has code for it.
pub(crate) fn x_of(f32: bool, inputs: usize, normed: bool) -> Option<(usize, usize)> {
    WORKING.into_iter().find_map(|working| {
        let of_all = inputs * WARPS / working;
        let whole = of_all * working == inputs * WARPS;
        let form = FORMS_OF_X.into_iter().find(|of| whole && *of == (f32, of_all, normed))?;
        Some((form_of_x(form), working))
    })
}

/// Columns of Kimi-Linear's residual stream, which experts alone take: its projections have no kernel.
pub(super) const OF_EXPERTS_ALONE: usize = 2304;

/// How many warps multiply what becomes of the residual stream, if it has so many columns: two chunks of a row of w, or three.
pub(crate) fn warps_of_stream(columns: usize) -> Option<usize> {
    let alone = (columns == OF_EXPERTS_ALONE).then_some(6);
    alone.or_else(|| x_of(true, columns, true).map(|(_, working)| working))
}

/// A kernel behind what all of them share.
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

const CHAIN: &[Part] = parts!(
    "weights.cuh" "input.cuh" "linear.cuh" "scan.cuh"
    "chain.cu"
);
const CHAIN_OF_EXPERTS: &[Part] = parts!(
    "../moe/choose.cuh" "weights.cuh" "input.cuh" "linear.cuh" "scan.cuh"
    "norm.cuh" "experts.cuh" "chain.cu"
);
const SCAN: &[Part] = parts!("scan.cuh" "scan.cu");

/// What a kernel is compiled for: how weights are stored, and which experts it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weights {
    /// Warps that multiply them.
    pub(crate) working: usize,
    /// e4m3, i8 or u4.
    pub(crate) dtype: DType,
    /// Columns of a row that have a factor of their own; 0: a row has one.
    pub(crate) blocks: usize,
    /// Type of such a factor.
    pub(crate) factor: DType,
    /// Whether such columns have an offset too.
    pub(crate) offset: bool,
    /// A token's experts, where there are some: in such weights too.
    pub(crate) experts: Option<Experts>,
}

impl Weights {
    /// With a factor for each row.
    pub(crate) const fn by_rows(dtype: DType) -> Self {
        let factor = DType::F32;
        Self { working: WARPS, dtype, blocks: 0, factor, offset: false, experts: None }
    }

    /// Such experts, and what is by rows beside them.
    pub(super) fn of_experts(experts: Experts) -> Self {
        let working = warps_of_stream(experts.hidden).unwrap_or(WARPS);
        Self { working, experts: Some(experts), ..Self::by_rows(DType::E4m3) }
    }

    /// Whether its kernels have code for a form of x: what nobody wants beside experts they have not, and with a fourth one beside i8 by
    /// groups registers would not do.
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

    /// Weights that come at once, bytes.
    pub(super) fn stage(self) -> usize {
        let experts = self.experts.filter(|experts| !experts.by_chunks(self));
        experts.map_or(STAGE_ROWS * self.chunk() * self.bits() / 8, Experts::stage)
    }

    /// Room for x in f16, bytes.
    pub(super) fn x_bytes(self) -> usize {
        self.experts.map_or(X, |of| X.max(of.chosen * of.inner * DType::F16.bytes()))
    }

    /// Rows of a stage where a row of w has so many columns.
    pub(super) fn rows_of_stage(self, inputs: usize) -> usize {
        STAGE_ROWS * self.chunk() / inputs
    }

    /// Room for the factors of half a phase, bytes: those of models' products.
    fn factor_bytes(self) -> usize {
        match (self.blocks, self.factor.bytes()) {
            (0, _) => 0,
            (32, 2) => 12 << 10,
            (32, _) => 20 << 10,
            (_, 2) => 4 << 10,
            (_, _) => 8 << 10,
        }
    }

    /// Why the factors of a block's columns have no room: `first` and `count` at the worst.
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
                    "needs M a multiple of {whole} beside such factors, got {columns}"
                ));
            }
            // The first of a block's columns is an even one.
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

    fn beside_ring(self) -> usize {
        self.x_bytes() + SUM_STAGES * WARPS * STAGE_ROWS * DType::F32.bytes()
    }

    /// Weights of a block that are there or on their way, bytes: as many stages as have room on the GPUs that it is compiled for.
    fn ring(self) -> usize {
        const SHARED: usize = 227 << 10;
        let stage = self.stage();
        (SHARED - BESIDE - self.beside_ring() - self.factors() - SLACK) / stage * stage
    }

    fn shared_bytes(self) -> usize {
        self.ring() + self.beside_ring() + self.factors() + SLACK
    }

    /// Why no kernel of this kind runs here.
    pub(crate) fn unfit(self, here: &CudaCapabilities) -> Option<String> {
        if let Some(reason) = unfit(here) {
            return Some(reason);
        }
        let (wanted, there) = (self.shared_bytes() + BESIDE, here.shared_bytes as usize);
        (wanted > there)
            .then(|| format!("needs {wanted} bytes of shared memory, a block has {there}"))
    }

    /// One block a multiprocessor, with warps that bring weights and, where blocks of columns have some, factors.
    pub(crate) fn launch(self, here: &CudaCapabilities) -> Launch {
        let threads = 32 * (WARPS + if self.blocks == 0 { 1 } else { 2 });
        let grid = [here.multiprocessors, 1, 1];
        let launch = Launch::new(grid, threads as u32, self.shared_bytes() as u32);
        Launch { overlaps: true, together: true, ..launch }
    }

    /// The kernel of chains and of one product.
    pub(crate) fn source(self, arch: GpuArch) -> KernelSource {
        let parts = if self.experts.is_some() { CHAIN_OF_EXPERTS } else { CHAIN };
        self.defined("persistent_chain", parts, arch)
    }

    fn defined(self, name: &'static str, parts: &'static [Part], arch: GpuArch) -> KernelSource {
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
            .define("MOST_PHASES", MOST_PHASES)
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

/// Any weights: where a phase has none, it goes with all kernels.
pub(super) const ANY: Weights = Weights::by_rows(DType::E4m3);

/// One scan.
pub(crate) fn scan_source(arch: GpuArch) -> KernelSource {
    ANY.defined("ssd_persistent", SCAN, arch)
}

/// One block a multiprocessor of the warps that compute alone.
pub(crate) fn scan_launch(here: &CudaCapabilities) -> Launch {
    let launch = Launch::new([here.multiprocessors, 1, 1], 32 * WARPS as u32, 0);
    Launch { overlaps: true, ..launch }
}

/// Why no kernel of this kind runs here, whatever it is compiled for.
pub(crate) fn unfit(here: &CudaCapabilities) -> Option<String> {
    let old = here.compute < ComputeCapability::new(9, 0);
    old.then(|| format!("needs compute capability 9.0, this GPU has {}", here.compute))
}

/// For the bundle: chains of what models have weights in, and what verifies them.
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
