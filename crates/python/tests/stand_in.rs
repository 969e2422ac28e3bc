//! Calls on a fake CUDA driver: a repeated call, whose plan is found by its records, launches the same kernels as a first call.
#![cfg(target_os = "linux")] // The fake driver is built by the C compiler and found by the loader's path.
#![allow(unsafe_code)] // Calls of C functions.
#![allow(clippy::unwrap_used)] // A test.

#[path = "../../verify/tests/stand_in/machine.rs"]
mod machine;

use firstlight_ops::{RawMemory, RawPlace, RawTensor, fl_call, fl_error, fl_open};
use std::ffi::CStr;
use std::sync::OnceLock;

/// Addresses of x, the weight and the output.
type Addresses = [u64; 3];

const A: Addresses = [0x10000, 0x20000, 0x30000];
const B: Addresses = [0x50000, 0x60000, 0x70000];
/// An output that overwrites the input, and an input of smaller alignment.
const OVER: Addresses = [0x50000, 0x60000, 0x50000];
const ODD: Addresses = [0x50002, 0x60000, 0x70000];

#[test]
fn a_repeated_call_launches_the_same_kernels_as_a_first_one() {
    let name = "a_repeated_call_launches_the_same_kernels_as_a_first_one";
    let launched = machine::launched(name, || {
        // Plans are thread-local, so the calls of a new thread are first calls.
        let in_new_thread = |calls: &'static [(Addresses, i64)]| {
            std::thread::spawn(move || calls.iter().map(|(at, rows)| launch(*at, *rows)).collect())
                .join()
                .unwrap()
        };
        let all: Vec<String> =
            in_new_thread(&[(A, 4), (B, 4), (A, 4), (OVER, 4), (ODD, 4), (B, 5), (B, 4)]);
        assert!(all.iter().filter(|one| one.starts_with("rmsnorm")).count() == 6, "{all:?}");
        assert_eq!(all[4], "a copy would do");
        for (at, call) in [(A, 4), (B, 4), (A, 4), (OVER, 4), (ODD, 4), (B, 5)].iter().zip(&all) {
            let first: &'static [(Addresses, i64)] = Box::leak(Box::new([*at]));
            assert_eq!(in_new_thread(first), std::slice::from_ref(call), "{at:?}");
        }
        assert_eq!(all[1], all[6]);
        assert!(all[0] != all[1] && all[1] != all[3] && all[1] != all[5], "{all:?}");
    });
    assert!(launched.is_none_or(|launched| launched.iter().any(|name| name.contains("rmsnorm"))));
}

#[test]
fn uint8_weights_launch_as_pairs_of_int4() {
    let name = "uint8_weights_launch_as_pairs_of_int4";
    let launched = machine::launched(name, || {
        let handle = unsafe { fl_open(c"linear".as_ptr(), c"w_group=128".as_ptr()) };
        let dense = |data, dtype, [rows, columns]: [i64; 2]| RawTensor {
            data,
            dtype,
            rank: 2,
            sizes: [rows, columns, 0, 0, 0, 0],
            strides: [columns, 1, 0, 0, 0, 0],
            ..RawTensor::ABSENT
        };
        // x, w, w_scale, w_zero and, after nine absent inputs, o of six outputs and no final state.
        let mut records = [RawTensor::ABSENT; 20];
        records[0] = dense(0x10000, 3, [1, 1024]);
        records[2] = dense(0x80000, 2, [8, 256]);
        records[3] = dense(0x90000, 8, [8, 256]);
        records[13] = dense(0xa0000, 3, [1, 256]);
        let kept = [0x1000_0000, 0x2000_0000].map(|address| RawMemory { address, bytes: 1 << 24 });
        let place = RawPlace { device: 0, pad: 0, stream: 0, memory: None, kept };
        // A byte has two int4 columns, so 1024 bytes are twice the columns of x.
        for (bytes, wanted) in [(512, 0), (1024, 1)] {
            records[1] = dense(0x20000, 8, [256, bytes]);
            let code =
                unsafe { fl_call(handle, records.as_ptr(), records.len(), &raw const place) };
            let why = unsafe { CStr::from_ptr(fl_error()) };
            assert_eq!(code, wanted, "{bytes} bytes a row: {why:?}");
            if code == 1 {
                let why = why.to_string_lossy();
                assert!(why.contains("`w` has shape [256, 2048]"), "{why}");
            }
        }
    });
    assert!(launched.is_none_or(|launched| launched.iter().any(|name| name.contains("linear"))));
}

/// The launch of an RMSNorm over rows of 1024: the kernel's name and a hash of its arguments.
fn launch([x, weight, o]: Addresses, rows: i64) -> String {
    const WIDTH: i64 = 1024;
    static HANDLE: OnceLock<i64> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| unsafe { fl_open(c"rmsnorm".as_ptr(), c"".as_ptr()) });
    let tensor = |data, sizes: &[i64]| {
        let mut tensor =
            RawTensor { data, dtype: 3, rank: sizes.len() as i32, ..RawTensor::ABSENT };
        let mut stride = 1;
        for at in (0..sizes.len()).rev() {
            (tensor.sizes[at], tensor.strides[at]) = (sizes[at], stride);
            stride *= sizes[at];
        }
        tensor
    };
    let shape = [1, rows, 1, WIDTH];
    let records =
        [tensor(x, &shape), RawTensor::ABSENT, tensor(weight, &[WIDTH]), tensor(o, &shape)];
    let kept = [RawMemory::default(); 2];
    let place = RawPlace { device: 0, pad: 0, stream: 0, memory: None, kept };
    let file = std::env::var_os("FAKE_CUDA_ARGUMENTS").unwrap();
    let _ = std::fs::remove_file(&file);
    let code = unsafe { fl_call(handle, records.as_ptr(), records.len(), &raw const place) };
    let why = unsafe { CStr::from_ptr(fl_error()) };
    if code == 2 {
        return "a copy would do".to_owned();
    }
    assert_eq!(code, 0, "{why:?}");
    std::fs::read_to_string(file).unwrap()
}
