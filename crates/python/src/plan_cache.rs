//! Plans by the records of a call, so that a repeated call is launched without reading its tensors again.

use crate::abi::{RANK, RawTensor};
use ops_cuda::{Plan, WordHasher};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

/// Most plans. If it is exceeded, all are dropped.
const MOST: usize = 4096;

/// Plans by the words of a call's records. Addresses count only by their alignment and by which outputs are also inputs.
#[derive(Default)]
pub(crate) struct PlanCache {
    plans: HashMap<Box<[u64]>, Arc<Plan>, BuildHasherDefault<WordHasher>>,
    words: Vec<u64>,
    /// Whether the last call depends only on its records, not on integers in host memory.
    plain: bool,
    /// Addresses of its inputs and outputs.
    addresses: [Vec<u64>; 2],
}

impl PlanCache {
    /// The plan of an earlier equal call, and this call's addresses of inputs and outputs.
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
        // The input that each output overwrites, because a variant may plan such calls differently.
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

    /// Adds the plan of the call of the last [`Known::find`], unless it was planned with integers in host memory, which may
    /// differ in the next call.
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
    // No kernel requires more than 128 bytes of alignment.
    let aligned = u64::from(record.data.trailing_zeros().min(7));
    // A record of too many dimensions is rejected before planning.
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
