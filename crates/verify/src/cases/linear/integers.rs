//! Integer weights of 4 and 8 bits.

use super::{FAR, Projection, a_layer};
use crate::TensorRng;
use crate::Tier::{Full, Quick, Standard};
use crate::cases::list::{BF16, List};
use ops::{DType, Tensor};

/// How integer weights, scales and zero points are generated.
#[derive(Clone, Copy)]
pub(super) struct WeightQuantization {
    /// u4 or i8.
    w: DType,
    scale: DType,
    /// Group size; `None` for whole rows.
    group: Option<usize>,
    zeros: bool,
    offsets: bool,
    ordered: bool,
}

const U4: WeightQuantization = WeightQuantization {
    w: DType::U4,
    scale: DType::F32,
    group: None,
    zeros: false,
    offsets: false,
    ordered: false,
};
const I8: WeightQuantization = WeightQuantization { w: DType::I8, ..U4 };

/// Every kind of scale and zero point, each projection of a layer, and sizes that are not multiples.
pub(super) fn list(list: &mut List) {
    let groups = |size| WeightQuantization { group: Some(size), ..U4 };
    for (word, quantization) in [
        ("u4-rows", U4),
        ("u4-g128", WeightQuantization { scale: DType::Bf16, ..groups(128) }),
        ("u4-g128-zeros", WeightQuantization { scale: DType::F16, zeros: true, ..groups(128) }),
        ("u4-g32-zeros", WeightQuantization { scale: DType::F16, zeros: true, ..groups(32) }),
        ("u4-g32-offsets", WeightQuantization { offsets: true, ..groups(32) }),
        ("u4-g96-ordered", WeightQuantization { zeros: true, ordered: true, ..groups(96) }),
        ("i8-rows", WeightQuantization { scale: DType::Bf16, ..I8 }),
        ("i8-g128", WeightQuantization { group: Some(128), ..I8 }),
        ("i8-blocks", WeightQuantization { group: Some(32), scale: DType::F16, ..I8 }),
        ("i8-g16", WeightQuantization { group: Some(16), ..I8 }),
        ("i8-g64", WeightQuantization { group: Some(64), scale: DType::F16, ..I8 }),
        ("i8-g128-ordered", WeightQuantization { group: Some(128), ordered: true, ..I8 }),
    ] {
        for tokens in [1, 2, 8, 9, 17, 33, 130] {
            let tier = if tokens == 9 { Quick } else { Standard };
            let name = |layer: &str| format!("{word}/{layer}-t{tokens}");
            let of =
                |inputs, outputs| Projection::new(tokens, inputs, outputs).integers(quantization);
            let in_proj = of(256, 520).norm(1).wide().split("256,256,8");
            list.add(tier, &name("in-proj"), BF16, &in_proj);
            list.add(Standard, &name("out-proj"), BF16, &of(512, 256).residual().scale(0.22));
            list.add(Standard, &name("gate-up"), BF16, &of(256, 640).norm(1).wide().swiglu());
            // Deeper than the prefetched stages, with a group that ends with the depth.
            list.add(tier, &name("down"), BF16, &of(1184, 264).residual().scale(0.22));
            let conv = of(256, 520).norm(1).wide().split("256,256,8").convolved(256, 256, 4);
            list.add(Standard, &name("conv"), BF16, &conv.set("conv_activation", "silu"));
        }
        for tokens in [1, 7, 9, 31] {
            let of = Projection::new(tokens, 288, 136).integers(quantization);
            let call = Projection { rows: FAR, ..of };
            list.add(Quick, &format!("{word}/far-rows-t{tokens}"), BF16, &call);
        }
        for [tokens, inputs, outputs] in [[3, 2, 40], [5, 34, 65], [40, 142, 131], [1, 250, 7]] {
            let call =
                Projection::new(tokens, inputs, outputs).norm(1).bias().integers(quantization);
            list.add(Quick, &format!("{word}/k{inputs}-n{outputs}"), BF16, &call);
        }
        for tokens in [1, 8, 32] {
            let name = |layer: &str| format!("{word}/h-micro-{layer}-t{tokens}");
            let of =
                |inputs, outputs| Projection::new(tokens, inputs, outputs).integers(quantization);
            list.add(Full, &name("gate-up"), BF16, &of(2048, 2048).norm(1).wide().swiglu());
            list.add(Full, &name("down"), BF16, &of(8192, 256).residual().scale(0.22));
        }
    }
    for (word, quantization) in [
        ("phase-i8-blocks", WeightQuantization { group: Some(32), scale: DType::F16, ..I8 }),
        ("phase-u4-g128", WeightQuantization { scale: DType::Bf16, ..groups(128) }),
        ("phase-u4-g32", WeightQuantization { scale: DType::F16, ..groups(32) }),
        ("phase-u4-g32-offsets", WeightQuantization { offsets: true, ..groups(32) }),
    ] {
        a_layer(list, word, |inputs, outputs| {
            Projection::new(1, inputs, outputs).integers(quantization)
        });
    }
}

impl Projection {
    fn integers(self, quantization: WeightQuantization) -> Self {
        let group = quantization.group.unwrap_or(128);
        Self { integers: Some(quantization), ..self.set("w_group", group) }
    }
}

impl WeightQuantization {
    pub(super) fn draw(
        self,
        draw: &mut TensorRng,
        [outputs, inputs]: [usize; 2],
        mut put: impl FnMut(&str, Tensor) -> Option<Tensor>,
    ) {
        let (low, size) = if self.w == DType::U4 { (0.0, 16) } else { (-128.0, 256) };
        let number = |draw: &mut TensorRng| low + draw.below(size) as f64;
        put("w", draw.tensor(&[outputs, inputs], self.w, number));
        let groups = self.group.map_or(1, |size| inputs.div_ceil(size));
        // About the magnitude of other weights, twice as large in one group as in another.
        let scale = (inputs as f64).powf(-0.5) / size as f64;
        put("w_scale", draw.uniforms(&[groups, outputs], self.scale, 2.0 * scale, 4.0 * scale));
        if self.zeros {
            let zero = |draw: &mut TensorRng| draw.below(16) as f64;
            put("w_zero", draw.tensor(&[groups, outputs], DType::U8, zero));
        }
        if self.offsets {
            // The offsets of zero points from -2 to 13, about evenly below and above the integers.
            let offset = |draw: &mut TensorRng| draw.uniform(-6.0, 39.0) * scale;
            put("w_offset", draw.tensor(&[groups, outputs], DType::F32, offset));
        }
        if self.ordered {
            let mut order: Vec<i32> = (0..inputs as i32).collect();
            (1..inputs).for_each(|at| order.swap(at, draw.below(at + 1)));
            put("x_order", Tensor::new(&[inputs], order));
        }
    }
}
