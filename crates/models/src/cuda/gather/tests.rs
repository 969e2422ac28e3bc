//! Which calls of a step are fused into one launch, on the stand-in for the CUDA driver.
#![cfg(target_os = "linux")]

use crate::cuda::machine;
use crate::verify::{counts, since};
use crate::{
    Batch, Capacity, Config, LogitsSelection, Model, QuantizedFormat, Storage, open, shape,
};
use device::cuda::Cuda;
use facts::BackendKind;
use std::collections::BTreeMap;

/// The first layers of Granite 4.0 H Micro, the sixth with attention, and a small vocabulary.
fn micro(layers: usize) -> Config {
    let config = shape("granite-4.0-h-micro").unwrap().first_layers(layers).unwrap();
    config.with("vocab_size", 512.into())
}

/// Launches of a step of one token for `sequences` sequences, by op and variant.
fn launches(config: &Config, sequences: usize) -> BTreeMap<String, u64> {
    let device = backends::open(BackendKind::Cuda).unwrap();
    let capacity = Capacity { sequences, tokens: 64 };
    let mut engine =
        open(Model::random(config, 1).unwrap(), device, Storage::Bf16, capacity).unwrap();
    let batch = (0..sequences).fold(Batch::new(), |batch, at| batch.with(at, &[1]));
    let before = counts(&*engine);
    engine.step(&batch, LogitsSelection::Last).unwrap();
    let of = ["linear.", "ssd.", "rmsnorm.", "moe.", "persistent."];
    let ran = since(&before, counts(&*engine)).into_iter();
    ran.filter(|(name, _)| of.iter().any(|of| name.starts_with(of))).collect()
}

#[test]
fn calls_between_attentions_are_one_launch() {
    let name = "cuda::gather::tests::calls_between_attentions_are_one_launch";
    machine::launched(name, || {
        let device = backends::open(BackendKind::Cuda).unwrap();
        let hopper = Cuda::of(&device).unwrap().capabilities().compute.major == 9;
        let check = |config: &Config, expect: &[(&str, u64)]| {
            let ran = launches(config, 1);
            let ran: Vec<_> = ran.iter().map(|(name, count)| (name.as_str(), *count)).collect();
            if hopper {
                assert_eq!(ran, expect);
            }
            // Several sequences and other GPUs use separate launches only.
            let others = if hopper { launches(config, 2) } else { launches(config, 1) };
            assert!(!others.contains_key("persistent.chain"), "{others:?}");
        };
        // One attention layer: one fused sequence up to its projection, one from its output projection on; the head is
        // separate.
        let all = [("linear.stream", 1), ("persistent.chain", 2)];
        for narrow in [QuantizedFormat::Fp8, QuantizedFormat::Int4] {
            check(&narrow.of(micro(7)).unwrap(), &all);
        }
    });
}

/// The first layers of Granite 4.0 H Tiny, the sixth with attention, and few experts and tokens.
fn tiny(layers: usize) -> Config {
    let config = shape("granite-4.0-h-tiny").unwrap().first_layers(layers).unwrap();
    let config = config.with("vocab_size", 512.into()).with("num_local_experts", 8.into());
    QuantizedFormat::Fp8.of(config).unwrap()
}

fn hopper() -> bool {
    let device = backends::open(BackendKind::Cuda).unwrap();
    Cuda::of(&device).unwrap().capabilities().compute.major == 9
}

#[test]
fn experts_end_a_fused_sequence() {
    let name = "cuda::gather::tests::experts_end_a_fused_sequence";
    machine::launched(name, || {
        let ran = launches(&tiny(7), 1);
        let ran: Vec<_> = ran.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        if hopper() {
            // The head is a separate launch.
            assert_eq!(ran, [("linear.stream", 1), ("persistent.chain", 2)]);
        }
    });
}

/// Calls are launched separately if the persistent kernel is not built in and cannot be compiled.
#[test]
fn calls_are_launched_as_usual_without_a_compiler() {
    let name = "cuda::gather::tests::calls_are_launched_as_usual_without_a_compiler";
    machine::launched(name, || {
        if hopper() && device::cuda::Nvrtc::find(u32::MAX).is_err() {
            // No kernel for eight experts is built in.
            let ran = launches(&tiny(7), 1);
            assert_eq!(ran.get("moe.decode"), Some(&7), "{ran:?}");
        }
    });
}
