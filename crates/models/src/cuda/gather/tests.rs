//! Which calls of a step become one launch, on the stand-in for the driver.
#![cfg(target_os = "linux")]

use crate::cuda::machine;
use crate::verify::{counts, since};
use crate::{Batch, Capacity, Config, Model, Narrow, Storage, Wanted, open, shape};
use facts::BackendKind;
use std::collections::BTreeMap;

/// A small model in float8, whose widths have whole segments.
fn small(name: &str) -> Config {
    let keys = ["hidden_size", "intermediate_size", "shared_intermediate_size"];
    let wide = shape(name).unwrap().with("mamba_d_head", 64.into());
    Narrow::Fp8.of(keys.iter().fold(wide, |config, key| config.with(key, 256.into()))).unwrap()
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
    let of = ["linear.", "ssd.", "persistent."];
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
        // Three layers of attention: the first projection and the head stand alone.
        let alone = [("linear.direct", 1), ("linear.stream", 1)];
        check(&small("llama-mini"), &[&alone[..], &[("persistent.chain", 3)]].concat());
        // One attention: all before it, with its projection, and all behind.
        let hybrid = small("granite-hybrid-mini").with("mamba_d_state", 128.into());
        check(&hybrid, &[("linear.stream", 1), ("persistent.chain", 2)]);
        // Scans of other states are launches alone, and what stands between two of them is a chain.
        let scans = [&alone[..], &[("persistent.chain", 4), ("ssd.recurrent", 3)]].concat();
        check(&small("granite-hybrid-mini"), &scans);
    });
}
