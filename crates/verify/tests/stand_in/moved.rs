//! A cached plan that is launched on tensors at other addresses passes its kernels the same parameters as a plan made
//! there.

use super::machine;
use device::{Device, DeviceError, Queue};
use facts::BackendKind;
use ops::{
    CallTensors, Family, Inputs, OpError, Options, Settings, Tensor, TensorMap, Typed, Visitor,
    visit_ops,
};
use ops_cuda::{Plans, Workspace};
use std::sync::Arc;
use verify::{Tier, cases};

#[test]
fn kept_plans_move_with_their_tensors() {
    let name = "moved::kept_plans_move_with_their_tensors";
    let launched = machine::launched(name, || {
        let device = backends::open(BackendKind::Cuda).unwrap();
        tensors_know_where_their_tokens_lie(&device);
        visit_ops(&mut RelocatedCases { device: &device });
    });
    assert!(launched.is_none_or(|launched| launched.len() > 20));
}

/// Moves the cases of each op that has GPU variants.
struct RelocatedCases<'a> {
    device: &'a Device,
}

impl Visitor for RelocatedCases<'_> {
    fn visit<F: Family>(&mut self) {
        let moved = all::<F>(self.device);
        assert!(moved >= 6, "only {moved} calls of {} were planned", F::SPEC.name);
    }
}

/// A case of an op over tensors on a GPU, by its index in the op's table.
struct Case<F: Family> {
    inputs: Vec<(usize, Tensor)>,
    output: Tensor,
    options: F::Options,
}

impl<F: Family> Typed for Case<F> {
    type Family = F;

    fn call_tensors(&self) -> CallTensors<'_, F> {
        let mut given = CallTensors::new(self.options.clone());
        for (place, tensor) in &self.inputs {
            given.input(*place, Some(tensor));
        }
        given.output(0, Some(&self.output));
        given
    }
}

impl<F: Family> Case<F> {
    fn new(stream: &impl Queue, inputs: &TensorMap, settings: &Settings) -> Self {
        let options = F::Options::read(settings).unwrap();
        let problem = F::parse(Inputs::of_map(F::SPEC, inputs), &options).unwrap();
        let specs = F::SPEC.inputs.iter().enumerate();
        let inputs = specs.filter_map(|(place, spec)| Some((place, inputs.get(spec.name)?)));
        let on_gpu = |host: &Tensor| {
            let gpu = Tensor::allocate(stream, host.shape(), host.dtype()).unwrap();
            match host.view::<i32>() {
                Some(values) => {
                    let buffer = Arc::clone(gpu.on().unwrap());
                    Tensor::integers(buffer, host.shape(), values.into()).unwrap()
                }
                None => gpu,
            }
        };
        // Only the op's first output is requested; the others use scratch memory.
        let first = &ops::Problem::outputs(&problem)[0];
        assert_eq!(first.name, F::SPEC.outputs[0].name);
        let output = Tensor::allocate(stream, &first.shape, first.dtype).unwrap();
        Self {
            inputs: inputs.map(|(place, host)| (place, on_gpu(host))).collect(),
            output,
            options,
        }
    }
}

/// Plans every case of an op at one address and launches it at another; returns how many could be.
fn all<F: Family>(device: &Device) -> usize {
    let stream = ops_cuda::stream(device).unwrap();
    let mut plans = Plans::new();
    let mut moved = 0;
    for case in cases(F::SPEC.name).into_iter().filter(|case| case.tier == Tier::Quick) {
        let (inputs, settings) = (case.build)();
        let [here, there] = [(); 2].map(|()| Case::<F>::new(stream, &inputs, &settings));
        let kept = match plans.of(&here, device) {
            Err(OpError::NoVariant { .. }) => continue,
            kept => Arc::clone(kept.unwrap()),
        };
        let made = plans.made();
        assert!(Arc::ptr_eq(&kept, plans.of(&there, device).unwrap()), "{case:?} is planned again");
        assert_eq!(plans.made(), made);
        let anew = Arc::clone(Plans::new().of(&there, device).unwrap());
        assert_eq!(kept.workspace_size(), anew.workspace_size(), "{case:?}");

        let scratch = Arc::new(stream.allocate(kept.workspace_size().scratch).unwrap());
        let zeros = Arc::new(stream.allocate(kept.workspace_size().zeros).unwrap());
        let workspace = Workspace { scratch: Some(&scratch), zeros: Some(&zeros) };
        let launches = |plan: &ops_cuda::Plan, call: &Case<F>| {
            let file = std::env::var_os("FAKE_CUDA_ARGUMENTS").unwrap();
            let _ = std::fs::remove_file(&file);
            plan.at(call, workspace).unwrap().enqueue(stream).unwrap();
            std::fs::read_to_string(file).unwrap_or_default()
        };
        let [was, is, wanted] =
            [launches(&kept, &here), launches(&kept, &there), launches(&anew, &there)];
        assert_eq!(is, wanted, "{case:?}");
        // A call without tokens still writes gradients of weights, which are scratch memory here.
        let has_addresses = was != is || here.output.is_empty();
        assert!(was.is_empty() || has_addresses, "{case:?}: addresses are not among the arguments");
        misaligned_is_refused(here, stream, &mut plans, device, &format!("{case:?}"));
        moved += 1;
    }
    moved
}

/// A part of a tensor may start at any element, where a kernel's wide accesses would fault: the next call does not
/// reuse a plan of an aligned one.
fn misaligned_is_refused<F: Family>(
    mut call: Case<F>,
    stream: &impl Queue,
    plans: &mut Plans,
    device: &Device,
    what: &str,
) {
    let (place, first) = &call.inputs[0];
    let (name, place) = (F::SPEC.inputs[*place].name, *place);
    // Rows of an odd number of elements are read one by one.
    let row = first.shape().last().copied().unwrap_or_default();
    if !row.is_multiple_of(2) || first.is_empty() {
        return;
    }
    let size = first.dtype().bytes();
    let memory = stream.allocate(size * (first.len() + 1)).unwrap();
    let part = Arc::new(memory.part(size, size * first.len()).unwrap());
    call.inputs[0] = (place, Tensor::on_gpu(part, first.shape(), first.dtype()).unwrap());
    let said = plans.of(&call, device).map(|_| ()).unwrap_err();
    let layout = |tensor| matches!(&said, OpError::Device { error: DeviceError::Layout { tensor: of, .. }, .. } if *of == tensor);
    assert!(layout(name), "{what}: {said}");
}

fn tensors_know_where_their_tokens_lie(device: &Device) {
    let stream = ops_cuda::stream(device).unwrap();
    let wide = Tensor::allocate(stream, &[6, 48], ops::DType::Bf16).unwrap();
    let part = wide.columns(16, 24, &[2, 3, 4, 6]).unwrap();
    assert_eq!(part.strides(), [144, 48, 6, 1]);
    assert_eq!(part.extent(), 2 * (5 * 48 + 24));
    assert!(!part.is_row_major());
    assert!(part.shaped(&[6, 24]).is_err(), "a copy would be needed");
    let one = wide.columns(16, 24, &[6, 1, 24]).unwrap();
    assert_eq!(one.strides()[0], 48);
    assert!(wide.columns(32, 24, &[6, 24]).is_err(), "leaves the rows of the last token");
    assert!(wide.rows(5, 2).is_err());
    let row = wide.rows(4, 1).unwrap();
    assert_eq!(row.buffer().unwrap().address() - wide.buffer().unwrap().address(), 4 * 96);
    assert!(row.columns(16, 24, &[1, 4, 6]).unwrap().is_row_major(), "one token is separate");
}
