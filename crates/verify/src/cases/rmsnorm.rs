use super::OpCases;
use super::list::{ALL, BF16, Backward, Call, F32, F32_BF16, HALVES, List};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{Batch, Head, QueryTokens, Whole};
use crate::layout::Layout;
use crate::{Case, Property, TensorRng};
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpCases = OpCases { op: "rmsnorm", cases, layout: LAYOUT };

pub(super) const BACKWARD: OpCases =
    OpCases { op: "rmsnorm_backward", cases: backward, layout: Layout::WHOLE };

const LAYOUT: Layout = Layout {
    heads: ("x", 2),
    shared: ("x", 2),
    whole_groups: false,
    tensors: &[
        ("x", &[Batch, QueryTokens, Head, Whole]),
        ("gate", &[Batch, QueryTokens, Head, Whole]),
        ("weight", &[Whole]),
        ("weight", &[Head, Whole]),
        ("o", &[Batch, QueryTokens, Head, Whole]),
    ],
};

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    layers(&mut list);
    edges(&mut list);
    let call = Norm::new([2, 40, 3, 200]).gate(false, "silu");
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    list.done()
}

/// The models' norms: Granite's mixer gates by SiLU and then normalizes, Kimi-Linear's output norm normalizes each head
/// and then gates by a sigmoid, and norms between layers have no gate.
fn layers(list: &mut List) {
    let granite = |tokens, channels| Norm::new([1, tokens, 1, channels]).gate(false, "silu");
    list.add(Quick, "granite/h-micro-t17", ALL, &granite(17, 4096));
    list.add(Standard, "granite/h-tiny-t128", F32_BF16, &granite(128, 3072));
    list.add(Standard, "granite/h-small-t128", F32_BF16, &granite(128, 8192));
    list.add(Full, "granite/h-micro-t2048", BF16, &granite(2048, 4096));
    let grouped = Norm { weight: Weight::PerGroup, ..Norm::new([2, 9, 8, 512]) };
    list.add(Quick, "granite/groups-8", ALL, &grouped.gate(false, "silu"));
    let kimi = |batch, tokens| Norm::new([batch, tokens, 32, 128]).gate(true, "sigmoid");
    list.add(Quick, "kimi/o-norm-t17", ALL, &kimi(1, 17));
    list.add(Quick, "kimi/o-norm-decode-b7", F32_BF16, &kimi(7, 1));
    list.add(Full, "kimi/o-norm-t2048", BF16, &kimi(1, 2048));
    list.add(Standard, "fla/norm-silu-gate", ALL, &Norm::new([2, 65, 4, 64]).gate(true, "silu"));
    list.add(Quick, "plain/d2304", ALL, &Norm::new([3, 5, 1, 2304]));
    // Between the residual stream and a layer's first projection.
    let stream = |tokens, channels| Norm { wide: true, ..Norm::new([1, tokens, 1, channels]) };
    list.add(Quick, "stream/h-micro-t17", HALVES, &stream(17, 2048));
    list.add(Standard, "stream/kimi-t128", BF16, &stream(128, 2304));
    // One row, as persistent kernels take it.
    list.add(Quick, "phase/d2048", BF16, &stream(1, 2048));
    list.add(Quick, "phase/d1536", BF16, &stream(1, 1536));
    list.add(Quick, "phase/d2304", BF16, &stream(1, 2304));
    let tiny = Norm { scale: 1e-3, ..stream(1, 1536) };
    list.add(Standard, "phase/eps-decides", BF16, &tiny.eps(1e-4));
    // The sum of squares is near float32's maximum; beyond it a kernel with float32 sums has no result.
    list.add(Standard, "phase/far", BF16, &Norm { scale: 1e17, ..stream(1, 2048) });
}

fn edges(list: &mut List) {
    for channels in [1, 7, 33, 60, 100, 1000] {
        let call = Norm::new([2, 5, 3, channels]).gate(channels % 2 == 1, "sigmoid");
        list.add(Quick, &format!("edge/d{channels}"), F32_BF16, &call);
    }
    // Longer than a block's registers, with and without whole vectors.
    list.add(Standard, "edge/d40000", F32_BF16, &Norm::new([1, 2, 1, 40_000]).gate(false, "silu"));
    list.add(Standard, "edge/d33001", F32_BF16, &Norm::new([1, 2, 1, 33_001]).gate(true, "silu"));
    let base = Norm::new([1, 9, 2, 128]).gate(false, "silu");
    list.add(Quick, "edge/no-weight", F32_BF16, &Norm { weight: Weight::None, ..base.clone() });
    list.add(Quick, "edge/stored-weight", ALL, &Norm { weight: Weight::Stored, ..base.clone() });
    let wide = Norm { wide: true, ..base.clone() };
    list.add(Quick, "edge/wide-gated", HALVES, &wide);
    let stored = Norm { weight: Weight::Stored, shape: [1, 3, 2, 33], ..wide };
    list.add(Quick, "edge/wide-d33", HALVES, &stored);
    list.add(Quick, "edge/large-values", F32_BF16, &Norm { scale: 1e3, ..base.clone() });
    // A mean square below eps, so that eps determines the result.
    let tiny = Norm { scale: 1e-3, ..base.clone() };
    list.add(Quick, "edge/eps-decides", F32_BF16, &tiny.eps(1e-4));
    list.add(Quick, "edge/small-eps", F32, &tiny.eps(1e-12));
    list.add(Standard, "edge/no-tokens", F32, &Norm { shape: [2, 0, 1, 64], ..base.clone() });
    list.add(Standard, "edge/no-batch", F32, &Norm { shape: [0, 4, 1, 64], ..base });
}

/// Gradients of the models' norms and of the edge cases; sums over many rows; gates at which an activation is flat.
fn backward() -> Vec<Case> {
    let mut list = List::new(BACKWARD.op);
    let of = |call: Norm| Backward { op: OP.op, call };
    let granite = Norm::new([1, 17, 1, 4096]).gate(false, "silu");
    list.add(Quick, "granite/h-micro-t17", ALL, &of(granite));
    let grouped = Norm { weight: Weight::PerGroup, ..Norm::new([2, 9, 8, 512]) };
    list.add(Quick, "granite/groups-8", ALL, &of(grouped.gate(false, "silu")));
    let kimi = Norm::new([2, 17, 32, 128]).gate(true, "sigmoid");
    list.add(Quick, "kimi/o-norm-t17", ALL, &of(kimi));
    let fla = Norm::new([2, 65, 4, 64]).gate(true, "silu");
    list.add(Standard, "fla/norm-silu-gate", ALL, &of(fla));
    list.add(Quick, "plain/d2304", ALL, &of(Norm::new([3, 5, 1, 2304])));
    let stream = Norm { wide: true, ..Norm::new([1, 17, 1, 2048]) };
    list.add(Quick, "stream/h-micro-t17", HALVES, &of(stream));
    list.add(Standard, "edge/rows-30000", F32_BF16, &of(Norm::new([1, 30_000, 1, 40])));
    for channels in [1, 7, 33, 100] {
        let call = Norm::new([2, 5, 3, channels]);
        let name = |what: &str| format!("edge/d{channels}{what}");
        list.add(Quick, &name(""), F32_BF16, &of(call.clone()));
        let after = call.clone().gate(true, "sigmoid");
        list.add(Quick, &name("-norm-first"), F32_BF16, &of(after));
        list.add(Quick, &name("-gate-first"), F32_BF16, &of(call.gate(false, "silu")));
    }
    let base = Norm::new([1, 9, 2, 128]);
    for (name, call) in [
        ("gate-first", base.clone().gate(false, "silu")),
        ("norm-first", base.clone().gate(true, "sigmoid")),
    ] {
        let saturated = Norm { gates: 40.0, ..call.clone() };
        list.add(Quick, &format!("edge/saturated-{name}"), F32_BF16, &of(saturated));
        let large = Norm { scale: 1e3, ..call.clone() };
        list.add(Quick, &format!("edge/large-values-{name}"), F32_BF16, &of(large));
        let none = Norm { weight: Weight::None, ..call.clone() };
        list.add(Quick, &format!("edge/no-weight-{name}"), F32_BF16, &of(none));
        let stored = Norm { weight: Weight::Stored, wide: true, ..call };
        list.add(Quick, &format!("edge/stored-weight-{name}"), HALVES, &of(stored));
    }
    // A mean square below eps, so that eps determines the result.
    let tiny = Norm { scale: 1e-3, ..base.clone() }.eps(1e-4);
    list.add(Quick, "edge/eps-decides", F32_BF16, &of(tiny));
    list.add(Quick, "edge/no-tokens", F32, &of(Norm { shape: [2, 0, 1, 64], ..base }));
    let call = of(Norm::new([2, 400, 3, 200]).gate(false, "silu"));
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    list.done()
}

#[derive(Clone)]
enum Weight {
    None,
    /// One f32 weight for all groups.
    Shared,
    /// One weight for all groups, in x's type.
    Stored,
    PerGroup,
}

/// A call of rmsnorm.
#[derive(Clone)]
struct Norm {
    /// `[B, T, G, D]`.
    shape: [usize; 4],
    gate: bool,
    weight: Weight,
    /// Whether x and gate are f32, whatever o's type is.
    wide: bool,
    /// Standard deviation of x.
    scale: f64,
    /// Standard deviation of the gates.
    gates: f64,
    settings: Settings,
}

impl Norm {
    fn new(shape: [usize; 4]) -> Self {
        Self {
            shape,
            gate: false,
            weight: Weight::Shared,
            wide: false,
            scale: 1.0,
            gates: 2.0,
            settings: Settings::new(),
        }
    }

    fn gate(mut self, norm_before_gate: bool, activation: &str) -> Self {
        self.settings.set("norm_before_gate", norm_before_gate);
        self.settings.set("activation", activation);
        Self { gate: true, ..self }
    }

    fn eps(&self, eps: f64) -> Self {
        Self { settings: self.settings.clone().with("eps", eps), ..self.clone() }
    }
}

impl Call for Norm {
    fn draw(&self, draw: &mut TensorRng, dtype: DType) -> (TensorMap, Settings) {
        let [_, _, groups, channels] = self.shape;
        let mut inputs = TensorMap::new();
        let mut put = |name: &str, tensor| inputs.insert(name.to_owned(), tensor);
        let given = if self.wide { DType::F32 } else { dtype };
        put("x", draw.normals(&self.shape, given, self.scale));
        if self.gate {
            put("gate", draw.normals(&self.shape, given, self.gates));
        }
        match self.weight {
            Weight::None => None,
            Weight::Shared => put("weight", draw.normals(&[channels], DType::F32, 1.0)),
            Weight::Stored => put("weight", draw.normals(&[channels], dtype, 1.0)),
            Weight::PerGroup => put("weight", draw.normals(&[groups, channels], DType::F32, 1.0)),
        };
        let mut settings = self.settings.clone();
        if self.wide {
            settings.set("out", dtype);
        }
        (inputs, settings)
    }
}
