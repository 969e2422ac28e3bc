//! Which calls of a step become one launch, on the stand-in for the driver.
#![cfg(target_os = "linux")]

use crate::cuda::machine;
use crate::verify::{counts, since};
use crate::{Batch, Capacity, Config, Model, Narrow, Storage, Wanted, open, shape};
use facts::BackendKind;
use std::collections::BTreeMap;

/// Granite 4.0 H Micro's first layers, of which the sixth is an attention, and few words.
fn micro(layers: usize) -> Config {
    let config = shape("granite-4.0-h-micro").unwrap().first_layers(layers).unwrap();
    config.with("vocab_size", 512.into())
}

/// Launches of a token of each of so many sequences, of ops and chains, by their variants.
fn launches(config: &Config, sequences: usize) -> BTreeMap<String, u64> {
    let device = device::open(BackendKind::Cuda).unwrap();
    let capacity = Capacity { sequences, tokens: 64 };
    let mut engine =
        open(Model::random(config, 1).unwrap(), device, Storage::Bf16, capacity).unwrap();
    let batch = (0..sequences).fold(Batch::new(), |batch, at| batch.with(at, &[1]));
    let before = counts(&*engine);
    engine.step(&batch, Wanted::Last).unwrap();
    let of = ["linear.", "ssd.", "rmsnorm.", "moe.", "persistent."];
    let ran = since(&before, counts(&*engine)).into_iter();
    ran.filter(|(name, _)| of.iter().any(|of| name.starts_with(of))).collect()
}

#[test]
fn what_stands_between_two_attentions_is_one_launch() {
    let name = "cuda::gather::tests::what_stands_between_two_attentions_is_one_launch";
    machine::launched(name, || {
        let device = device::open(BackendKind::Cuda).unwrap();
        let hopper = device.capabilities().cuda.as_ref().unwrap().compute.major == 9;
        let check = |config: &Config, expect: &[(&str, u64)]| {
            let ran = launches(config, 1);
            let ran: Vec<_> = ran.iter().map(|(name, count)| (name.as_str(), *count)).collect();
            if hopper {
                assert_eq!(ran, expect);
            }
            // Several sequences, and other GPUs, have launches alone.
            let others = if hopper { launches(config, 2) } else { launches(config, 1) };
            assert!(!others.contains_key("persistent.chain"), "{others:?}");
        };
        // One attention: all before it, with its projection, and all behind it, from its own way out on; the head stands alone.
        let all = [("linear.stream", 1), ("persistent.chain", 2)];
        for narrow in [Narrow::Fp8, Narrow::Int4] {
            check(&narrow.of(micro(7)).unwrap(), &all);
        }
    });
}

/// Granite 4.0 H Tiny's first layers, of which the sixth is an attention, with few experts and words.
fn tiny(layers: usize) -> Config {
    let config = shape("granite-4.0-h-tiny").unwrap().first_layers(layers).unwrap();
    let config = config.with("vocab_size", 512.into()).with("num_local_experts", 8.into());
    Narrow::Fp8.of(config).unwrap()
}

fn hopper() -> bool {
    let device = device::open(BackendKind::Cuda).unwrap();
    device.capabilities().cuda.as_ref().unwrap().compute.major == 9
}

#[test]
fn experts_stand_between_phases() {
    let name = "cuda::gather::tests::experts_stand_between_phases";
    machine::launched(name, || {
        let ran = launches(&tiny(7), 1);
        let ran: Vec<_> = ran.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        if hopper() {
            // The head stands alone.
            assert_eq!(ran, [("linear.stream", 1), ("persistent.chain", 2)]);
        }
    });
}

/// Phases are no phases where their kernel is not built in, and calls are launched as usual.
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
