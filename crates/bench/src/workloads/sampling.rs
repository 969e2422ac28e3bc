mod cuda;

use super::{OpWorkloads, UniformValues, Workload, tensors};
use crate::Size;
use ops::{DType, Settings, Tensor, TensorMap};

/// The vocabulary of Granite 4.0.
const VOCABULARY: usize = 100_352;

pub(super) const OP: OpWorkloads = OpWorkloads {
    op: "sampling",
    cpu: workloads,
    cuda: cuda::workloads,
    sweep: |sweep| sweep.over_tokens(|sweep, _, tokens| nucleus(sweep.batch * tokens)),
};

fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::F32, recurrent: false, build };
    let mut list = vec![case("decode-b1-top-p", |_| nucleus(1))];
    if size == Size::Standard {
        list.push(case("decode-b1-greedy", |_| greedy(1)));
        list.push(case("decode-b32-top-p", |_| nucleus(32)));
    }
    list
}

/// Temperature 0.8 and top-p 0.9 over logits of which very many are alike: the worst case.
pub(crate) fn nucleus(rows: usize) -> (TensorMap, Settings) {
    call(rows, [0.8, 0.9])
}

fn greedy(rows: usize) -> (TensorMap, Settings) {
    call(rows, [0.0, 1.0])
}

fn call(rows: usize, [temperature, top_p]: [f32; 2]) -> (TensorMap, Settings) {
    let mut inputs =
        tensors(&[("logits", &[rows, VOCABULARY], UniformValues(DType::F32, -4.0, 4.0))]);
    let mut put = |name: &str, tensor| drop(inputs.insert(name.to_owned(), tensor));
    let controls = [temperature, top_p, 0.0, 1.0, 0.0, 0.0].repeat(rows);
    put("controls", Tensor::new(&[rows, 6], controls));
    put("top_k", Tensor::new(&[rows], vec![0i32; rows]));
    put("seed", Tensor::new(&[rows, 2], (0..2 * rows as i32).collect()));
    put("draw", Tensor::new(&[rows], (0..rows as i32).collect()));
    (inputs, Settings::new())
}
