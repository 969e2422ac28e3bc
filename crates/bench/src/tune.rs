//! Regenerates the selection table of attention from measurements on this machine's GPU.

use crate::workloads::causal_attention;
use crate::{BenchError, time};
use device::Device;
use facts::BackendKind;
use ops::{DType, op};
use ops_cuda::attention::{MeasuredVariant, tuned};
use std::time::Duration;
use verify::{MatrixResults, SampledCall};

/// Timed numbers of queries: decoding steps, short chunks, prefill.
const QUERIES: [usize; 7] = [1, 4, 16, 32, 64, 256, 2048];
/// Timed channels: the widths at which a schedule changes on some GPU.
const CHANNELS: [usize; 8] = [64, 128, 256, 320, 512, 640, 768, 1024];
/// Keys per call.
const KEYS: usize = 4096;
/// Time per variant and call.
const BUDGET: Duration = Duration::from_millis(60);
const SEED: u64 = 20_261_121;

/// The result of tuning.
#[derive(Debug)]
pub struct TuningResult {
    /// The content of `crates/ops-cuda/src/attention/choice.tsv`.
    pub table: String,
    /// The measurements it is based on.
    pub measured: Vec<MeasuredVariant>,
    /// Variants that were not timed, with the reason, one sentence each.
    pub not_timed: Vec<String>,
}

/// Times every variant of attention that can run, over queries and channels, after verifying each; `on_row` is called
/// for each.
///
/// # Errors
/// [`BenchError::Unavailable`] without a GPU.
pub fn tune(mut on_row: impl FnMut(&MeasuredVariant)) -> Result<TuningResult, BenchError> {
    let device = backends::open(BackendKind::Cuda)?;
    let (mut measured, mut not_timed) = (Vec::new(), Vec::new());
    for channels in CHANNELS {
        for queries in QUERIES {
            for (variant, result) in variants(queries, channels, &device) {
                match result {
                    Ok(millis) => {
                        let row = MeasuredVariant { queries, channels, variant, millis };
                        on_row(&row);
                        measured.push(row);
                    }
                    Err(why) => {
                        not_timed
                            .push(format!("{variant}, {queries} queries, D {channels}: {why}"));
                    }
                }
            }
        }
    }
    let compute = ops_cuda::compute_capability(&device);
    let table = compute.map(|compute| tuned(compute, &measured)).unwrap_or_default();
    Ok(TuningResult { table, measured, not_timed })
}

type TimedVariant = (&'static str, Result<f64, String>);

/// The medians of the variants that support a call.
fn variants(queries: usize, channels: usize, device: &Device) -> Vec<TimedVariant> {
    let Ok(attention) = op("attention") else { return Vec::new() };
    let (inputs, settings) = causal_attention(DType::Bf16, queries, KEYS, channels);
    let call = match attention.bind(&inputs, &settings) {
        Ok(call) => call,
        Err(error) => return vec![("every variant", Err(error.to_string()))],
    };
    let of_gpu =
        backends::variants("attention").into_iter().filter(|(_, of)| *of == BackendKind::Cuda);
    let mut sampled = SampledCall::of(attention, (&inputs, &settings), SEED);
    let standing = MatrixResults::without_matrix();
    let mut timed = Vec::new();
    for (variant, _) in of_gpu {
        if call.select(device, Some(variant)).is_err() {
            continue;
        }
        let millis =
            standing.admit(&call, &mut sampled, device, variant).and_then(|mut verified| {
                time(&mut verified, BUDGET).map_err(|error| error.to_string())
            });
        timed.push((variant, millis.map(|samples| samples.median())));
    }
    timed
}
