//! Executions with the correct result that do not run the named kernel: no launch, no pass.

use crate::cheat::{FaultyBehavior, cheating};
use device::Device;
use facts::{BackendKind, Status};
use ops::{Call, Settings, TensorMap};
use verify::{MatrixResults, SampledCall, cases, judge};

#[test]
fn right_outputs_without_a_launch_do_not_pass() {
    let device = backends::open(BackendKind::Cpu).unwrap();
    let case = cases("attention").into_iter().find(|case| case.name == "edge/d60").unwrap();
    let (inputs, settings): (TensorMap, Settings) = (case.build)();
    let call = ops::op("attention").unwrap().bind(&inputs, &settings).unwrap();
    let chosen = call.select(&device, None).unwrap().chosen;
    assert_ne!(chosen, "flash.portable", "this test needs a processor with vectors");
    let check = |instead, words: &str| {
        let device = cheating(instead);
        let (judgement, verified) = judge(&call, &device, chosen);
        assert_eq!(judgement.status, Status::Fail);
        assert!(verified.is_none());
        assert_eq!(judgement.reason, words);
    };
    let none = format!("no launch of attention.{chosen} was counted");
    check(FaultyBehavior::Stale, &none);
    check(FaultyBehavior::Fallback, &none);
    check(FaultyBehavior::Panics, "the kernel broke: block 3 left its bounds");
    let elements = call.problem().outputs()[0].shape.iter().product::<usize>();
    let unwritten = format!("is NaN (not written, or computed as NaN) at element {}", elements / 2);
    check(FaultyBehavior::HalfWritten, &format!("output `o` {unwritten}"));
    // The same call without a cheat passes.
    let (judgement, verified) = judge(&call, &device, chosen);
    assert_eq!((judgement.status, judgement.reason.as_str()), (Status::Pass, ""));
    assert!(verified.is_some() && judgement.launches == 1);
}

#[test]
fn a_kernel_that_cheats_is_not_admitted_to_be_timed() {
    let device = backends::open(BackendKind::Cpu).unwrap();
    let case = cases("attention").into_iter().find(|case| case.name == "edge/d60").unwrap();
    let (inputs, settings): (TensorMap, Settings) = (case.build)();
    let op = ops::op("attention").unwrap();
    let call = op.bind(&inputs, &settings).unwrap();
    let chosen = call.select(&device, None).unwrap().chosen;
    let standing = MatrixResults::without_matrix();
    for seed in 0..4 {
        let admitted = |call: &Call<'_>, device: &Device| {
            standing
                .admit(call, &mut SampledCall::of(op, (&inputs, &settings), seed), device, chosen)
                .map(drop)
        };
        assert_eq!(admitted(&call, &device), Ok(()));
        // For any random part: one half of it, or the half outside it, was not written.
        let refusal = admitted(&call, &cheating(FaultyBehavior::HalfWritten)).unwrap_err();
        assert!(refusal.contains("is NaN"), "{refusal}");
        let stale = admitted(&call, &cheating(FaultyBehavior::Stale)).unwrap_err();
        assert!(stale.starts_with("no launch of"), "{stale}");
        // A kernel with another scale on the same inputs.
        let wrong = op.bind(&inputs, &settings.clone().with("scale", 0.2)).unwrap();
        assert!(admitted(&wrong, &device).unwrap_err().starts_with("relative error"));
    }
}
