//! Shared test support: seeded inputs, and checks of every variant against the reference.
#![allow(dead_code)] // Each test binary uses only a part.

pub(crate) mod recurrent;

use device::Device;
use facts::BackendKind;
use ops::{DType, Op, Settings, Tensor, TensorMap};

/// A small random number generator (splitmix64), so that cases are the same on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Values of unit variance (a sum of three uniforms), rounded to `dtype`.
    pub(crate) fn tensor(&mut self, shape: &[usize], dtype: DType) -> Tensor {
        self.generate(shape, dtype, |random| (0..3).map(|_| random.uniform(-1.0, 1.0)).sum())
    }

    /// A standard normal value, by the Box-Muller transform.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform(0.0, 1.0)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform(0.0, 1.0)).cos()
    }

    /// Values of `value`, called for each element in order, rounded to `dtype`.
    pub(crate) fn generate(
        &mut self,
        shape: &[usize],
        dtype: DType,
        mut value: impl FnMut(&mut Self) -> f64,
    ) -> Tensor {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| value(self)).collect();
        Tensor::new(shape, values).cast(dtype)
    }

    pub(crate) fn range(&mut self, shape: &[usize], dtype: DType, low: f64, high: f64) -> Tensor {
        self.generate(shape, dtype, |random| random.uniform(low, high))
    }
}

pub(crate) fn ints(values: &[i32]) -> Tensor {
    Tensor::new(&[values.len()], values.to_vec())
}

pub(crate) fn cpu() -> Device {
    backends::open(BackendKind::Cpu).unwrap()
}

/// ||got - want|| / ||want||; 0 if both are empty or zero, NaN if `got` contains a NaN. A state that only decays leaves the range of
/// float32: for a norm below 1e-32 only the magnitude is checked.
pub(crate) fn relative(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut got.iter().zip(want).map(|(a, b)| a - b));
    let scale = norm(&mut want.iter().copied());
    if difference == 0.0 { 0.0 } else { difference / scale.max(1e-32) }
}

/// Largest relative error allowed on outputs, by storage type.
pub(crate) fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 5e-3,
        DType::F16 => 2e-3,
        _ => 1e-5,
    }
}

/// The same for the final state, which is computed and stored in float32 for all input types.
pub(crate) const STATE_LIMIT: f64 = 1e-5;

/// Outputs of one variant, launched once over memory filled with NaN; the launch must have been counted.
pub(crate) fn launch(
    op: &dyn Op,
    tensors: &TensorMap,
    settings: &Settings,
    device: &Device,
    variant: &str,
) -> TensorMap {
    let call = op.bind(tensors, settings).unwrap();
    let mut execution = call.prepare(device, variant).unwrap();
    execution.poison().unwrap();
    let kernel = format!("{}.{variant}", op.spec().name);
    assert_eq!(execution.kernel(), kernel);
    let before = device.launches().of(&kernel).count;
    execution.launch().unwrap();
    assert!(device.launches().of(&kernel).count > before, "{kernel} was not launched");
    execution.outputs().unwrap().clone()
}

/// Every variant that can run this call here, with its outputs.
pub(crate) fn launch_all(
    op: &dyn Op,
    tensors: &TensorMap,
    settings: &Settings,
) -> Vec<(&'static str, TensorMap)> {
    let device = cpu();
    let call = op.bind(tensors, settings).unwrap();
    let can_run = |name: &&'static str| call.select(&device, Some(name)).is_ok();
    let names: Vec<_> = backends::variants(op.spec().name)
        .into_iter()
        .map(|(name, _)| name)
        .filter(can_run)
        .collect();
    // Every instruction set has at least one variant for any call.
    let isas = device.capabilities().isas.len().min(3);
    assert!(names.len() >= isas, "{names:?} alone can run this");
    names.into_iter().map(|name| (name, launch(op, tensors, settings, &device, name))).collect()
}

/// Compares every variant with the reference. State slots that no sequence uses must be bitwise unchanged, and are not
/// compared with the reference.
pub(crate) fn check(name: &str, op: &dyn Op, tensors: &TensorMap, settings: &Settings) {
    let call = op.bind(tensors, settings).unwrap();
    let dtype = call.problem().dtype();
    let want = call.reference();
    for (variant, got) in launch_all(op, tensors, settings) {
        let case = format!("{name} {dtype} {variant}");
        for spec in call.problem().outputs() {
            let (name, got) = (spec.name, &got[spec.name]);
            assert_eq!((got.dtype(), got.shape()), (spec.dtype, want[name].shape()), "{case}");
            if name != "final_state" {
                let error = relative(&got.to_f64(), &want[name].to_f64());
                assert!(error <= limit(dtype), "{case}: {name} is off by {error:.2e}");
            }
        }
        if let Some(want) = want.get("final_state") {
            check_state(&case, tensors, &got["final_state"], want);
        }
    }
}

fn check_state(case: &str, tensors: &TensorMap, got: &Tensor, want: &Tensor) {
    assert_eq!((got.dtype(), got.shape()), (DType::F32, want.shape()), "{case}");
    let slots = got.shape()[0];
    let len = got.len() / slots.max(1);
    let touched = |slot: usize| match tensors.get("state_indices") {
        Some(indices) => indices.view::<i32>().unwrap().contains(&(slot as i32)),
        None => true,
    };
    let (all_got, all_want) = (got.to_f64(), want.to_f64());
    let (mut some_got, mut some_want) = (Vec::new(), Vec::new());
    for slot in 0..slots {
        let part = slot * len..(slot + 1) * len;
        if touched(slot) {
            some_got.extend_from_slice(&all_got[part.clone()]);
            some_want.extend_from_slice(&all_want[part]);
        } else {
            let bits = |tensor: &Tensor| -> Vec<u32> {
                tensor.view::<f32>().unwrap()[part.clone()].iter().map(|x| x.to_bits()).collect()
            };
            assert_eq!(bits(got), bits(&tensors["initial_state"]), "{case}: untouched slot {slot}");
        }
    }
    let error = relative(&some_got, &some_want);
    assert!(error <= STATE_LIMIT, "{case}: final_state is off by {error:.2e}");
}
