//! Several calls by one kernel whose blocks stay, one a multiprocessor: each call is a phase, and blocks meet in memory behind each.
//! While one sequence decodes, a step is some hundred short calls, and a launch of each has multiprocessors that wait for the
//! last one's end and for the first weights. The contract stands in `cuda/README.md`.
//!
//! [`phase`] makes a phase of a call in its op's own words; [`chain`] puts phases into launches. Variants named `persistent` of
//! `linear` and `ssd` run one phase each, which is how what phases compute is verified.

mod record;

pub(crate) use record::{Linear, Scan};

use crate::cuda::{BUNDLE, Pieces, Plan, Planned, Planner, arguments, int, source};
use crate::op::Bound;
use crate::{DType, Family, OpError, Problem, Typed};
use device::Device;
use device::cuda::{
    Args, Buffer, ComputeCapability, CudaCapabilities, CudaError, GpuArch, KernelSource, Launch,
    Part, Stream,
};
use std::sync::Arc;

/// The name errors go under.
const NAME: &str = "persistent";

/// Warps of a block that compute, and threads of a block.
const WARPS: usize = 8;
const THREADS: u32 = 32 * (WARPS as u32 + 2);
/// Columns that a warp takes of each segment of a row.
pub(crate) const WARP_COLUMNS: usize = 128;
/// Columns of a segment at most.
pub(crate) const SEGMENT: usize = WARPS * WARP_COLUMNS;
/// Segments of a row: as many as a matrix product has columns at most, and pairs of them are summed up at once.
pub(crate) const SEGMENTS: [usize; 3] = [2, 4, 8];
/// Rows of w's segments that are multiplied at once, a stage.
pub(crate) const STAGE_ROWS: usize = 16;
/// Stages whose sums a block holds: those of all its columns in one phase.
pub(crate) const SUM_STAGES: usize = 20;
/// Weights of a block that are there or on their way, bytes.
const RING: usize = 192 << 10;
/// What a block has in shared memory beside that and the sums, bytes, with the KiB that the driver takes.
const BESIDE: usize = 10 << 10;
/// Taps of the convolution that kernels are compiled for.
pub(crate) const TAPS: usize = 4;
/// Width of a scan's state that they are compiled for.
pub(crate) const STATE: usize = 128;
/// Phases of a launch at most.
const MOST_PHASES: usize = 256;

/// A kernel behind what all of them share.
macro_rules! parts {
    ($kernel:literal) => {
        &[
            source!("cuda/ampere.cuh"),
            source!("cuda/storage.cuh"),
            source!("linear/cuda/convolution.cuh"),
            source!("linear/cuda/stream.cuh"),
            source!("persistent/cuda/phase.cuh"),
            source!("persistent/cuda/barriers.cuh"),
            source!("persistent/cuda/weights.cuh"),
            source!("persistent/cuda/linear.cuh"),
            source!("persistent/cuda/scan.cuh"),
            source!($kernel),
        ]
    };
}

const CHAIN_PARTS: &[Part] = parts!("persistent/cuda/chain.cu");
const LINEAR_PARTS: &[Part] = parts!("persistent/cuda/linear.cu");
const SCAN_PARTS: &[Part] = parts!("persistent/cuda/scan.cu");

/// What weights are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Weights {
    /// With a factor for each row.
    #[default]
    E4m3,
}

/// What a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Form {
    /// None where no phase has weights: any kernel takes those.
    pub(crate) weights: Option<Weights>,
}

impl Form {
    /// Of kernels that take what either of two takes; none where there is no such kernel.
    fn with(self, other: Self) -> Option<Self> {
        match (self.weights, other.weights) {
            (Some(one), Some(another)) if one != another => None,
            (one, another) => Some(Self { weights: one.or(another) }),
        }
    }

    fn source(self, name: &'static str, parts: &'static [Part], arch: GpuArch) -> KernelSource {
        let bits = match self.weights.unwrap_or_default() {
            Weights::E4m3 => 8,
        };
        KernelSource::new(name, parts, arch)
            .define("DTYPE", DType::Bf16)
            .define("WEIGHT_BITS", bits)
            .define("TAPS", TAPS)
            .define("N_STATE", STATE)
            .define("WARPS", WARPS)
            .define("RING_BYTES", RING)
            .define("SUM_STAGES", SUM_STAGES)
            .define("MOST_PHASES", MOST_PHASES)
            .define("PHASE_BYTES", record::BYTES)
    }

    /// One product.
    pub(crate) fn linear_source(self, arch: GpuArch) -> KernelSource {
        self.source("linear_persistent", LINEAR_PARTS, arch)
    }

    /// One scan.
    pub(crate) fn scan_source(self, arch: GpuArch) -> KernelSource {
        self.source("ssd_persistent", SCAN_PARTS, arch)
    }

    fn chain_source(self, arch: GpuArch) -> KernelSource {
        self.source("persistent_chain", CHAIN_PARTS, arch)
    }
}

/// For the bundle: chains of what models have weights in, and what verifies them.
pub(crate) fn bundled() -> Vec<KernelSource> {
    let arch = || GpuArch::of(ComputeCapability::new(9, 0));
    let form = Form { weights: Some(Weights::E4m3) };
    vec![form.chain_source(arch()), form.linear_source(arch()), form.scan_source(arch())]
}

/// Why no kernel of this kind runs here.
pub(crate) fn unfit(here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(9, 0) {
        return Some(format!("needs compute capability 9.0, this GPU has {}", here.compute));
    }
    let (wanted, there) = (shared_bytes() + BESIDE, here.shared_bytes as usize);
    (wanted > there).then(|| format!("needs {wanted} bytes of shared memory, a block has {there}"))
}

/// The ring and the sums.
fn shared_bytes() -> usize {
    RING + SUM_STAGES * WARPS * STAGE_ROWS * DType::F32.bytes()
}

/// One block a multiprocessor.
pub(crate) fn launch(here: &CudaCapabilities) -> Launch {
    let launch = Launch::new([here.multiprocessors, 1, 1], THREADS, shared_bytes() as u32);
    Launch { overlaps: true, ..launch }
}

/// One block a multiprocessor of the warps that compute alone.
pub(crate) fn scan_launch(here: &CudaCapabilities) -> Launch {
    let launch = Launch::new([here.multiprocessors, 1, 1], 32 * WARPS as u32, 0);
    Launch { overlaps: true, ..launch }
}

/// How calls of an op become phases.
pub struct PhaseOf<P: 'static> {
    /// Why one does not; `None` when it does.
    pub(crate) why_not: fn(&P, &CudaCapabilities) -> Option<String>,
    /// The phase of one that does.
    pub(crate) plan: fn(&P, &mut Planner<'_>) -> Result<Phase, CudaError>,
}

/// A call as a phase, over the tensors it was made for.
#[derive(Debug)]
pub struct Phase {
    form: Form,
    /// As `Phase` of `phase.cuh` lies in memory.
    record: Vec<u8>,
    /// Everything that it points to.
    held: Vec<Arc<Buffer>>,
}

impl Phase {
    /// A product.
    pub(crate) fn linear(form: Form, linear: Linear<'_>) -> Self {
        let record = record::bytes(record::LINEAR, Args::from(linear));
        Self { form, record, held: Vec::new() }
    }

    /// A scan, which any kernel takes.
    pub(crate) fn scan(scan: Scan<'_>) -> Self {
        let record = record::bytes(record::SCAN, Args::from(scan));
        Self { form: Form::default(), record, held: Vec::new() }
    }

    /// Whether one launch can take both.
    pub fn goes_with(&self, other: &Self) -> bool {
        self.form.with(other.form).is_some()
    }
}

/// The phase of a call over tensors on a GPU, or why it has none: that is no error.
///
/// # Errors
/// [`OpError`] naming what is wrong with the call, or what the driver refused.
pub fn phase<C: Typed>(call: &C, device: &Device) -> Result<Result<Phase, String>, OpError> {
    let Some(of) = C::Family::PHASE else {
        return Ok(Err("calls of this op are no phases".to_owned()));
    };
    let (Some(cuda), Some(here)) = (device.cuda(), &device.capabilities().cuda) else {
        return Ok(Err("is for GPUs".to_owned()));
    };
    let given = call.given();
    let problem = Bound::of(&given)?.problem;
    if let Some(reason) = (of.why_not)(&problem, here) {
        return Ok(Err(reason));
    }
    let address =
        |tensor: Option<&crate::Tensor>| tensor.and_then(|of| Some(of.buffer()?.address()));
    for (_, spec, tensor) in given.inputs.slots().iter() {
        if tensor.buffer().is_none() {
            return Ok(Err(format!("needs `{}` on the GPU", spec.name)));
        }
    }
    let wanted = problem.outputs();
    if let Some(nowhere) = wanted.iter().find(|spec| given.outputs.get(spec.name).is_none()) {
        return Ok(Err(format!("needs a tensor that `{}` goes to", nowhere.name)));
    }
    let [before, after] = [given.inputs.get("initial_state"), given.outputs.get("final_state")];
    if address(before) != address(after) {
        return Ok(Err("advances states where they lie".to_owned()));
    }
    let gpu = (cuda, here);
    let made = Planner::new(gpu, NAME, Pieces::Promised, given.inputs, wanted, &given.outputs)
        .and_then(|mut planner| {
            let phase = (of.plan)(&problem, &mut planner)?;
            Ok(Phase { held: planner.into_held(), ..phase })
        });
    match made {
        Ok(phase) => Ok(Ok(phase)),
        Err(error @ CudaError::Layout { .. }) => Ok(Err(error.to_string())),
        Err(error) => Err(OpError::Cuda { op: C::Family::SPEC.name, error }),
    }
}

arguments! {
    PersistentChain: persistent_chain { phases: Pointer, count: i32, meeting: Pointer }
}

/// Puts phases, in their order, into as few launches as can be. A phase sees what those ahead of it wrote, as a launch sees it of those
/// ahead of it, so tensors may share memory as they may where each call is launched.
///
/// The launches are for one stream at a time, and no others like them may run beside them on the GPU: each of their blocks waits for
/// all the others.
///
/// # Errors
/// [`OpError::Cuda`] when phases do not go with each other, the kernel cannot be had or has no room here, or there is no memory.
pub fn chain(device: &Device, stream: &Stream, phases: &[Phase]) -> Result<Planned, OpError> {
    planned(device, stream, phases).map_err(|error| OpError::Cuda { op: NAME, error })
}

fn planned(device: &Device, stream: &Stream, phases: &[Phase]) -> Result<Planned, CudaError> {
    let refused = |what: &str| CudaError::Refused { what: what.to_owned() };
    let (Some(cuda), Some(here)) = (device.cuda(), &device.capabilities().cuda) else {
        return Err(refused("the device is no GPU"));
    };
    let form = phases.iter().try_fold(Form::default(), |form, phase| form.with(phase.form));
    let form = form.ok_or_else(|| refused("phases of one chain want different kernels"))?;
    let kernel = cuda.kernel(&form.chain_source(GpuArch::of(here.compute)), &BUNDLE)?;
    let launch = launch(here);
    // A block that waits for one that has no place would wait for ever.
    if kernel.blocks_per_multiprocessor(launch.block[0], launch.shared_bytes)? == 0 {
        return Err(refused("a multiprocessor has no room for a block that stays"));
    }
    // A launch leaves a whole number of meetings in it, with which the next one begins.
    let meeting = Arc::new(stream.allocate(size_of::<u32>())?);
    stream.fill32(&meeting, 0)?;
    let records = phases.iter().flat_map(|phase| phase.record.iter().copied()).collect::<Vec<_>>();
    let records = Arc::new(stream.upload(&records)?);
    let mut launches = Vec::new();
    for first in (0..phases.len()).step_by(MOST_PHASES) {
        let count = MOST_PHASES.min(phases.len() - first);
        let of = records.part(first * record::BYTES, count * record::BYTES)?;
        let args = PersistentChain { phases: &of, count: int(count)?, meeting: &meeting };
        launches.push((kernel.clone(), launch, Args::from(args)));
    }
    let held = phases.iter().flat_map(|phase| phase.held.iter().cloned());
    Ok(Planned::fixed(Plan::of_launches(NAME, launches), held.chain([meeting, records])))
}

#[cfg(test)]
mod tests;
