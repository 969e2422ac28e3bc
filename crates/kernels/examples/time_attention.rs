//! Rough times of attention beside the machine's ceilings: `cargo run --release -p kernels --example time_attention`.
//! An argument keeps only the cases whose name contains it; a second one names the variant.
#![allow(clippy::print_stdout, missing_docs)]

use device::Isa;
use facts::BackendKind;
use half::bf16;
use kernels::cpu::gemm::{gemm_bf16_parallel, gemm_f32_parallel};
use kernels::{DType, Settings, Tensor, TensorMap};
use std::time::Instant;

struct Case {
    name: &'static str,
    dtype: DType,
    /// B, Tq, Tk, H, Hkv, D, Dv.
    shape: [usize; 7],
    causal: bool,
}

const fn case(name: &'static str, dtype: DType, shape: [usize; 7], causal: bool) -> Case {
    Case { name, dtype, shape, causal }
}

const CASES: &[Case] = &[
    case("prefill f32", DType::F32, [1, 2048, 2048, 8, 8, 128, 128], false),
    case("prefill f32 causal", DType::F32, [1, 2048, 2048, 8, 8, 128, 128], true),
    case("prefill bf16", DType::Bf16, [1, 2048, 2048, 8, 8, 128, 128], false),
    case("prefill bf16 causal", DType::Bf16, [1, 2048, 2048, 8, 8, 128, 128], true),
    case("prefill f16", DType::F16, [1, 2048, 2048, 4, 4, 128, 128], false),
    case("prefill bf16 gqa", DType::Bf16, [1, 2048, 2048, 16, 4, 64, 64], true),
    case("prefill bf16 wide", DType::Bf16, [1, 1024, 1024, 4, 4, 512, 512], false),
    case("prefill f32 wide", DType::F32, [1, 1024, 1024, 2, 2, 1024, 1024], false),
    case("prefill f32 short", DType::F32, [8, 128, 128, 8, 8, 64, 64], true),
    case("decode f32", DType::F32, [1, 1, 32768, 8, 8, 128, 128], true),
    case("decode bf16", DType::Bf16, [1, 1, 65536, 8, 8, 128, 128], true),
    case("decode f32 gqa4", DType::F32, [1, 1, 32768, 32, 8, 128, 128], true),
    case("decode bf16 gqa4", DType::Bf16, [1, 1, 65536, 32, 8, 128, 128], true),
    case("decode bf16 gqa8", DType::Bf16, [8, 1, 8192, 64, 8, 128, 128], true),
    case("decode f32 gqa8", DType::F32, [4, 1, 8192, 64, 8, 128, 128], true),
    case("decode bf16 one head", DType::Bf16, [1, 1, 400_000, 1, 1, 128, 128], true),
    case("decode bf16 mqa16", DType::Bf16, [4, 1, 65536, 16, 1, 128, 128], true),
    case("decode bf16 mla", DType::Bf16, [4, 1, 8192, 128, 1, 576, 512], true),
];

fn values(count: usize) -> impl Iterator<Item = f32> {
    let mut state = 1u32;
    (0..count).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
}

fn tensor(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::new(shape, values(shape.iter().product()).collect::<Vec<f32>>()).cast(dtype)
}

/// The median of a few runs, in seconds, after one that is not counted.
fn median(mut run: impl FnMut()) -> f64 {
    run();
    let mut seconds = Vec::new();
    let began = Instant::now();
    while seconds.len() < 5 || (began.elapsed().as_secs_f64() < 1.0 && seconds.len() < 99) {
        let start = Instant::now();
        run();
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() {
    let device = device::open(BackendKind::Cpu).expect("the processor is always there");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = arguments.first().map(String::as_str).unwrap_or_default();

    const BYTES: usize = 256 << 20;
    let (from, mut to) = (vec![1u8; BYTES], vec![0u8; BYTES]);
    let part = BYTES / device.capabilities().threads;
    let seconds = median(|| {
        std::thread::scope(|scope| {
            for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
    });
    let copy = 2.0 * BYTES as f64 / seconds / 1e9;
    println!("copy {copy:.1} GB/s");

    const N: usize = 1536;
    let a: Vec<f32> = values(N * N).collect();
    let mut c = vec![0.0; N * N];
    let isa = device.capabilities().isas[0];
    let flops = 2.0 * (N as f64).powi(3) / 1e9;
    let f32_rate = flops / median(|| gemm_f32_parallel(&device, isa, [N; 3], &a, &a, &mut c));
    println!("gemm f32 {f32_rate:.0} GFLOP/s");
    let mut bf16_rate = f32_rate;
    if isa == Isa::Avx512Bf16 {
        let a: Vec<bf16> = a.iter().map(|x| bf16::from_f32(*x)).collect();
        bf16_rate = flops / median(|| gemm_bf16_parallel(&device, [N; 3], &a, &a, &mut c));
        println!("gemm bf16 {bf16_rate:.0} GFLOP/s");
    }

    let op = kernels::op("attention").expect("the op is in the list");
    for case in CASES.iter().filter(|case| case.name.contains(wanted)) {
        let [batch, queries, keys, heads, kv_heads, dim, value_dim] = case.shape;
        let mut inputs = TensorMap::new();
        inputs.insert("q".into(), tensor(&[batch, queries, heads, dim], case.dtype));
        inputs.insert("k".into(), tensor(&[batch, keys, kv_heads, dim], case.dtype));
        inputs.insert("v".into(), tensor(&[batch, keys, kv_heads, value_dim], case.dtype));
        let settings = Settings::new().with("causal", case.causal);
        let call = op.bind(&inputs, &settings).expect("the case is right");
        let wanted = arguments.get(1).map(String::as_str);
        let variant = call.select(&device, wanted).expect("a variant runs everywhere").chosen;
        let mut execution = call.prepare(&device, variant).expect("it was selected");
        let seconds = median(|| execution.launch().expect("the processor launches"));
        let gflops = call.problem().flops() / seconds / 1e9;
        let gbps = call.problem().bytes() / seconds / 1e9;
        let rate = if case.dtype == DType::Bf16 { bf16_rate } else { f32_rate };
        println!(
            "{:22} {variant:17} {:9.3} ms  {gflops:6.1} GFLOP/s = {:3.0} % of gemm  {gbps:5.1} GB/s = {:3.0} % of copy",
            case.name,
            seconds * 1e3,
            100.0 * gflops / rate,
            100.0 * gbps / copy,
        );
    }
}
