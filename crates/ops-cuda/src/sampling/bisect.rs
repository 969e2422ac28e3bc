//! `bisect`: a thread block cluster per row; finds the top-k, top-p and min-p thresholds by bisection. The contract is in `bisect.cu`.

use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    Args, BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource,
    Launch, SourcePart,
};
use ops::sampling::SamplingProblem;

pub(super) const VARIANT: CudaVariant<SamplingProblem> =
    CudaVariant { name: "bisect", why_not, plan };

const PARTS: &[SourcePart] = &[source!("../include/order.cuh"), source!("bisect.cu")];

const THREADS: u32 = 1024;
/// Cluster sizes on GPUs with clusters: 4 if the vocabulary then fits in shared memory and clusters of 8 would need more
/// blocks than there are SMs; otherwise 8.
const CLUSTERS: [usize; 2] = [4, 8];
/// Bytes of a token in shared memory: its key and its weight.
const TOKEN_BYTES: usize = 8;
/// Maximum static shared memory of the kernel.
const STATIC_BYTES: usize = 3 << 10;
/// `top_logprobs` of the bundled kernel: the maximum that servers accept in a request.
const BUNDLED_TOP: usize = 20;

/// Compile-time parameters of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BisectParams {
    /// Blocks per row.
    cluster: usize,
    /// Whether the row's keys and weights are in the blocks' shared memory.
    held: bool,
    /// Tokens whose log-probabilities are returned.
    top: usize,
}

/// Tokens per block, a multiple of four, since four tokens share a Philox counter.
fn tokens_per_block(vocabulary: usize, cluster: usize) -> usize {
    vocabulary.div_ceil(cluster).next_multiple_of(4)
}

impl BisectParams {
    fn of(problem: &SamplingProblem, here: &CudaCapabilities) -> Self {
        let available = (here.shared_bytes as usize).saturating_sub(STATIC_BYTES);
        let fits =
            |cluster| tokens_per_block(problem.vocabulary, cluster) * TOKEN_BYTES <= available;
        let top = problem.top_logprobs;
        let [few, many] = CLUSTERS;
        if here.compute < ComputeCapability::new(9, 0) {
            return Self { cluster: 1, held: fits(1), top };
        }
        let one_wave = problem.rows * many <= here.multiprocessors as usize;
        let cluster = if fits(few) && !one_wave { few } else { many };
        Self { cluster, held: fits(cluster), top }
    }

    fn source(self, arch: GpuArch) -> KernelSource {
        KernelSource::new("sampling_bisect", PARTS, arch)
            .define("CLUSTER", self.cluster)
            .define("HELD", u8::from(self.held))
            .define("TOP", self.top)
    }

    fn launch(self, rows: usize, vocabulary: usize) -> Launch {
        let bytes =
            if self.held { tokens_per_block(vocabulary, self.cluster) * TOKEN_BYTES } else { 0 };
        let cluster = self.cluster as u32;
        Launch::new([cluster, rows as u32, 1], THREADS, bytes as u32).with_cluster([cluster, 1, 1])
    }
}

fn why_not(problem: &SamplingProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    if problem.rows > 65_535 {
        return Some(format!("needs up to 65535 rows, got {}", problem.rows));
    }
    None
}

/// Bundled kernels. They are independent of the vocabulary; these are the ones that GPUs use for 100,000 tokens.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let params = |(cluster, held), top| BisectParams { cluster, held, top };
    let param_sets: &[(usize, bool)] = match arch.compute >= ComputeCapability::new(9, 0) {
        true if arch.shared_bytes >= 200 << 10 => &[(4, true), (8, true)],
        true => &[(8, false)],
        false => &[(1, false)],
    };
    let all = param_sets.iter().flat_map(|of| [params(*of, 0), params(*of, BUNDLED_TOP)]);
    all.map(|params| params.source(arch.arch())).collect()
}

arguments! {
    Bisect: sampling_bisect {
        logits: Pointer, controls: Pointer, top_k: Pointer, seed: Pointer, draw: Pointer, mask: Nullable, counts: Nullable,
        slots: Nullable, token_of: Pointer, logprob: Nullable, top_tokens: Nullable, top_logprobs: Nullable, vocabulary: i32,
    }
}

fn plan(problem: &SamplingProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let params = BisectParams::of(problem, planner.here());
    let kernel = planner.kernel(&params.source(planner.arch()))?;
    let wanted = |name| (params.top > 0).then(|| planner.output(name)).transpose();
    let (logprob, top_tokens) = (wanted("logprob")?, wanted("top_tokens")?);
    let top_logprobs = wanted("top_logprobs")?;
    let args = Args::from(Bisect {
        logits: &*planner.required("logits")?,
        controls: &*planner.required("controls")?,
        top_k: &*planner.required("top_k")?,
        seed: &*planner.required("seed")?,
        draw: &*planner.required("draw")?,
        mask: planner.input("mask")?.as_deref(),
        counts: planner.input("counts")?.as_deref(),
        slots: planner.input("slots")?.as_deref(),
        token_of: &*planner.output("token")?,
        logprob: logprob.as_deref(),
        top_tokens: top_tokens.as_deref(),
        top_logprobs: top_logprobs.as_deref(),
        vocabulary: int(problem.vocabulary)?,
    });
    let launch = planner.overlapping(params.launch(problem.rows, problem.vocabulary));
    planner.launch(kernel, launch, args);
    Ok(())
}
