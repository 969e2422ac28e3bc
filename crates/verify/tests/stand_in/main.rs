//! Every CUDA variant plans and launches every case on a stand-in for the driver, which computes nothing and refuses
//! what a GPU would refuse. A launcher whose parameters do not match its kernel fails here, on a machine without a GPU.
#![cfg(target_os = "linux")] // The stand-in is found by the loader's path and built by the C compiler.
#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod chain;
mod machine;
mod moved;

use facts::BackendKind;
use std::collections::BTreeSet;
use verify::{Tier, cases};

#[test]
fn kernels_get_their_arguments() {
    let Some(launched) = machine::launched("kernels_get_their_arguments", launch_everything) else {
        return;
    };
    let sources = ops_cuda::bundled();
    let missed: BTreeSet<&str> = sources
        .iter()
        .map(|source| source.name())
        // Kernels of decoders and fused sequences are launched by models, whose tests use the same stand-in.
        .filter(|name| !launched.contains(*name))
        .filter(|name| !name.starts_with("decoder_") && *name != "persistent_chain")
        .collect();
    assert!(missed.is_empty(), "no case launches {missed:?}");
}

fn launch_everything() {
    let device = backends::open(BackendKind::Cuda).unwrap();
    let mut launched = 0;
    for op in ops::OPS {
        let variants = backends::variants(op.spec().name)
            .into_iter()
            .filter(|(_, backend)| *backend == BackendKind::Cuda);
        let variants: Vec<&str> = variants.map(|(name, _)| name).collect();
        for case in cases(op.spec().name).into_iter().filter(|case| case.tier <= Tier::Standard) {
            let (inputs, settings) = (case.build)();
            let call = op.bind(&inputs, &settings).unwrap();
            for variant in &variants {
                if call.select(&device, Some(variant)).is_err() {
                    continue;
                }
                let ran = call.prepare(&device, variant).and_then(|mut ready| ready.launch());
                assert!(ran.is_ok(), "{variant} of {case:?}: {}", ran.unwrap_err());
                launched += 1;
            }
        }
    }
    assert!(launched > 500, "only {launched} calls were launched");
    // Memory is tested in pieces of a GiB, of which the stand-in has a few.
    let tested = ops_cuda::test_memory(&device, std::time::Duration::from_secs(60));
    assert_eq!((tested.errors, tested.broke.as_deref(), tested.patterns.len()), (0, None, 6));
    assert_eq!(tested.launches, 6 * 2 * tested.bytes.div_ceil(1 << 30));
}
