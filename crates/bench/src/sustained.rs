//! A large product on several GPUs at once, for as long as it takes to be warm.

use crate::workloads::{Between, tensors};
use crate::{BenchError, run};
use device::Device;
use facts::{GpuLoad, LoadRate, SustainedReport};
use kernels::{Call, DType, Op, Settings, TensorMap};
use std::time::{Duration, Instant};
use verify::{Drawn, Standing, Verified};

/// Rows, columns and terms of the product: large enough that a GPU does little else than multiply.
const SIZE: usize = 8192;
const OP: &str = "linear";
/// What a rate is the mean of.
const STRETCH: Duration = Duration::from_millis(500);
/// What is given to a GPU at once, in milliseconds.
const AT_ONCE: f64 = 40.0;

/// Computes a product again and again on the GPUs of these indices, which this process sees in this order, all at the same time.
/// The product is verified before, and once more while the GPU is hot. `begins` is told the moment when the load begins.
///
/// # Errors
/// [`BenchError`] when a GPU cannot be opened. A GPU on which the product is wrong, or that fails meanwhile, is in the report.
pub fn sustained(
    gpus: &[u32],
    time: Duration,
    begins: &mut dyn FnMut(),
) -> Result<SustainedReport, BenchError> {
    sustained_of(SIZE, gpus, time, begins)
}

fn sustained_of(
    size: usize,
    gpus: &[u32],
    time: Duration,
    begins: &mut dyn FnMut(),
) -> Result<SustainedReport, BenchError> {
    let opened = (0..).zip(gpus).map(|(at, _)| device::open_gpu(at));
    let devices: Vec<Device> = opened.collect::<Result<_, _>>()?;
    let inputs = tensors(&[
        ("x", &[size, size], Between(DType::Bf16, -1.0, 1.0)),
        ("w", &[size, size], Between(DType::Bf16, -0.03, 0.03)),
    ]);
    let settings = Settings::new();
    let product = format!("{size} x {size} x {size} in bf16, by firstlight's own kernel");
    let mut report = SustainedReport { product, seconds: time.as_secs_f64(), ..SustainedReport::default() };
    let (op, call) = match run::bind(OP, &inputs, &settings) {
        Ok(bound) => bound,
        Err(error) => {
            report.broke = Some(error.to_string());
            return Ok(report);
        }
    };
    let given = Given { op, call: call.as_ref(), inputs: &inputs, settings: &settings };
    // The reference of the drawn part is computed once.
    let drawn = &mut given.drawn();
    let mut verified: Vec<Result<Verified<'_>, String>> =
        devices.iter().map(|device| given.admit(device, drawn)).collect();
    begins();
    let (since, until) = (Instant::now(), Instant::now() + time);
    report.gpus = std::thread::scope(|scope| {
        let load = |(gpu, verified): (&u32, &'_ mut Result<Verified<'_>, String>)| {
            let mut load = GpuLoad { gpu: *gpu, ..GpuLoad::default() };
            load.wrong = match verified {
                Ok(verified) => keep_busy(verified, size, (since, until), &mut load).err(),
                Err(why) => Some(why.clone()),
            };
            load
        };
        let load = &load;
        let threads: Vec<_> = gpus
            .iter()
            .zip(&mut verified)
            .map(|one| scope.spawn(move || load(one)))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect()
    });
    for ((load, device), verified) in report.gpus.iter_mut().zip(&devices).zip(verified) {
        let cuda = device.capabilities().cuda.as_ref();
        load.name = cuda.map(|cuda| cuda.name.clone()).unwrap_or_default();
        // What follows needs the memory that it has.
        drop(verified);
        if load.wrong.is_none()
            && let Err(why) = given.admit(device, drawn)
        {
            load.wrong = Some(format!("right at first and wrong under load: {why}"));
        }
    }
    Ok(report)
}

/// The product.
struct Given<'a> {
    op: &'static dyn Op,
    call: &'a dyn Call,
    inputs: &'a TensorMap,
    settings: &'a Settings,
}

impl<'a> Given<'a> {
    fn drawn(&self) -> Drawn<'a> {
        Drawn::of(self.op, (self.inputs, self.settings), run::SEED)
    }

    fn admit(&self, device: &'a Device, drawn: &mut Drawn<'_>) -> Result<Verified<'a>, String> {
        let choice = self.call.select(device, None).map_err(|error| error.to_string())?;
        Standing::without_matrix().admit(self.call, drawn, device, choice.chosen)
    }
}

/// Computes until the time is over; a rate for each stretch.
fn keep_busy(
    verified: &mut Verified<'_>,
    size: usize,
    (since, until): (Instant, Instant),
    load: &mut GpuLoad,
) -> Result<(), String> {
    let operations = 2.0 * (size as f64).powi(3);
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
