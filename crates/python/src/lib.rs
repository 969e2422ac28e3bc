//! The library that the Python package loads: every op over tensors of the caller, where they lie, on the caller's stream and in
//! the caller's memory. It needs the driver for GPUs, and neither torch nor Python: any program that can load a library may call it.
//!
//! Functions give 0 or a handle where they succeed; otherwise [`fl_error`] says why. The package `firstlight` beside this crate's
//! sources is the one reference of how they are called.
#![allow(unsafe_code)] // Functions of C, whose arguments are what their callers promise.

mod abi;
mod calls;
mod fast;
mod plan_cache;
mod processor;
mod tensors;

pub use abi::{RANK, RawMemory, RawPlace, RawTensor};
pub use fast::PyInit__fast;

use ops::{OPS, OpSpec, TensorSpec};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// What the last function of this thread said: a reason, or what it was asked for.
    static SAID: RefCell<CString> = RefCell::default();
}

fn say(text: impl Into<Vec<u8>>) -> *const c_char {
    let mut text = text.into();
    text.retain(|byte| *byte != 0);
    let text = CString::new(text).unwrap_or_default();
    SAID.with_borrow_mut(|said| {
        *said = text;
        said.as_ptr()
    })
}

/// Runs what may fail or panic, and keeps why it did.
fn told<T>(otherwise: T, work: impl FnOnce() -> Result<T, String>) -> T {
    let worked = catch_unwind(AssertUnwindSafe(work));
    let why = match worked {
        Ok(Ok(value)) => return value,
        Ok(Err(why)) => why,
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
            format!("firstlight failed by a mistake of its own: {words}")
        }
    };
    say(why);
    otherwise
}

/// # Safety
/// A C string.
unsafe fn text<'a>(from: *const c_char) -> Result<&'a str, String> {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| "text is not UTF-8".to_owned())
}

/// # Safety
/// As many records as are said.
unsafe fn records<'a>(from: *const RawTensor, count: usize) -> &'a [RawTensor] {
    if from.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(from, count) }
}

/// Why the last call of this thread failed. The text stays until the thread's next call of any function here.
#[unsafe(no_mangle)]
pub extern "C" fn fl_error() -> *const c_char {
    SAID.with_borrow(|said| said.as_ptr())
}

/// Tables of all ops, as JSON: names of tensors and settings with their shapes, defaults and meanings.
#[unsafe(no_mangle)]
pub extern "C" fn fl_tables() -> *const c_char {
    let tensors = |table: &[TensorSpec]| -> Vec<_> {
        let row = |spec: &TensorSpec| {
            let TensorSpec { name, shape, required, about } = spec;
            serde_json::json!({ "name": name, "shape": shape, "required": required, "about": about })
        };
        table.iter().map(row).collect()
    };
    let table = |op: &OpSpec| {
        let settings: Vec<_> = op
            .settings
            .iter()
            .map(|spec| {
                serde_json::json!({ "name": spec.name, "default": spec.default, "about": spec.about })
            })
            .collect();
        serde_json::json!({
            "name": op.name, "summary": op.summary, "inputs": tensors(op.inputs), "outputs": tensors(op.outputs),
            "settings": settings,
        })
    };
    let tables: Vec<_> = OPS.iter().map(|op| table(op.spec())).collect();
    say(serde_json::Value::from(tables).to_string())
}

/// Opens an op with settings, a line of `name=value` each. Gives a handle for this process, or 0.
///
/// # Safety
/// Two C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_open(op: *const c_char, settings: *const c_char) -> i64 {
    // SAFETY: the caller's promise.
    told(0, || unsafe { calls::open(text(op)?, text(settings)?) })
}

/// Closes a handle of [`fl_open`]; another thread's call that has begun with it finishes.
#[unsafe(no_mangle)]
pub extern "C" fn fl_close(handle: i64) {
    told((), || {
        calls::close(handle);
        Ok(())
    });
}

/// Runs a call: `tensors` has a record for each input of the op's table, then one for each output. On a GPU it returns once the work
/// is in the stream. Gives 0; 1 where it fails; from 2 on the place of an input of which a copy, whose elements lie side by side, would do;
/// -1 where an output on a GPU shares a part of an input's memory, but not all of it: nothing has run then.
///
/// # Safety
/// The records are true: what they describe is there and stays until the stream has passed the call, and outputs are nobody else's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_call(
    handle: i64,
    tensors: *const RawTensor,
    count: usize,
    place: *const RawPlace,
) -> i32 {
    told(1, || {
        // SAFETY: the caller's promise.
        let (raw, place) = unsafe { (records(tensors, count), place.as_ref()) };
        let table = calls::opened(handle)?.spec();
        let place = place.ok_or("a call wants to be told where it runs")?;
        if raw.len() != table.inputs.len() + table.outputs.len() {
            return Err(format!("{} takes another number of tensors than {count}", table.name));
        }
        // SAFETY: the caller's promise.
        unsafe { calls::call(handle, raw, place) }
    })
}

/// Writes types and sizes of a call's outputs over the records that follow those of its inputs; what the call does not give is
/// absent. Gives 0, or 1.
///
/// # Safety
/// As many records as are said, true ones for the inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_outputs(
    handle: i64,
    tensors: *mut RawTensor,
    count: usize,
    device: i32,
) -> i32 {
    told(1, || {
        let table = calls::opened(handle)?.spec();
        if tensors.is_null() || count != table.inputs.len() + table.outputs.len() {
            return Err(format!("{} takes another number of tensors than {count}", table.name));
        }
        // SAFETY: the caller's promise.
        let raw = unsafe { std::slice::from_raw_parts_mut(tensors, count) };
        let (inputs, outputs) = raw.split_at_mut(table.inputs.len());
        // SAFETY: as above.
        unsafe { calls::outputs(handle, inputs, outputs, device) }.map(|()| 0)
    })
}

/// The kernel that a call would run and why not the others, as JSON, until the thread's next call; null where it fails.
///
/// # Safety
/// As many records as are said, true ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_why(
    handle: i64,
    inputs: *const RawTensor,
    count: usize,
    device: i32,
) -> *const c_char {
    told(std::ptr::null(), || {
        // SAFETY: the caller's promise.
        unsafe { calls::why(handle, records(inputs, count), device) }.map(say)
    })
}

/// Launches so far of each kernel on a GPU (-1: on the processor), as JSON, until the thread's next call; null where there is no such
/// device.
#[unsafe(no_mangle)]
pub extern "C" fn fl_launches(device: i32) -> *const c_char {
    told(std::ptr::null(), || calls::launches(device).map(say))
}
