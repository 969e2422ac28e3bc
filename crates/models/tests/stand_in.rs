//! The engine on GPUs plans, records and launches every kind of layer on a stand-in for the driver, which computes nothing
//! and refuses what a GPU would refuse: shapes, parameters and launches, not values.
#![cfg(target_os = "linux")] // The stand-in is found by the loader's path and built by the C compiler.
#![allow(clippy::unwrap_used)] // Helpers of tests may panic like tests.

#[path = "../../verify/tests/stand_in/machine.rs"]
mod machine;

use facts::BackendKind;
use models::{Batch, Capacity, Engine, Model, Storage, Wanted, open, shape};

#[test]
fn layers_are_planned_and_launched() {
    let Some(launched) = machine::launched("layers_are_planned_and_launched", run_all) else {
        return;
    };
    let sources = kernels::decoder::bundled();
    for source in &sources {
        assert!(launched.contains(source.name()), "no model launches {}", source.name());
    }
    for op in ["linear", "ssd", "conv1d", "kda", "attention", "moe", "rmsnorm"] {
        assert!(launched.iter().any(|name| name.starts_with(op)), "no model launches {op}");
    }
}

fn run_all() {
    for name in ["granite-hybrid-mini", "granite-moe-mini", "granite-rope-mini", "kimi-linear-mini"]
    {
        let model = Model::random(&shape(name).unwrap(), 1).unwrap();
        let device = device::open(BackendKind::Cuda).unwrap();
        let capacity = Capacity { sequences: 3, tokens: 300 };
        let mut engine = open(model, device, Storage::Bf16, capacity).unwrap();
        run(&mut *engine).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Whole prompts, pieces of them, unequal ones at once, single tokens, and tokens that the device chooses.
fn run(engine: &mut dyn Engine) -> Result<(), models::ModelError> {
    let vocabulary = engine.architecture().vocabulary;
    let ids: Vec<u32> = (0..200).map(|i| i * 7 % 512).collect();
    let step = |engine: &mut dyn Engine, batch: &Batch, wanted, rows: usize| {
        let logits = engine.step(batch, wanted)?;
        assert_eq!(logits.len(), rows * vocabulary);
        Ok::<(), models::ModelError>(())
    };
    step(engine, &Batch::new().with(0, &ids[..1]), Wanted::Last, 1)?;
    step(engine, &Batch::new().with(1, &ids), Wanted::Last, 1)?;
    step(engine, &Batch::new().with(1, &ids[..5]), Wanted::Every, 5)?;
    let unequal = Batch::new().with(2, &ids[..37]).with(0, &ids[..3]).with(1, &ids[..1]);
    step(engine, &unequal, Wanted::Last, 3)?;
    let single = Batch::new().with(2, &ids[..1]).with(1, &ids[1..2]);
    step(engine, &single, Wanted::Last, 2)?;
    let chosen = engine.decode_greedy(&single, 11)?;
    assert_eq!(chosen.iter().map(Vec::len).collect::<Vec<_>>(), [11, 11]);
    assert_eq!([engine.len(0), engine.len(1), engine.len(2)], [4, 218, 49]);
    engine.reset(1);
    step(engine, &Batch::new().with(1, &ids[..64]), Wanted::Last, 1)
}
