//! Calls over GPU tensors become stages of a persistent kernel or report why not, and stages become launches.

use super::machine;
use device::{Device, Queue};
use facts::BackendKind;
use ops::linear::{ConvStep, Epilogue, LinearCall, Norm, NormPrologue};
use ops::ssd::{SsdCall, SsdOptions};
use ops::{DType, RecurrentCall, States, Tensor, Typed};
use ops_cuda::persistent::{PersistentStage, chain};
use ops_cuda::plan_stage;
use std::sync::Arc;

#[test]
fn calls_in_a_row_are_one_launch() {
    let launched = machine::launched("chain::calls_in_a_row_are_one_launch", || {
        let device = backends::open(BackendKind::Cuda).unwrap();
        let stream = ops_cuda::stream(&device).unwrap().clone();
        let made = stages(&Tensors::new(&stream), &device);
        if made.is_empty() {
            return;
        }
        // The addend is a tensor that no stage computes.
        for (times, launches) in [(1, 2), (100, 200)] {
            let all: Vec<PersistentStage> =
                (0..times).flat_map(|_| stages(&Tensors::new(&stream), &device)).collect();
            let file = std::env::var_os("FAKE_CUDA_ARGUMENTS").unwrap();
            let chain = chain(&device, &stream, &all).unwrap();
            let _ = std::fs::remove_file(&file);
            chain.enqueue(&stream).unwrap();
            let lines = std::fs::read_to_string(&file).unwrap();
            assert_eq!(lines.lines().count(), launches, "{lines}");
            assert!(lines.lines().all(|line| line.starts_with("persistent_chain ")), "{lines}");
        }
        let counted = device.launches().snapshot();
        let chains = counted.iter().find(|(name, _)| *name == "persistent.chain").unwrap();
        assert_eq!(chains.1.count, 202);
    });
    assert!(launched.is_none_or(|launched| launched.contains("persistent_chain")));
}

#[test]
fn calls_have_no_stage_without_a_compiler() {
    let name = "chain::calls_have_no_stage_without_a_compiler";
    machine::launched(name, || {
        let device = backends::open(BackendKind::Cuda).unwrap();
        let stream = ops_cuda::stream(&device).unwrap().clone();
        let of = |shape: &[usize], dtype| Tensor::allocate(&stream, shape, dtype).unwrap();
        let (x, o) = (of(&[1, 8192], DType::Bf16), of(&[1, 256], DType::Bf16));
        // No model has such scales, so the kernel is not built in.
        let (w, w_scale) = (of(&[256, 8192], DType::I8), of(&[256, 256], DType::F32));
        let w_scale = Some(&w_scale);
        let call = LinearCall { w_scale, w_group: 32, ..LinearCall::new(&x, &w).into([&o]) };
        let hopper = ops_cuda::compute_capability(&device).unwrap().major == 9;
        if hopper && !ops_cuda::has_compiler() {
            let why = try_stage(&call, &device).unwrap_err();
            let expect = "is not built in, and NVRTC was not found to compile it";
            assert!(why.ends_with(expect), "{why}");
        }
    });
}

/// The tensors of a layer's calls for one token.
struct Tensors {
    /// `[1, 2048]` in f32, `[1, 8192]` and `[2, 8192]` in bf16.
    x: Tensor,
    inner: Tensor,
    rows: Tensor,
    norm: Tensor,
    /// 520 columns, 2048 rows back.
    w: Tensor,
    w_scale: Tensor,
    down: Tensor,
    down_scale: Tensor,
    plain: Tensor,
    /// 128 gates, 384 channels and 8 step sizes.
    parts: [Tensor; 3],
    taps: Tensor,
    pool: Tensor,
    slots: Tensor,
    /// One sequence, 8 heads of 16.
    states: Tensor,
    per_head: Tensor,
    made: Tensor,
}

impl Tensors {
    fn new(stream: &impl Queue) -> Self {
        let of = |shape: &[usize], dtype| Tensor::allocate(stream, shape, dtype).unwrap();
        let slots = of(&[1], DType::I32);
        let slots = Tensor::integers(Arc::clone(slots.on().unwrap()), &[1], [0].into()).unwrap();
        Self {
            x: of(&[1, 2048], DType::F32),
            inner: of(&[1, 8192], DType::Bf16),
            rows: of(&[2, 8192], DType::Bf16),
            norm: of(&[2048], DType::F32),
            w: of(&[520, 2048], DType::E4m3),
            w_scale: of(&[1, 520], DType::F32),
            down: of(&[2048, 8192], DType::E4m3),
            down_scale: of(&[1, 2048], DType::F32),
            plain: of(&[2048, 8192], DType::Bf16),
            parts: [128, 384, 8].map(|width| of(&[1, width], DType::Bf16)),
            taps: of(&[384, 4], DType::F32),
            pool: of(&[3, 384, 3], DType::F32),
            slots,
            states: of(&[3, 8, 16, 128], DType::F32),
            per_head: of(&[8], DType::F32),
            made: of(&[1, 1, 8, 16], DType::Bf16),
        }
    }
}

/// The stages of a layer's calls, none on a GPU without support; calls that cannot be stages report why.
fn stages(of: &Tensors, device: &Device) -> Vec<PersistentStage> {
    let norm = NormPrologue { weight: &of.norm, norm: Norm { groups: 1, eps: 1e-5 } };
    let project = LinearCall {
        norm: Some(norm),
        w_scale: Some(&of.w_scale),
        ..LinearCall::new(&of.x, &of.w).into(&of.parts)
    };
    let states = States { before: Some(&of.pool), slots: Some(&of.slots), after: Some(&of.pool) };
    let convolved = ConvStep { weight: &of.taps, bias: None, first: 128, silu: true, states };
    let z = of.parts[0].shaped(&[1, 1, 8, 16]).unwrap();
    let channels = |first, shape: &[usize]| of.parts[1].columns(first, 128, shape).unwrap();
    let (x, one) = (channels(0, &[1, 1, 8, 16]), [1, 1, 1, 128]);
    let (b, c) = (channels(128, &one), channels(256, &one));
    let dt = of.parts[2].shaped(&[1, 1, 8]).unwrap();
    let call = SsdCall {
        x: &x,
        dt: &dt,
        a: &of.per_head,
        b: &b,
        c: &c,
        d: None,
        z: Some(&z),
        dt_bias: Some(&of.per_head),
        offsets: None,
        states: States::default(),
        options: SsdOptions::default(),
        o: None,
    };
    let states =
        States { before: Some(&of.states), slots: Some(&of.slots), after: Some(&of.states) };
    let scan = |states| RecurrentCall { call: &call, offsets: None, states, o: Some(&of.made) };
    let add = LinearCall {
        w_scale: Some(&of.down_scale),
        epilogue: Epilogue::Residual(&of.x),
        ..LinearCall::new(&of.inner, &of.down).into([&of.x])
    };
    let made = [
        try_stage(&convolving(&project, convolved), device),
        try_stage(&scan(states), device),
        try_stage(&add, device),
    ];
    if made.iter().all(Result::is_err) {
        assert_eq!(made[0].as_ref().unwrap_err(), "needs compute capability 9.0, this GPU has 8.0");
        return Vec::new();
    }

    let apart = Tensors::new(ops_cuda::stream(device).unwrap());
    let elsewhere = States { after: Some(&apart.pool), ..convolved.states };
    let why = [
        try_stage(&convolving(&project, ConvStep { states: elsewhere, ..convolved }), device),
        try_stage(&scan(States { after: Some(&apart.states), ..states }), device),
        try_stage(&LinearCall { outputs: [None; 6], split: [0; 6], ..project }, device),
        try_stage(&LinearCall { x: &of.rows, epilogue: Epilogue::Identity, ..add }, device),
        try_stage(&LinearCall { w: &of.plain, w_scale: None, ..add }, device),
    ];
    let why = why.map(|stage| stage.unwrap_err());
    let expect = [
        "advances states where they lie",
        "advances states where they lie",
        "needs a tensor that `o` goes to",
        "is for one row of x, got 2",
        "needs weights in e4m3 by rows, or integers by rows or by groups of 32, or 128 of 4 bits, without zero points, or a router's",
    ];
    assert_eq!(why, expect);
    made.map(Result::unwrap).into()
}

fn convolving<'a>(project: &LinearCall<'a>, by: ConvStep<'a>) -> LinearCall<'a> {
    LinearCall { epilogue: Epilogue::ConvStep(by), ..*project }
}

fn try_stage<C: Typed>(call: &C, device: &Device) -> Result<PersistentStage, String> {
    plan_stage(call, device).unwrap()
}
