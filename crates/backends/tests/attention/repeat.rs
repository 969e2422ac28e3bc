//! Results are bitwise equal for repetitions and any number of threads.

use crate::Case;
use crate::case::{cpu, run, variants};
use ops::DType;

#[test]
fn results_do_not_depend_on_threads_or_time() {
    let cases = [
        Case::new(1, 300, 3, 64).causal(),
        Case::new(2, 40, 4, 64).kv_heads(2).keys(333),
        // Long enough for split-KV and the merge.
        Case::new(1, 1, 8, 64).kv_heads(2).keys(5000).causal(),
        Case::new(1, 1, 24, 64).kv_heads(1).keys(5000),
        Case::new(1, 0, 2, 64).packed(&[(1, 3000), (70, 2000), (0, 5), (3, 1)]).causal(),
    ];
    for case in cases {
        for dtype in [DType::F32, DType::Bf16] {
            let inputs = case.inputs(dtype);
            let call = ops::op("attention").unwrap().bind(&inputs, &case.settings).unwrap();
            for variant in variants(&call, &cpu()) {
                let first = run(&call, &cpu().with_threads(1), variant);
                for threads in [1, 2, 3, 16] {
                    let again = run(&call, &cpu().with_threads(threads), variant);
                    assert_eq!(first, again, "{variant} {dtype} on {threads} threads: {case:?}");
                }
            }
        }
    }
}

#[test]
fn long_key_ranges_are_split_and_merged() {
    for case in [
        Case::new(1, 1, 8, 64).kv_heads(2).keys(5000).causal(),
        Case::new(1, 1, 24, 32).kv_heads(1).keys(3001),
        Case::new(1, 40, 2, 32).keys(3001).causal().set("window_left", 2000),
        Case::new(1, 300, 1, 16).keys(4500).causal(),
    ] {
        crate::check(&case);
        let inputs = case.inputs(DType::F32);
        let call = ops::op("attention").unwrap().bind(&inputs, &case.settings).unwrap();
        let device = cpu();
        for variant in variants(&call, &device) {
            run(&call, &device, variant);
            let merge = device.launches().of(&format!("attention.{variant}.merge"));
            assert_eq!(merge.count, 1, "{variant} did not split {case:?}");
        }
    }
}
