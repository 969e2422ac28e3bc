//! A model with one layer of each kind.

use crate::Architecture;
use crate::params::ParamId;
use crate::shard::Cutter;

impl Architecture {
    /// The model reduced to the first layer of each kind: its mixer, followed by experts, a dense part or both, with
    /// the same weights. It covers every code path of the whole model in a fraction of the time. Parameters of other
    /// layers are empty.
    ///
    /// Experts stay only in the last layer that has any: with nearly equal scores rounding decides the expert, and
    /// after a later mixer the difference could not be distinguished from an error.
    #[must_use]
    pub fn one_layer_of_each_kind(mut self) -> Self {
        let first: Vec<_> = (0..=self.layers.len()).map(|at| self.first_of_layer(at)).collect();
        let (mut seen, mut left) = (Vec::new(), Vec::new());
        for (at, layer) in std::mem::take(&mut self.layers).into_iter().enumerate() {
            let parts = (layer.experts.is_some(), layer.mlp.is_some());
            let kind = (std::mem::discriminant(&layer.mixer), parts);
            if seen.contains(&kind) {
                left.extend(ParamId::within(first[at]..first[at + 1]));
            } else {
                seen.push(kind);
                self.layers.push(layer);
            }
        }
        let routed = self.layers.iter_mut().rev().filter(|layer| layer.experts.is_some()).skip(1);
        left.extend(routed.filter_map(|layer| layer.experts.take()).flat_map(|of| of.params()));
        let mut cutter = Cutter::new(self.params);
        left.into_iter().for_each(|param| cutter.drop_param(param));
        cutter.end(std::iter::empty());
        Self { params: cutter.params, ..self }
    }
}

#[cfg(test)]
mod tests;
