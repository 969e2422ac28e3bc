//! Calls by their records: one like a call before is launched without a look at its tensors.

use crate::abi::{RANK, RawTensor};
use ops_cuda::{Plan, Words};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

/// Calls that are kept. Beyond so many, all are forgotten.
const MOST: usize = 4096;

/// Plans by all that records say but addresses, of which the alignment counts and which of them are the same.
#[derive(Default)]
pub(crate) struct PlanCache {
    plans: HashMap<Box<[u64]>, Arc<Plan>, BuildHasherDefault<Words>>,
    words: Vec<u64>,
    /// Whether the last call's tensors are all that it depends on.
    plain: bool,
    /// Addresses of its inputs and outputs.
    addresses: [Vec<u64>; 2],
}

impl PlanCache {
    /// The plan of a call, and the addresses of its inputs and outputs.
    pub(crate) fn find(
        &mut self,
        handle: i64,
        raw: [&[RawTensor]; 2],
    ) -> Option<(&Arc<Plan>, [&[u64]; 2])> {
        self.words.clear();
        self.words.push(handle as u64);
        self.plain = true;
        for (records, addresses) in raw.iter().zip(&mut self.addresses) {
            addresses.clear();
            for record in *records {
                let there = record.dtype != 0;
                addresses.push(if there { record.data } else { 0 });
                self.plain &= !there || (record.data != 0 && record.host == 0);
                write(&mut self.words, record);
            }
        }
        let [inputs, outputs] = &self.addresses;
        // Which output lies on which input: a variant may plan otherwise there.
        let over = |output: &u64| match output {
            0 => 0,
            _ => {
                inputs.iter().position(|input| input == output).map_or(0, |place| place as u64 + 1)
            }
        };
        self.words.extend(outputs.iter().map(over));
        if !self.plain {
            return None;
        }
        let plan = self.plans.get(self.words.as_slice())?;
        Some((plan, [inputs, outputs]))
    }

    /// Keeps the plan of the call that was looked for last. One that was planned with integers of the host is not: next time these
    /// may be others.
    pub(crate) fn keep(&mut self, plan: Arc<Plan>) {
        if !self.plain {
            return;
        }
        if self.plans.len() >= MOST {
            self.plans.clear();
        }
        self.plans.insert(self.words.as_slice().into(), plan);
    }
}

fn write(words: &mut Vec<u64>, record: &RawTensor) {
    // Kernels want no more than 128 bytes.
    let aligned = u64::from(record.data.trailing_zeros().min(7));
    // A record of too many dimensions is refused before its plan is made.
    let rank = usize::try_from(record.rank).unwrap_or(0).min(RANK);
    if record.dtype == 0 {
        return words.push(0);
    }
    words.push(record.dtype as u64 | aligned << 8 | (record.rank as u64) << 16);
    let (sizes, strides) = (&record.sizes[..rank], &record.strides[..rank]);
    words.extend(
        sizes.iter().chain(strides).chain([&record.bound, &record.total]).map(|of| *of as u64),
    );
}
