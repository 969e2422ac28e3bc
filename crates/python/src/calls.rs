//! Calls of ops on the caller's device: handles of ops with settings, and the calls themselves.
#![allow(unsafe_code)] // Uses the caller's memory and streams; the caller guarantees that its records are valid.

use crate::abi::{RANK, RawPlace, RawTensor, number};
use crate::plan_cache::PlanCache;
use crate::processor;
use crate::tensors::{give_back, on_gpu, on_host};
use device::{Device, DeviceError};
use facts::BackendKind;
use ops::{Call, Op, OpError, OpSpec, Options, Settings, Slots, Tensor, TensorMap, TensorSpec};
use ops_cuda::{
    CallTarget, Plans, Workspace, WorkspaceBuffers, WorkspaceSize, borrow_buffer, borrow_stream,
    enqueue,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The latest handle, and ops with their settings by handle.
type Handles = (i64, BTreeMap<i64, Arc<OpWithOptions>>);

/// A handle is never reused, because plans are found by it.
static OPENED: RwLock<Handles> = RwLock::new((0, BTreeMap::new()));

/// An op and its parsed settings.
pub(crate) struct OpWithOptions {
    op: &'static dyn Op,
    options: Box<dyn Options>,
}

impl OpWithOptions {
    /// The op's table.
    pub(crate) fn spec(&self) -> &'static OpSpec {
        self.op.spec()
    }

    /// The call with these inputs.
    fn call<'a>(&self, inputs: &'a Tensors) -> Result<Call<'a>, OpError> {
        self.op.call(slots(self.spec().inputs, inputs), &*self.options)
    }
}

thread_local! {
    /// Plans by GPU ordinal. They are thread-local, so that calls of different threads need no lock.
    static PLANS: RefCell<BTreeMap<i32, GpuPlans>> = const { RefCell::new(BTreeMap::new()) };
}

/// Plans of one GPU: by call signature, and by the records of calls.
#[derive(Default)]
struct GpuPlans {
    plans: Plans,
    known: PlanCache,
}

/// Opens an op with settings, one `name=value` per line, and returns its handle, which is positive.
pub(crate) fn open(op: &str, settings: &str) -> Result<i64, String> {
    let mut read = Settings::new();
    for line in settings.lines() {
        let (name, value) =
            line.split_once('=').ok_or_else(|| format!("setting `{line}` is not `name=value`"))?;
        read.set(name, value);
    }
    let with_options = |op: &'static dyn Op| Ok(OpWithOptions { op, options: op.options(&read)? });
    let opened = ops::op(op).and_then(with_options).map_err(|error| error.to_string())?;
    let mut all = OPENED.write().unwrap_or_else(PoisonError::into_inner);
    all.0 += 1;
    let handle = all.0;
    all.1.insert(handle, Arc::new(opened));
    Ok(handle)
}

/// Closes a handle. Calls in progress finish.
pub(crate) fn close(handle: i64) {
    OPENED.write().unwrap_or_else(PoisonError::into_inner).1.remove(&handle);
}

/// The op of a handle.
pub(crate) fn opened(handle: i64) -> Result<Arc<OpWithOptions>, String> {
    let all = OPENED.read().unwrap_or_else(PoisonError::into_inner);
    all.1.get(&handle).cloned().ok_or_else(|| format!("no op has handle {handle}"))
}

/// The GPU of this ordinal, or the CPU for -1.
pub(crate) fn device_of(number: i32) -> Result<&'static Device, String> {
    match u32::try_from(number) {
        Ok(ordinal) => {
            backends::borrow(BackendKind::Cuda, ordinal).map_err(|absent| absent.to_string())
        }
        Err(_) => processor::device(),
    }
}

fn is_gpu(device: &Device) -> bool {
    device.capabilities().backend == BackendKind::Cuda
}

/// The tensors of an op's table; `None` for absent ones.
type Tensors = Vec<Option<Tensor>>;

fn slots<'a>(table: &'static [TensorSpec], tensors: &'a Tensors) -> Slots<'a> {
    let mut slots = Slots::new(table);
    for (place, tensor) in tensors.iter().enumerate() {
        slots.set_tensor(place, tensor.as_ref());
    }
    slots
}

/// The tensors of the records, on a GPU or the CPU.
///
/// # Safety
/// The records are valid.
unsafe fn tensors(
    table: &'static [TensorSpec],
    raw: &[RawTensor],
    device: &Device,
) -> Result<Tensors, String> {
    let one = |(raw, spec)| match is_gpu(device) {
        // SAFETY: guaranteed by the caller.
        true => unsafe { on_gpu(raw, spec, device) },
        // SAFETY: as above.
        false => unsafe { Ok(on_host(raw, spec)?.map(|(tensor, _)| tensor)) },
    };
    raw.iter().zip(table).map(one).collect()
}

/// The result of a call that did not run because input `code - COPY` has unsupported strides or alignment: a contiguous copy of
/// it can be used instead.
const COPY: i32 = 2;

/// The result of a call that did not run because an output overlaps an input only partially.
const SHARED: i32 = -1;

/// Whether an output overlaps an input without being exactly the same memory.
fn overlap_in_part(inputs: &[RawTensor], outputs: &[RawTensor]) -> bool {
    outputs.iter().filter_map(RawTensor::extent).any(|output| {
        let mut inputs = inputs.iter().filter_map(RawTensor::extent);
        inputs.any(|input| input != output && input.start < output.end && output.start < input.end)
    })
}

/// Whether all outputs are empty. Such a call is skipped, because launching an empty grid is an error.
fn all_empty(outputs: &[RawTensor]) -> bool {
    let empty = |output: &RawTensor| output.dtype == 0 || output.extent().is_none();
    outputs.iter().any(|output| output.dtype != 0) && outputs.iter().all(empty)
}

/// Runs a call. `raw` has a record for each input of the op's table, then one for each output.
///
/// # Safety
/// The records are valid, their memory outlives the call's work in the stream, and nothing else accesses the outputs meanwhile.
pub(crate) unsafe fn call(handle: i64, raw: &[RawTensor], place: &RawPlace) -> Result<i32, String> {
    let op = opened(handle)?;
    let device = device_of(place.device)?;
    let (inputs, outputs) = raw.split_at(op.spec().inputs.len());
    match is_gpu(device) {
        true if all_empty(outputs) => Ok(0),
        true if overlap_in_part(inputs, outputs) => Ok(SHARED),
        // SAFETY: guaranteed by the caller, here and below.
        true => unsafe { on_stream((handle, &op), [inputs, outputs], device, place) },
        false => unsafe { on_processor(&op, inputs, outputs, device) }.map(|()| 0),
    }
}

unsafe fn on_stream(
    (handle, op): (i64, &OpWithOptions),
    raw: [&[RawTensor]; 2],
    device: &Device,
    place: &RawPlace,
) -> Result<i32, String> {
    let OpSpec { name, inputs: taken, outputs: given, .. } = op.spec();
    // SAFETY: guaranteed by the caller, here and below.
    let stream = unsafe { borrow_stream(device, place.stream as usize) };
    let stream = stream.map_err(|error| error.to_string())?;
    let mut memory = |size: WorkspaceSize| -> Result<WorkspaceBuffers, OpError> {
        let captured = stream.is_captured();
        let lend = |bytes: usize, zeros: i32| {
            if bytes == 0 {
                return Ok(None);
            }
            let kept = place.kept[zeros as usize];
            let address = if !captured && bytes as u64 <= kept.bytes {
                kept.address
            } else {
                // SAFETY: the caller's function, of this signature.
                place.memory.map_or(0, |memory| unsafe { memory(bytes as u64, zeros) })
            };
            if address == 0 {
                let what = format!("the caller gave no {bytes} bytes of scratch memory");
                return Err(OpError::Device { op: name, error: DeviceError::Refused { what } });
            }
            // SAFETY: the caller's allocation has that many bytes.
            let borrowed = unsafe { borrow_buffer(device, address, bytes) };
            let borrowed = borrowed.map_err(|error| OpError::Device { op: name, error })?;
            Ok(Some(Arc::new(borrowed)))
        };
        Ok([lend(size.scratch, 0)?, lend(size.zeros, 1)?])
    };
    PLANS.with_borrow_mut(|gpus| {
        let GpuPlans { plans, known } = gpus.entry(place.device).or_default();
        if let Some((plan, addresses)) = known.find(handle, raw) {
            let mut again = || {
                let buffers = plan.workspace_size().allocate(&mut memory)?;
                // SAFETY: the records equal those that the plan was made for, except for addresses of the same alignment.
                unsafe { plan.at_addresses(addresses, Workspace::from(&buffers))? }.enqueue(&stream)
            };
            return again().map(|()| 0).map_err(|error| error.to_string());
        }
        let inputs = unsafe { tensors(taken, raw[0], device)? };
        let outputs = unsafe { tensors(given, raw[1], device)? };
        let place = CallTarget { device, plans, stream: &stream, memory: &mut memory };
        let tensors = [slots(taken, &inputs), slots(given, &outputs)];
        match enqueue(op.op, &*op.options, tensors, place) {
            Ok(plan) => {
                known.keep(plan);
                Ok(0)
            }
            Err(error @ OpError::Device { error: DeviceError::Layout { tensor, .. }, .. }) => {
                // The caller reports this reason if a copy does not help either.
                let why = error.to_string();
                let at = taken.iter().position(|spec| spec.name == tensor);
                let at = at.ok_or_else(|| why.clone())?;
                crate::say(why);
                Ok(COPY + at as i32)
            }
            Err(error) => Err(error.to_string()),
        }
    })
}

unsafe fn on_processor(
    op: &OpWithOptions,
    inputs: &[RawTensor],
    outputs: &[RawTensor],
    device: &Device,
) -> Result<(), String> {
    let table = op.spec();
    // SAFETY: guaranteed by the caller, here and below.
    let inputs = unsafe { tensors(table.inputs, inputs, device)? };
    let (mut into, mut copied) = (TensorMap::new(), Vec::new());
    for (raw, spec) in outputs.iter().zip(table.outputs) {
        let Some((tensor, own_memory)) = (unsafe { on_host(raw, spec)? }) else { continue };
        if !own_memory {
            copied.push((raw, spec.name));
        }
        into.insert(spec.name.to_owned(), tensor);
    }
    let run = || op.call(&inputs)?.run(device, &mut into);
    processor::run(run)?.map_err(|error| error.to_string())?;
    for (raw, name) in copied {
        if let Some(tensor) = into.get_mut(name) {
            // SAFETY: the op returns an error instead of changing the shape or type.
            unsafe { give_back(raw, tensor) };
        }
    }
    Ok(())
}

/// Writes the types and shapes of a call's outputs, in the order of the op's table. Outputs that the call does not compute become
/// absent.
///
/// # Safety
/// The records of the inputs are valid.
pub(crate) unsafe fn outputs(
    handle: i64,
    inputs: &[RawTensor],
    outputs: &mut [RawTensor],
    device: i32,
) -> Result<(), String> {
    let op = opened(handle)?;
    let table = op.spec();
    // SAFETY: guaranteed by the caller.
    let inputs = unsafe { tensors(table.inputs, inputs, device_of(device)?)? };
    let given = op.call(&inputs).map_err(|error| error.to_string())?.outputs();
    for (to, spec) in outputs.iter_mut().zip(table.outputs) {
        *to = RawTensor::ABSENT;
        let Some(output) = given.iter().find(|output| output.name == spec.name) else { continue };
        if output.shape.len() > RANK {
            return Err(format!("output `{}` has more than {RANK} dimensions", spec.name));
        }
        to.dtype = number(output.dtype);
        to.rank = output.shape.len() as i32;
        for (to, size) in to.sizes.iter_mut().zip(&output.shape) {
            *to = *size as i64;
        }
    }
    Ok(())
}

/// The variant that a call would run, and the reason against each other variant, as JSON.
///
/// # Safety
/// The records of the inputs are valid.
pub(crate) unsafe fn why(handle: i64, inputs: &[RawTensor], device: i32) -> Result<String, String> {
    let op = opened(handle)?;
    let device = device_of(device)?;
    // SAFETY: guaranteed by the caller.
    let inputs = unsafe { tensors(op.spec().inputs, inputs, device)? };
    let selection = op.call(&inputs).and_then(|call| call.select(device, None));
    let selection = selection.map_err(|error| error.to_string())?;
    let refused: serde_json::Map<_, _> = selection
        .refused
        .into_iter()
        .map(|refusal| (refusal.variant.to_owned(), refusal.reason.into()))
        .collect();
    let kernel = format!("{}.{}", op.spec().name, selection.chosen);
    Ok(serde_json::json!({ "kernel": kernel, "not": refused }).to_string())
}

/// Number of launches of each kernel on a device, as JSON.
pub(crate) fn launches(device: i32) -> Result<String, String> {
    let launches = device_of(device)?.launches().snapshot();
    let counts: serde_json::Map<_, _> =
        launches.into_iter().map(|(kernel, record)| (kernel, record.count.into())).collect();
    Ok(serde_json::Value::from(counts).to_string())
}
