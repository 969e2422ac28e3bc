//! A backend whose executions do not run the kernel that they name.

use device::{Device, DeviceOwnership, Unavailable};
use facts::BackendKind;
use ops::{Backend, Backends, Execution, Implementations, Inputs, OpError, Problem, TensorMap};
use ops_cpu::Cpu;

/// The behavior of an execution that does not run the kernel.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum FaultyBehavior {
    /// Returns outputs that were computed before.
    Stale,
    /// Runs the portable variant under the name of another one.
    Fallback,
    /// Runs the kernel, whose last blocks write nothing.
    HalfWritten,
    /// Runs the kernel and breaks.
    Panics,
}

/// The CPU backend, whose attention does not run the kernel that it names.
struct FaultyBackend(&'static Attention);

struct Attention {
    of: &'static dyn Implementations,
    instead: FaultyBehavior,
}

/// Opens a CPU device whose attention has the faulty behavior.
pub(crate) fn cheating(instead: FaultyBehavior) -> Device {
    let of = Cpu.op("attention").unwrap();
    let cheat = FaultyBackend(Box::leak(Box::new(Attention { of, instead })));
    let cheat: &'static FaultyBackend = Box::leak(Box::new(cheat));
    let list: &'static [&'static dyn Backend] = Box::leak(Box::new([cheat as &dyn Backend]));
    Backends::new(list).open(BackendKind::Cpu, 0, DeviceOwnership::Owned).unwrap()
}

impl Backend for FaultyBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Cpu
    }

    fn open(&self, ordinal: u32, ownership: DeviceOwnership) -> Result<Device, Unavailable> {
        Cpu.open(ordinal, ownership)
    }

    fn op(&self, op: &str) -> Option<&'static dyn Implementations> {
        assert_eq!(op, "attention");
        Some(self.0)
    }
}

impl Implementations for Attention {
    fn count(&self) -> usize {
        self.of.count()
    }

    fn name(&self, variant: usize) -> &'static str {
        self.of.name(variant)
    }

    fn why_not(&self, variant: usize, problem: &dyn Problem, device: &Device) -> Option<String> {
        self.of.why_not(variant, problem, device)
    }

    fn prepare<'b>(
        &self,
        variant: usize,
        problem: &'b dyn Problem,
        inputs: Inputs<'b>,
        device: &'b Device,
    ) -> Result<Box<dyn Execution + 'b>, OpError> {
        let mut right = self.of.prepare(variant, problem, inputs, device)?;
        right.launch()?;
        let name = right.kernel().to_owned();
        let is_portable = |variant: &usize| self.name(*variant) == "flash.portable";
        let portable = (0..self.count()).find(is_portable).unwrap();
        let mut other = match self.instead {
            FaultyBehavior::Fallback => self.of.prepare(portable, problem, inputs, device)?,
            _ => right,
        };
        let half = other.outputs()?.clone();
        Ok(Box::new(FaultyExecution { other, half, name, instead: self.instead }))
    }
}

struct FaultyExecution<'b> {
    other: Box<dyn Execution + 'b>,
    half: TensorMap,
    name: String,
    instead: FaultyBehavior,
}

impl Execution for FaultyExecution<'_> {
    fn kernel(&self) -> &str {
        &self.name
    }

    fn poison(&mut self) -> Result<(), OpError> {
        if self.instead != FaultyBehavior::Stale {
            self.other.poison()?;
            self.half.values_mut().for_each(ops::Tensor::poison);
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<(), OpError> {
        match self.instead {
            FaultyBehavior::Stale => {}
            FaultyBehavior::Fallback => self.other.launch()?,
            FaultyBehavior::HalfWritten => {
                self.other.launch()?;
                for (name, written) in self.other.outputs()? {
                    let (from, to) = (written.view::<f32>(), self.half.get_mut(name).unwrap());
                    let (from, to) = (from.unwrap(), to.view_mut::<f32>().unwrap());
                    let half = from.len() / 2;
                    to[..half].copy_from_slice(&from[..half]);
                }
            }
            FaultyBehavior::Panics => panic!("block 3 left its bounds"),
        }
        Ok(())
    }

    fn outputs(&mut self) -> Result<&TensorMap, OpError> {
        match self.instead {
            FaultyBehavior::HalfWritten => Ok(&self.half),
            _ => self.other.outputs(),
        }
    }
}
