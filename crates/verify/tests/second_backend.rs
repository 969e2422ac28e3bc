//! A stand-in for a second GPU backend: the processor's plain variants as a [`Backend`]. All that it takes is this module and one
//! line in a list of backends.
#![allow(clippy::unwrap_used)] // Helpers of tests may panic like tests.

use device::{Capabilities, Device, DeviceOwnership, Isa, Unavailable};
use facts::{BackendKind, Status};
use ops::{
    Backend, Backends, Execution, Implementations, Inputs, OpError, Preference, Problem, TensorMap,
};
use ops_cpu::Cpu;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use verify::{CASES, OpCases, Tier, run_case};

/// The stand-in is registered by its line here.
static BACKENDS: Backends = Backends::new(&[&StandIn, &Cpu]);

/// A device that does what the processor does with plain Rust.
struct StandIn;

/// The variants of an op in the stand-in: those of the processor for no instruction set in particular.
struct Plain {
    op: String,
    of: &'static dyn Implementations,
    /// Their numbers among the processor's.
    variants: Vec<usize>,
}

impl Backend for StandIn {
    fn kind(&self) -> BackendKind {
        BackendKind::Metal
    }

    fn open(&self, ordinal: u32, _tenure: DeviceOwnership) -> Result<Device, Unavailable> {
        if ordinal > 0 {
            let reason = format!("there is no stand-in {ordinal}");
            return Err(Unavailable { backend: self.kind(), reason });
        }
        let threads = Device::processor().capabilities().threads;
        let name = Some("stand-in".to_owned());
        let (backend, isas) = (self.kind(), vec![Isa::Portable]);
        Ok(Device::new(Capabilities { backend, name, isas, threads }, Arc::default()))
    }

    fn op(&self, op: &str) -> Option<&'static dyn Implementations> {
        static TABLES: Mutex<Vec<&'static Plain>> = Mutex::new(Vec::new());
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.iter().find(|table| table.op == op) {
            return Some(*table);
        }
        let of = Cpu.op(op)?;
        let variants = (0..of.count()).filter(|at| of.name(*at).ends_with(".portable")).collect();
        let table: &'static Plain = Box::leak(Box::new(Plain { op: op.to_owned(), of, variants }));
        tables.push(table);
        Some(table)
    }
}

impl Implementations for Plain {
    fn count(&self) -> usize {
        self.variants.len()
    }

    fn name(&self, variant: usize) -> &'static str {
        let name = self.of.name(self.variants[variant]);
        Box::leak(name.replace(".portable", ".stand-in").into_boxed_str())
    }

    fn why_not(&self, variant: usize, problem: &dyn Problem, device: &Device) -> Option<String> {
        self.of.why_not(self.variants[variant], problem, device)
    }

    /// The last variant is wanted first, which tells a choice by preference from one by order.
    fn preferred(&self, _problem: &dyn Problem, _device: &Device) -> Vec<Preference> {
        let last = self.variants.len() - 1;
        vec![Preference { variant: self.name(last), rule: "any call".to_owned() }]
    }

    fn prepare<'b>(
        &self,
        variant: usize,
        problem: &'b dyn Problem,
        inputs: Inputs<'b>,
        device: &'b Device,
    ) -> Result<Box<dyn Execution + 'b>, OpError> {
        self.of.prepare(self.variants[variant], problem, inputs, device)
    }

    fn run(
        &self,
        variant: usize,
        problem: &dyn Problem,
        inputs: Inputs<'_>,
        device: &Device,
        outputs: &mut TensorMap,
    ) -> Result<(), OpError> {
        self.of.run(self.variants[variant], problem, inputs, device, outputs)
    }
}

fn stand_in() -> Device {
    BACKENDS.open(BackendKind::Metal, 0, DeviceOwnership::Owned).unwrap()
}

/// The first quick case of each op, on every variant of the stand-in.
#[test]
fn matrix_runs_every_op_on_a_second_backend() {
    let device = stand_in();
    for OpCases { op, cases, .. } in CASES {
        let variants = BACKENDS.variants(op);
        let own: BTreeSet<&str> = variants
            .iter()
            .filter(|(_, backend)| *backend == BackendKind::Metal)
            .map(|(name, _)| *name)
            .collect();
        assert!(!own.is_empty(), "{op}");
        let case = cases().into_iter().find(|case| case.tier == Tier::Quick).unwrap();
        let mut rows = Vec::new();
        run_case(&case, &device, true, None, &mut |row| rows.push(row));
        assert!(!rows.is_empty(), "{op}");
        for row in rows {
            assert_eq!(row.backend, BackendKind::Metal, "{op} {}", row.variant);
            assert!(own.contains(row.variant.as_str()), "{op} {}", row.variant);
            assert_eq!(row.status, Status::Pass, "{op} {}: {}", row.variant, row.reason);
        }
    }
}

#[test]
fn selection_names_the_variants_of_both_backends() {
    let (inputs, settings) = (verify::cases("kda")[0].build)();
    let call = ops::op("kda").unwrap().bind(&inputs, &settings).unwrap();
    let selection = call.select(&stand_in(), None).unwrap();
    assert_eq!(selection.chosen, "recurrent.stand-in");
    let reason = |variant: &str| {
        let refused = selection.refused.iter().find(|refusal| refusal.variant == variant);
        refused.unwrap().reason.as_str()
    };
    assert_eq!(reason("chunk.stand-in"), "recurrent.stand-in is for any call");
    assert_eq!(reason("chunk.portable"), "runs on cpu, this device is metal");
    // The same call on the other backend of the list.
    let processor = BACKENDS.open(BackendKind::Cpu, 0, DeviceOwnership::Owned).unwrap();
    let error = call.select(&processor, Some("chunk.stand-in")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kda: variant `chunk.stand-in` cannot run this: runs on metal, this device is cpu"
    );
    let chosen = call.select(&processor, None).unwrap().chosen;
    assert!(chosen.starts_with("chunk."), "{chosen}");
}

#[test]
fn results_equal_those_of_the_cpu_variant() {
    for op in ops::OPS {
        let name = op.spec().name;
        let case = verify::cases(name).into_iter().find(|case| case.tier == Tier::Quick).unwrap();
        let (inputs, settings) = (case.build)();
        let call = op.bind(&inputs, &settings).unwrap();
        let (device, mut outputs) = (stand_in(), TensorMap::new());
        call.run(&device, &mut outputs).unwrap();
        let chosen = call.select(&device, None).unwrap().chosen;
        let processor = BACKENDS.open(BackendKind::Cpu, 0, DeviceOwnership::Owned).unwrap();
        let portable = chosen.replace(".stand-in", ".portable");
        let mut execution = call.prepare(&processor, &portable).unwrap();
        execution.launch().unwrap();
        let wanted = execution.outputs().unwrap();
        // Bits are compared: the same code ran on both.
        let bits = |outputs: &TensorMap| -> Vec<Vec<u8>> {
            outputs.values().map(|tensor| tensor.bytes().to_vec()).collect()
        };
        assert!(outputs.keys().eq(wanted.keys()) && bits(&outputs) == bits(wanted), "{name}");
    }
}
