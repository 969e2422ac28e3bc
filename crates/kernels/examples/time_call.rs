//! What a call costs the host before it is launched: checked, chosen and planned for the first time, and found again. On a
//! stand-in for the driver that computes nothing; `models/examples/time_planning.rs` says how to build it and what to set.
//!
//! ```text
//! cargo run --release -p kernels --example time_call
//! ```
#![allow(clippy::print_stdout, clippy::unwrap_used)] // A program to be read by a developer.
#![allow(unsafe_code)] // An allocator that counts.

use kernels::attention::{AttentionCall, Keys, Mask, Values};
use kernels::cuda::{Memory, Plans};
use kernels::linear::{LinearCall, Norm, Normed};
use kernels::ssd::{SsdCall, SsdOptions};
use kernels::{DType, States, Tensor, Typed};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Microseconds that this thread has run.
fn micros() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e3
}

/// Times one call `make` makes, at other addresses each time.
fn time<C: Typed>(name: &str, device: &device::Device, call: &C) {
    const CALLS: u32 = 20_000;
    let stream = device.cuda().unwrap().stream();
    // Once for the kernels: loading them is no call's business.
    let wanted = Plans::new().of(call, device).unwrap().wanted();
    let scratch = Arc::new(stream.allocate(wanted.scratch).unwrap());
    let zeros = Arc::new(stream.allocate(wanted.zeros).unwrap());
    let memory = Memory { scratch: Some(&scratch), zeros: Some(&zeros) };
    let first = (0..50).map(|_| {
        let start = micros();
        black_box(Plans::new().of(call, device).unwrap());
        micros() - start
    });
    let first = first.fold(f64::MAX, f64::min);
    let mut plans = Plans::new();
    plans.of(call, device).unwrap();
    let (start, allocated) = (micros(), ALLOCATIONS.load(Ordering::Relaxed));
    for _ in 0..CALLS {
        let plan = plans.of(black_box(call), device).unwrap();
        black_box(plan.at(black_box(call), memory).unwrap());
    }
    // Reading the clock allocates too.
    let allocated = ALLOCATIONS.load(Ordering::Relaxed) - allocated;
    let again = (micros() - start) / f64::from(CALLS);
    println!(
        "{name}: {first:.1} us at first, {again:.3} us again, {allocated} allocations in {CALLS} calls"
    );
}

fn main() {
    let device = device::open(facts::BackendKind::Cuda).unwrap();
    let stream = device.cuda().unwrap().stream();
    let tensor = |shape: &[usize], dtype| Tensor::allocate(stream, shape, dtype).unwrap();
    let half = |shape: &[usize]| tensor(shape, DType::Bf16);
    let float = |shape: &[usize]| tensor(shape, DType::F32);
    for tokens in [1, 512] {
        let (x, w, weight) = (float(&[tokens, 2048]), half(&[8512, 2048]), float(&[2048]));
        let parts = [4096, 4352, 64].map(|width| half(&[tokens, width]));
        let norm = Some(Normed { weight: &weight, norm: Norm { groups: 1, eps: 1e-5 } });
        let call = LinearCall { norm, ..LinearCall::new(&x, &w) }.into(parts.each_ref());
        time(&format!("linear, {tokens} tokens"), &device, &call);

        let (x, dt) = (half(&[1, tokens, 64, 64]), half(&[1, tokens, 64]));
        let (b, c) = (half(&[1, tokens, 1, 128]), half(&[1, tokens, 1, 128]));
        let [a, d, bias] = [(); 3].map(|()| float(&[64]));
        let (state, o) = (float(&[1, 64, 64, 128]), half(&[tokens, 4096]));
        let call = SsdCall {
            x: &x,
            dt: &dt,
            a: &a,
            b: &b,
            c: &c,
            d: Some(&d),
            z: Some(&x),
            dt_bias: Some(&bias),
            offsets: None,
            states: States { before: Some(&state), slots: None, after: Some(&state) },
            options: SsdOptions::default(),
            o: Some(&o),
        };
        time(&format!("ssd, {tokens} tokens"), &device, &call);

        let (q, o) = (half(&[1, tokens, 32, 64]), half(&[tokens, 2048]));
        let [k, v] = [(); 2].map(|()| half(&[1, 1024, 8, 64]));
        let call = AttentionCall {
            q: &q,
            offsets: None,
            k: &k,
            v: Values::Apart(&v),
            keys: Keys::Dense { lengths: None },
            mask: Mask::CAUSAL,
            scale: None,
            softcap: None,
            o: Some(&o),
            lse: None,
        };
        time(&format!("attention, {tokens} tokens"), &device, &call);
    }
}
