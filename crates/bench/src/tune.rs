//! Rewriting the choice table of attention from measurements on the GPU that is here.

use crate::workloads::causal_attention;
use crate::{BenchError, time};
use device::Device;
use facts::BackendKind;
use kernels::attention::{MeasuredVariant, tuned};
use kernels::{DType, op};
use std::time::Duration;
use verify::{Drawn, Standing};

/// Queries that are timed: steps of decoding, short chunks, prefill.
const QUERIES: [usize; 7] = [1, 4, 16, 32, 64, 256, 2048];
/// Channels that are timed: the widths at which a schedule changes on some GPU.
const CHANNELS: [usize; 8] = [64, 128, 256, 320, 512, 640, 768, 1024];
/// Keys of each call.
const KEYS: usize = 4096;
/// Time for one variant of one call.
const BUDGET: Duration = Duration::from_millis(60);
const SEED: u64 = 20_261_121;

/// What tuning gave.
#[derive(Debug)]
pub struct Tuned {
    /// The table as a file: `crates/kernels/src/attention/cuda/choice.tsv`.
    pub table: String,
    /// What it was made from.
    pub measured: Vec<MeasuredVariant>,
    /// What was not timed and why, one sentence each.
    pub not_timed: Vec<String>,
}

/// Times every variant of attention that can run, over queries and channels, each verified before; `on_row` sees each.
///
/// # Errors
/// [`BenchError::Unavailable`] without a GPU.
pub fn tune(mut on_row: impl FnMut(&MeasuredVariant)) -> Result<Tuned, BenchError> {
    let device = device::open(BackendKind::Cuda)?;
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
    let compute = device.capabilities().cuda.as_ref().map(|here| here.compute);
    let table = compute.map(|compute| tuned(compute, &measured)).unwrap_or_default();
    Ok(Tuned { table, measured, not_timed })
}

type Timed = (&'static str, Result<f64, String>);

/// The medians of the variants that can run a call.
fn variants(queries: usize, channels: usize, device: &Device) -> Vec<Timed> {
    let Ok(attention) = op("attention") else { return Vec::new() };
    let (inputs, settings) = causal_attention(DType::Bf16, queries, KEYS, channels);
    let call = match attention.bind(&inputs, &settings) {
        Ok(call) => call,
        Err(error) => return vec![("every variant", Err(error.to_string()))],
    };
    let of_gpu = attention.variants().into_iter().filter(|(_, of)| *of == BackendKind::Cuda);
    let mut drawn = Drawn::of(attention, (&inputs, &settings), SEED);
    let standing = Standing::without_matrix();
    let mut timed = Vec::new();
    for (variant, _) in of_gpu {
        if call.select(device, Some(variant)).is_err() {
            continue;
        }
        let millis =
            standing.admit(call.as_ref(), &mut drawn, device, variant).and_then(|mut verified| {
                time(&mut verified, BUDGET).map_err(|error| error.to_string())
            });
        timed.push((variant, millis.map(|samples| samples.median())));
    }
    timed
}
