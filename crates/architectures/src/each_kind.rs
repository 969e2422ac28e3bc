//! A model with one layer of each kind.

use crate::Architecture;
use crate::params::ParamId;
use crate::shard::Cutter;

impl Architecture {
    /// The same with the first layer of each kind alone: its mixer, and experts, a dense part or both behind it, with the
    /// same weights. It takes every path that the whole model takes, in a fraction of the time. Parameters of the others are empty.
    ///
    /// Experts stay in the last of them that has any. Where two experts are rated alike, rounding decides which of them a
    /// token passes; what a later layer mixed of that would be told from an error no more.
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
        left.into_iter().for_each(|param| cutter.leave(param));
        cutter.end(std::iter::empty());
        Self { params: cutter.params, ..self }
    }
}

#[cfg(test)]
mod tests;
