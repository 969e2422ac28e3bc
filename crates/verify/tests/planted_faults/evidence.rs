//! Kernels that give the right answer without being the kernel that was named: no launch, no pass.

use device::Device;
use facts::{BackendKind, Status};
use kernels::{Call, Execution, OpError, OpSpec, Problem, Selection, Settings, TensorMap};
use verify::{Drawn, Standing, cases, judge};

/// What the execution does instead of running the kernel.
#[derive(Clone, Copy, PartialEq)]
enum Instead {
    /// Hands out outputs that were computed before.
    Stale,
    /// Runs another variant than the one whose name it bears.
    Fallback,
    /// Runs the kernel, whose last blocks write nothing.
    HalfWritten,
    /// Runs the kernel and breaks.
    Panics,
}

/// A call whose executions cheat.
struct Cheat<'a> {
    call: &'a dyn Call,
    instead: Instead,
}

impl Call for Cheat<'_> {
    fn spec(&self) -> &'static OpSpec {
        self.call.spec()
    }

    fn problem(&self) -> &dyn Problem {
        self.call.problem()
    }

    fn reference(&self) -> TensorMap {
        self.call.reference()
    }

    fn reference_for(&self, outputs: &TensorMap) -> Result<TensorMap, String> {
        self.call.reference_for(outputs)
    }

    fn select(&self, device: &Device, wanted: Option<&str>) -> Result<Selection, OpError> {
        self.call.select(device, wanted)
    }

    fn prepare<'b>(
        &'b self,
        device: &'b Device,
        variant: &str,
    ) -> Result<Box<dyn Execution + 'b>, OpError> {
        let mut right = self.call.prepare(device, variant)?;
        right.launch()?;
        let name = right.kernel().to_owned();
        let mut other = match self.instead {
            Instead::Fallback => self.call.prepare(device, "flash.portable")?,
            _ => right,
        };
        let half = other.outputs()?.clone();
        Ok(Box::new(Pretender { other, half, name, instead: self.instead }))
    }
}

struct Pretender<'b> {
    other: Box<dyn Execution + 'b>,
    half: TensorMap,
    name: String,
    instead: Instead,
}

impl Execution for Pretender<'_> {
    fn kernel(&self) -> &str {
        &self.name
    }

    fn poison(&mut self) -> Result<(), OpError> {
        if self.instead != Instead::Stale {
            self.other.poison()?;
            self.half.values_mut().for_each(kernels::Tensor::poison);
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<(), OpError> {
        match self.instead {
            Instead::Stale => {}
            Instead::Fallback => self.other.launch()?,
            Instead::HalfWritten => {
                self.other.launch()?;
                for (name, written) in self.other.outputs()? {
                    let (from, to) = (written.view::<f32>(), self.half.get_mut(name).unwrap());
                    let (from, to) = (from.unwrap(), to.view_mut::<f32>().unwrap());
                    let half = from.len() / 2;
                    to[..half].copy_from_slice(&from[..half]);
                }
            }
            Instead::Panics => panic!("block 3 left its bounds"),
        }
        Ok(())
    }

    fn outputs(&mut self) -> Result<&TensorMap, OpError> {
        match self.instead {
            Instead::HalfWritten => Ok(&self.half),
            _ => self.other.outputs(),
        }
    }
}

#[test]
fn right_outputs_without_a_launch_do_not_pass() {
    let device = device::open(BackendKind::Cpu).unwrap();
    let case = cases("attention").into_iter().find(|case| case.name == "edge/d60").unwrap();
    let (inputs, settings): (TensorMap, Settings) = (case.build)();
    let call = kernels::op("attention").unwrap().bind(&inputs, &settings).unwrap();
    let chosen = call.select(&device, None).unwrap().chosen;
    assert_ne!(chosen, "flash.portable", "this test needs a processor with vectors");
    let check = |instead, words: &str| {
        let cheat = Cheat { call: call.as_ref(), instead };
        let (judgement, verified) = judge(&cheat, &device, chosen);
        assert_eq!(judgement.status, Status::Fail);
        assert!(verified.is_none());
        assert_eq!(judgement.reason, words);
    };
    let none = format!("no launch of attention.{chosen} was counted");
    check(Instead::Stale, &none);
    check(Instead::Fallback, &none);
    check(Instead::Panics, "the kernel broke: block 3 left its bounds");
    let elements = call.problem().outputs()[0].shape.iter().product::<usize>();
    let unwritten = format!("is NaN (not written, or computed as NaN) at element {}", elements / 2);
    check(Instead::HalfWritten, &format!("output `o` {unwritten}"));
    // The same call without a cheat passes.
    let (judgement, verified) = judge(call.as_ref(), &device, chosen);
    assert_eq!((judgement.status, judgement.reason.as_str()), (Status::Pass, ""));
    assert!(verified.is_some() && judgement.launches == 1);
}

#[test]
fn a_kernel_that_cheats_is_not_admitted_to_be_timed() {
    let device = device::open(BackendKind::Cpu).unwrap();
    let case = cases("attention").into_iter().find(|case| case.name == "edge/d60").unwrap();
    let (inputs, settings): (TensorMap, Settings) = (case.build)();
    let op = kernels::op("attention").unwrap();
    let call = op.bind(&inputs, &settings).unwrap();
    let chosen = call.select(&device, None).unwrap().chosen;
    let standing = Standing::without_matrix();
    for seed in 0..4 {
        let admitted = |call: &dyn Call| {
            standing
                .admit(call, &mut Drawn::of(op, (&inputs, &settings), seed), &device, chosen)
                .map(drop)
        };
        assert_eq!(admitted(call.as_ref()), Ok(()));
        // Whatever part is drawn: one half of it, or the half outside it, was not written.
        let half = Cheat { call: call.as_ref(), instead: Instead::HalfWritten };
        let refusal = admitted(&half).unwrap_err();
        assert!(refusal.contains("is NaN"), "{refusal}");
        let stale = Cheat { call: call.as_ref(), instead: Instead::Stale };
        assert!(admitted(&stale).unwrap_err().starts_with("no launch of"));
        // A kernel with another scale, over the same inputs.
        let wrong = op.bind(&inputs, &settings.clone().with("scale", 0.2)).unwrap();
        assert!(admitted(wrong.as_ref()).unwrap_err().starts_with("relative error"));
    }
}
