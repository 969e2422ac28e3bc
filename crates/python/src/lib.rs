//! The shared library of the Python package: all ops on the caller's tensors without copies, on the caller's stream and with
//! scratch memory from the caller. It requires the CUDA driver for GPUs, but neither torch nor Python: any program can load it.
//!
//! Functions return 0 or a handle on success; otherwise [`fl_error`] has the reason. The Python package in `firstlight/` is the
//! reference for their use.
#![allow(unsafe_code)] // C functions; the caller guarantees that the arguments are valid.

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
    /// The text that this thread's last function returned: an error, or the requested JSON.
    static LAST_TEXT: RefCell<CString> = RefCell::default();
}

/// Stores a text for this thread and returns its C string, which is valid until the next call.
fn say(text: impl Into<Vec<u8>>) -> *const c_char {
    let mut text = text.into();
    text.retain(|byte| *byte != 0);
    let text = CString::new(text).unwrap_or_default();
    LAST_TEXT.with_borrow_mut(|last| {
        *last = text;
        last.as_ptr()
    })
}

/// Runs `work`. If it fails or panics, stores the reason and returns `otherwise`.
fn catch<T>(otherwise: T, work: impl FnOnce() -> Result<T, String>) -> T {
    let worked = catch_unwind(AssertUnwindSafe(work));
    let why = match worked {
        Ok(Ok(value)) => return value,
        Ok(Err(why)) => why,
        Err(panic) => {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
            format!("internal error of firstlight: {words}")
        }
    };
    say(why);
    otherwise
}

/// # Safety
/// `from` is a C string.
unsafe fn text<'a>(from: *const c_char) -> Result<&'a str, String> {
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| "text is not UTF-8".to_owned())
}

/// # Safety
/// `from` is null or has `count` records.
unsafe fn records<'a>(from: *const RawTensor, count: usize) -> &'a [RawTensor] {
    if from.is_null() {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(from, count) }
}

/// The reason why this thread's last call failed. The text is valid until the thread's next call of any function of this library.
#[unsafe(no_mangle)]
pub extern "C" fn fl_error() -> *const c_char {
    LAST_TEXT.with_borrow(|last| last.as_ptr())
}

/// The tables of all ops as JSON: their tensors with shapes, and their settings with defaults.
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

/// Opens an op with settings, one `name=value` per line. Returns a handle for this process, or 0 on failure.
///
/// # Safety
/// Both arguments are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_open(op: *const c_char, settings: *const c_char) -> i64 {
    // SAFETY: guaranteed by the caller.
    catch(0, || unsafe { calls::open(text(op)?, text(settings)?) })
}

/// Closes a handle of [`fl_open`]. Calls in progress on other threads finish.
#[unsafe(no_mangle)]
pub extern "C" fn fl_close(handle: i64) {
    catch((), || {
        calls::close(handle);
        Ok(())
    });
}

/// Runs a call. `tensors` has a record for each input of the op's table, then one for each output. On a GPU it returns when the
/// work is enqueued in the stream.
///
/// Returns 0 on success and 1 on failure. Other results mean that nothing has run: 2 + i if a contiguous copy of input i is needed,
/// because its strides or alignment are not supported, and -1 if an output on a GPU overlaps an input only partially.
///
/// # Safety
/// The records are valid, their memory outlives the call's work in the stream, and nothing else accesses the outputs meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_call(
    handle: i64,
    tensors: *const RawTensor,
    count: usize,
    place: *const RawPlace,
) -> i32 {
    catch(1, || {
        // SAFETY: guaranteed by the caller.
        let (raw, place) = unsafe { (records(tensors, count), place.as_ref()) };
        let table = calls::opened(handle)?.spec();
        let place = place.ok_or("`place` is null")?;
        if raw.len() != table.inputs.len() + table.outputs.len() {
            return Err(format!("{} takes another number of tensors than {count}", table.name));
        }
        // SAFETY: guaranteed by the caller.
        unsafe { calls::call(handle, raw, place) }
    })
}

/// Writes the types and sizes of a call's outputs into the records after those of its inputs. Outputs that the call does not compute
/// become absent. Returns 0, or 1 on failure.
///
/// # Safety
/// `tensors` has `count` records, and those of the inputs are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_outputs(
    handle: i64,
    tensors: *mut RawTensor,
    count: usize,
    device: i32,
) -> i32 {
    catch(1, || {
        let table = calls::opened(handle)?.spec();
        if tensors.is_null() || count != table.inputs.len() + table.outputs.len() {
            return Err(format!("{} takes another number of tensors than {count}", table.name));
        }
        // SAFETY: guaranteed by the caller.
        let raw = unsafe { std::slice::from_raw_parts_mut(tensors, count) };
        let (inputs, outputs) = raw.split_at_mut(table.inputs.len());
        // SAFETY: as above.
        unsafe { calls::outputs(handle, inputs, outputs, device) }.map(|()| 0)
    })
}

/// The kernel that a call would run, and the reason against each other variant, as JSON that is valid until the thread's next call;
/// null on failure.
///
/// # Safety
/// `inputs` has `count` valid records.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_why(
    handle: i64,
    inputs: *const RawTensor,
    count: usize,
    device: i32,
) -> *const c_char {
    catch(std::ptr::null(), || {
        // SAFETY: guaranteed by the caller.
        unsafe { calls::why(handle, records(inputs, count), device) }.map(say)
    })
}

/// Number of launches of each kernel on a GPU (-1: on the CPU), as JSON that is valid until the thread's next call; null if there is no
/// such device.
#[unsafe(no_mangle)]
pub extern "C" fn fl_launches(device: i32) -> *const c_char {
    catch(std::ptr::null(), || calls::launches(device).map(say))
}
