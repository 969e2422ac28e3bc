//! Sampling on a GPU: for one sequence, and for the batch sizes of a server.

use super::{greedy, nucleus};
use crate::Size;
use crate::workloads::Workload;
use ops::DType;

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::F32, recurrent: false, build };
    let mut list =
        vec![case("decode-b1-top-p", |_| nucleus(1)), case("decode-b32-top-p", |_| nucleus(32))];
    if size == Size::Standard {
        list.push(case("decode-b1-greedy", |_| greedy(1)));
        list.push(case("decode-b32-greedy", |_| greedy(32)));
        list.push(case("decode-b128-top-p", |_| nucleus(128)));
    }
    list
}
