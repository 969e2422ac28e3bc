//! Device memory that a server uses over time.

use super::*;
use device::cuda::{Cuda, MemoryUse};

/// Passes of all sizes share the reserved memory, and so do captured steps.
#[test]
fn memory_does_not_grow_with_the_sizes_of_steps() {
    machine::launched("memory::memory_does_not_grow_with_the_sizes_of_steps", || {
        // Wide enough that the tensors of passes are large blocks.
        let wide = ["hidden_size", "intermediate_size", "shared_intermediate_size"];
        let config = shape("granite-hybrid-mini").unwrap().with("mamba_d_head", 64.into());
        let config = wide.iter().fold(config, |config, key| config.with(key, 256.into()));
        let device = backends::open(BackendKind::Cuda).unwrap();
        let capacity = Capacity { sequences: 64, tokens: 128 };
        let model = Model::random(&config, 1).unwrap();
        let mut engine = open(model, device, Storage::Bf16, capacity).unwrap();
        let of_engine = |engine: &dyn Engine| Cuda::of(engine.device()).unwrap().memory_use();
        let total = |MemoryUse { live, kept, .. }| live + kept;
        let opened = total(of_engine(&*engine));
        let kind = engine_kind(engine.device()).unwrap();
        let holding = holding(engine.device(), Storage::Bf16);
        let step = LargestStep { tokens: 64 * 128, logits: 64 };
        let counted = kind.footprint(engine.architecture(), holding, capacity, step).peak();
        assert!(opened <= counted + (8 << 20), "{opened} bytes taken of {counted}");
        for sizes in 1..48 {
            let mut batch = Batch::new();
            for slot in 0..1 + sizes * 5 % 48 {
                let ids: Vec<u32> =
                    (0..1 + (slot * 7 + sizes * 13) % 100).map(|id| id as u32).collect();
                batch = batch.with(slot, &ids);
            }
            engine.step(&batch, LogitsSelection::Last).unwrap();
            (0..64).for_each(|slot| engine.reset(slot));
        }
        // Only a few kilobytes outlive a pass.
        let grown = total(of_engine(&*engine)) - opened;
        assert!(grown < 1 << 20, "passes took {grown} bytes more");
        for sequences in [1, 2, 4, 8, 16, 32, 64] {
            for tokens in [1000, 2000, 4000, 8000] {
                while engine.prepare(sequences, tokens).unwrap() {}
            }
        }
        // 28 steps keep their integer inputs and the shared logits; the tensors of their layers are transient.
        let grown = total(of_engine(&*engine)) - opened;
        assert!(grown < 4 << 20, "recorded steps took {grown} bytes more");
    });
}
