//! What models want that has no kernels for GPUs, as the ops' own lists of variants have it.

use crate::layers::Score;
use crate::{Architecture, Mixer};
use kernels::selective_scan::SelectiveScanOp;
use kernels::{Family, Op};

/// What a model wants for which there are no kernels, in words; none where there are all.
pub(super) fn lacks(of: &Architecture) -> Option<String> {
    let scans = of.layers.iter().find(|layer| matches!(layer.mixer, Mixer::Mamba1(_)));
    if let Some(layer) = scans.filter(|_| SelectiveScanOp::CUDA.is_empty()) {
        let op = SelectiveScanOp.spec().name;
        return Some(format!("{op}, of its {} layers, has no GPU kernels yet", layer.mixer.kind()));
    }
    let mut routers = of.layers.iter().filter_map(|layer| layer.experts.as_ref());
    routers.any(|experts| experts.score == Score::SoftmaxOfAll).then(|| {
        "a router whose weights are a softmax over all experts has no GPU kernels yet".to_owned()
    })
}
