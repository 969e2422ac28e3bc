//! Times of NSA decode steps by branch (row R4-14 of docs/catalogue.md): the time that each branch adds and the tokens that
//! it reads, next to the table of a published report.

use crate::timing::{Samples, time_steps};
use crate::workloads::{UniformValues, tensors};
use crate::{BenchError, Size};
use device::Device;
use facts::{BackendKind, BranchReport, BranchRow, PerBranch};
use ops::{Call, DType, Op, Settings, Tensor, TensorMap, op};
use std::time::Duration;
use verify::{MatrixResults, SampledCall};

/// The published report's settings: compressed blocks and their stride, selected blocks and their number, the window.
const COMPRESS_BLOCK: usize = 32;
const COMPRESS_STRIDE: usize = 16;
const SELECT_BLOCK: usize = 64;
const SELECT_COUNT: usize = 16;
const WINDOW: usize = 512;
/// Tokens that the report decoded after each context before it measured.
const DECODED: usize = 64;
/// The report's context lengths.
const CONTEXTS: [usize; 4] = [512, 1024, 2048, 4096];
/// The paper's heads.
const HEADS: usize = 64;
const KV_HEADS: usize = 4;
const DIM: usize = 128;
const GATES: [&str; 3] = ["g_cmp", "g_slc", "g_swa"];
const SEED: u64 = 20_261_121;

/// Tokens read according to the published formula: compressed tokens, the maximum of selected blocks, and the window.
fn formula_reads(keys: usize) -> usize {
    compressed_tokens(keys) + SELECT_COUNT * SELECT_BLOCK + WINDOW.min(keys)
}

fn compressed_tokens(keys: usize) -> usize {
    keys.checked_sub(COMPRESS_BLOCK).map_or(0, |rest| rest / COMPRESS_STRIDE + 1)
}

/// Times a decode step at each context: with all branches, with fewer, and with gates that select one. Each call is verified
/// first.
///
/// # Errors
/// [`BenchError::Unavailable`] without the backend. A failed verification is a sentence in `not_timed`, not an error.
pub fn branches(backend: BackendKind, size: Size) -> Result<BranchReport, BenchError> {
    let device = backends::open(backend)?;
    let dtype = if backend == BackendKind::Cuda { DType::Bf16 } else { DType::F32 };
    let settings = format!(
        "{dtype}, {HEADS} heads over {KV_HEADS} of {DIM}, l {COMPRESS_BLOCK}, d {COMPRESS_STRIDE}, l' {SELECT_BLOCK}, n {SELECT_COUNT}, w {WINDOW}"
    );
    let mut report = BranchReport::new(backend, settings);
    let budget = Duration::from_millis(if size == Size::Quick { 60 } else { 400 });
    for context in CONTEXTS {
        match step(context, dtype, &device, budget) {
            Ok(row) => report.rows.push(row),
            Err(why) => report.not_timed.push(format!("nsa decode at S = {context}: {why}")),
        }
    }
    Ok(report)
}

fn step(
    context: usize,
    dtype: DType,
    device: &Device,
    budget: Duration,
) -> Result<BranchRow, String> {
    let nsa = op("nsa").map_err(|error| error.to_string())?;
    let keys = context + DECODED;
    let (inputs, settings) = inputs(keys, dtype);
    let timed = |inputs: &TensorMap| TimedCall::of(nsa, inputs, &settings, device, budget);
    let with = |gates: &[&str]| {
        let mut some = inputs.clone();
        some.retain(|name, _| !GATES.contains(&name.as_str()) || gates.contains(&name.as_str()));
        timed(&some).map(|timed| timed.samples.median())
    };
    let one_hot = |gate: &str| {
        let mut hot = inputs.clone();
        for name in GATES {
            let value = if name == gate { 1f32 } else { 0.0 };
            let gates = Tensor::new(&[1, 1, HEADS], vec![value; HEADS]).cast(dtype);
            hot.insert(name.to_owned(), gates);
        }
        timed(&hot).map(|timed| timed.samples.median())
    };
    let whole = timed(&inputs)?;
    let total_ms = whole.samples.median();
    let (one, two) = (with(&GATES[..1])?, with(&GATES[..2])?);
    Ok(BranchRow {
        context: context as u64,
        keys: keys as u64,
        variant: whole.variant.to_owned(),
        total_ms,
        p95_ms: whole.samples.p95(),
        adds_ms: PerBranch { compressed: one, selected: two - one, window: total_ms - two },
        one_hot_ms: PerBranch {
            compressed: one_hot("g_cmp")?,
            selected: one_hot("g_slc")?,
            window: one_hot("g_swa")?,
        },
        reads: PerBranch {
            compressed: compressed_tokens(keys) as u64,
            selected: whole.selected,
            window: WINDOW.min(keys) as u64,
        },
        formula_reads: formula_reads(keys) as u64,
    })
}

/// A decode step of one token over caches. Compressed keys and values have the magnitude of a block's mean.
fn inputs(keys: usize, dtype: DType) -> (TensorMap, Settings) {
    let (gate, cache) = ([1, 1, HEADS], [1, keys, KV_HEADS, DIM]);
    let rows = [1, compressed_tokens(keys), KV_HEADS, DIM];
    let small = (COMPRESS_BLOCK as f32).powf(-0.5);
    let inputs = tensors(&[
        ("q", &[1, 1, HEADS, DIM][..], UniformValues(dtype, -1.0, 1.0)),
        ("k", &cache[..], UniformValues(dtype, -1.0, 1.0)),
        ("v", &cache[..], UniformValues(dtype, -1.0, 1.0)),
        ("k_cmp", &rows[..], UniformValues(dtype, -small, small)),
        ("v_cmp", &rows[..], UniformValues(dtype, -small, small)),
        ("g_cmp", &gate[..], UniformValues(dtype, 0.0, 1.0)),
        ("g_slc", &gate[..], UniformValues(dtype, 0.0, 1.0)),
        ("g_swa", &gate[..], UniformValues(dtype, 0.0, 1.0)),
    ]);
    let settings = Settings::new()
        .with("compress_block", COMPRESS_BLOCK)
        .with("compress_stride", COMPRESS_STRIDE)
        .with("select_block", SELECT_BLOCK)
        .with("select_count", SELECT_COUNT)
        .with("window", WINDOW);
    (inputs, settings)
}

/// A verified and timed call.
struct TimedCall {
    variant: &'static str,
    samples: Samples,
    /// Tokens of the selected blocks, per key head.
    selected: u64,
}

impl TimedCall {
    fn of(
        nsa: &dyn Op,
        inputs: &TensorMap,
        settings: &Settings,
        device: &Device,
        budget: Duration,
    ) -> Result<Self, String> {
        let call = nsa.bind(inputs, settings).map_err(|error| error.to_string())?;
        let variant = call.select(device, None).map_err(|error| error.to_string())?.chosen;
        let given = (inputs, settings);
        let mut sampled = SampledCall::of(nsa, given, SEED);
        let matrix = MatrixResults::without_matrix();
        let mut verified = matrix.admit(&call, &mut sampled, device, variant)?;
        let (samples, _) = time_steps(&mut verified, budget).map_err(|error| error.to_string())?;
        let keys = inputs.get("k").map_or(0, |k| k.shape()[1]);
        let selected = selected(&call, device, variant, keys)?;
        Ok(Self { variant, samples, selected })
    }
}

/// Runs a call once and counts the tokens of its selected blocks per key head; 0 if it selects none.
fn selected(call: &Call<'_>, device: &Device, variant: &str, keys: usize) -> Result<u64, String> {
    let mut execution = call.prepare(device, variant).map_err(|error| error.to_string())?;
    execution.launch().map_err(|error| error.to_string())?;
    let outputs = execution.outputs().map_err(|error| error.to_string())?;
    let Some(indices) = outputs.get("indices") else { return Ok(0) };
    let blocks = indices.to_f64().into_iter().filter(|block| *block >= 0.0);
    // The last block may be partial.
    let tokens =
        blocks.map(|block| keys.saturating_sub(block as usize * SELECT_BLOCK).min(SELECT_BLOCK));
    Ok((tokens.sum::<usize>() / KV_HEADS) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r4_14_branch_times_add_up_and_reads_match_the_formula() {
        let formula: Vec<usize> =
            CONTEXTS.iter().map(|context| formula_reads(context + DECODED)).collect();
        assert_eq!(formula, [1571, 1603, 1667, 1795]);
        // The published measurement equals the formula at the 64 decoded tokens.
        assert_eq!(formula_reads(DECODED), 1091);
        let device = backends::open(BackendKind::Cpu).unwrap();
        let row = step(512, DType::F32, &device, Duration::ZERO).unwrap();
        let PerBranch { compressed, selected, window } = row.adds_ms;
        assert!((compressed + selected + window - row.total_ms).abs() < 1e-9, "{row:?}");
        // 576 tokens are 9 blocks, fewer than may be selected: the formula's 16 blocks cannot be read.
        assert_eq!(row.reads, PerBranch { compressed: 35, selected: 576, window: 512 });
        assert_eq!((row.total_reads(), row.formula_reads), (1123, 1571));
    }
}
