//! Runs a large matrix product on several GPUs at once until they are warm.

use crate::BenchError;
use crate::run::{SEED, bind};
use crate::workloads::{UniformValues, tensors};
use device::Device;
use facts::{BackendKind, GpuLoad, LoadRate, SustainedReport};
use ops::{DType, Settings, TensorMap};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};
use verify::{MatrixResults, SampledCall, Verified};

/// Rows, columns and inner dimension: large enough that a GPU does little else than multiply.
const SIZE: usize = 8192;
const OP: &str = "linear";
/// Interval over which a rate is averaged.
const STRETCH: Duration = Duration::from_millis(500);
/// Work enqueued on a GPU at a time, in milliseconds.
const AT_ONCE: f64 = 40.0;

/// Repeats a product on the GPUs with these indices, as this process numbers them, all at the same time. The product is
/// verified before, and once more while the GPU is hot. `begins` is called when the load starts.
///
/// # Errors
/// [`BenchError`] when a GPU cannot be opened. A GPU with a wrong product or a failure is in the report.
pub fn sustained(
    gpus: &[u32],
    time: Duration,
    begins: &mut dyn FnMut(),
) -> Result<SustainedReport, BenchError> {
    let opened = (0..).zip(gpus).map(|(at, _)| backends::open_at(BackendKind::Cuda, at));
    let devices: Vec<Device> = opened.collect::<Result<_, _>>()?;
    let inputs = tensors(&[
        ("x", &[SIZE, SIZE], UniformValues(DType::Bf16, -1.0, 1.0)),
        ("w", &[SIZE, SIZE], UniformValues(DType::Bf16, -0.03, 0.03)),
    ]);
    let settings = Settings::new();
    let product = format!("{SIZE} x {SIZE} x {SIZE} in bf16, by firstlight's own kernel");
    let mut report =
        SustainedReport { product, seconds: time.as_secs_f64(), ..SustainedReport::default() };
    let given = (&inputs, &settings);
    // One at a time, so that the reference of the sampled part is computed once.
    let (op, _) = bind(OP, &inputs, &settings)?;
    let sampled = Mutex::new(SampledCall::of(op, (&inputs, &settings), SEED));
    let ready = Barrier::new(gpus.len() + 1);
    let shared = (given, &sampled, &ready);
    report.gpus = std::thread::scope(|scope| {
        let one = |(gpu, device)| scope.spawn(move || of_one(gpu, device, time, shared));
        let threads: Vec<_> = gpus.iter().copied().zip(&devices).map(one).collect();
        ready.wait();
        begins();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect()
    });
    Ok(report)
}

/// One GPU's part: the product is verified, all GPUs start together, and it is verified again.
fn of_one(
    gpu: u32,
    device: &Device,
    time: Duration,
    ((inputs, settings), sampled, ready): (
        (&TensorMap, &Settings),
        &Mutex<SampledCall<'_>>,
        &Barrier,
    ),
) -> GpuLoad {
    let bound = bind(OP, inputs, settings).map_err(|error| error.to_string());
    let admit = || {
        let (_, call) = bound.as_ref().map_err(String::clone)?;
        let choice = call.select(device, None).map_err(|error| error.to_string())?;
        let mut sampled = sampled.lock().unwrap_or_else(PoisonError::into_inner);
        MatrixResults::without_matrix().admit(call, &mut sampled, device, choice.chosen)
    };
    let name = device.capabilities().name.clone();
    let mut load = GpuLoad { gpu, name: name.unwrap_or_default(), ..GpuLoad::default() };
    let verified = admit();
    ready.wait();
    let since = Instant::now();
    let load_result = verified
        .and_then(|mut verified| keep_busy(&mut verified, (since, since + time), &mut load));
    let checked_after = load_result.and_then(|()| {
        admit().map(drop).map_err(|why| format!("right at first and wrong under load: {why}"))
    });
    load.wrong = checked_after.err();
    load
}

/// Computes until the time is over; one rate per interval.
fn keep_busy(
    verified: &mut Verified<'_>,
    (since, until): (Instant, Instant),
    load: &mut GpuLoad,
) -> Result<(), String> {
    let operations = 2.0 * (SIZE as f64).powi(3);
    let first = verified.time().map_err(|error| error.to_string())?;
    let runs = (AT_ONCE / first).clamp(1.0, 50.0) as u32;
    let (mut stretch, mut done, mut busy) = (Instant::now(), 0_u32, 0.0);
    loop {
        let millis = verified.replay(runs).map_err(|error| error.to_string())?;
        done += runs;
        busy += millis * f64::from(runs);
        let now = Instant::now();
        if now - stretch >= STRETCH || now >= until {
            load.products += u64::from(done);
            let tflops = operations * f64::from(done) / busy / 1e9;
            load.rates.push(LoadRate { seconds: (now - since).as_secs_f64(), tflops });
            (stretch, done, busy) = (now, 0, 0.0);
        }
        if now >= until {
            return Ok(());
        }
    }
}
