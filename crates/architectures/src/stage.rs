//! Pipeline parallelism: the layers and parameters of each process.

use crate::params::ParamId;
use crate::shard::{Cutter, hint_ranks};
use crate::{Architecture, ShardRank, SplitError};

impl Architecture {
    /// One process's part of a whole model: a range of layers. The first stage also has the embedding, the last one the
    /// final norm and the head. Parameters of other stages are empty.
    ///
    /// # Errors
    /// [`SplitError`] when there are fewer layers than processes.
    pub fn stage(&self, stage: ShardRank) -> Result<Self, SplitError> {
        hint_ranks("--pp", stage, |stage| self.layers_of_stage(stage))
    }

    fn layers_of_stage(&self, stage: ShardRank) -> Result<Self, String> {
        if stage.ranks == 1 {
            return Ok(self.clone());
        }
        let count = self.layers.len();
        if count < stage.ranks {
            return Err(format!("{count} layers are fewer than {} processes", stage.ranks));
        }
        let own = stage.part(count);
        let kept = self.first_of_layer(own.start)..self.first_of_layer(own.end);
        let last = stage.rank + 1 == stage.ranks;
        let mut cutter = Cutter::new(self.params.clone());
        for (id, _) in self.params.with_ids() {
            let is_outer = match id == self.embedding {
                true => stage.rank == 0 || (last && self.is_tied()),
                false => last && id >= self.norm,
            };
            if !is_outer && !kept.contains(&id) {
                cutter.drop_param(id);
            }
        }
        cutter.end(std::iter::empty());
        let layers = self.layers[own].to_vec();
        Ok(Self { stage, layers, params: cutter.params, ..self.clone() })
    }

    /// The first parameter of a layer, which is its input norm; for the number of layers, the final norm, which is declared
    /// after all layers.
    pub(crate) fn first_of_layer(&self, layer: usize) -> ParamId {
        self.layers.get(layer).map_or(self.norm, |layer| layer.input_norm)
    }

    /// Whether this stage has the last layers, the final norm and the head.
    pub fn is_last_stage(&self) -> bool {
        self.stage.rank + 1 == self.stage.ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SHAPES, shape};

    /// A tied embedding is on the first and the last stage.
    #[test]
    fn every_parameter_is_on_exactly_one_stage() {
        let mut split = 0;
        for name in SHAPES.iter().map(|shape| shape.name) {
            // Without quantization, even if the published model is quantized.
            let config = shape(name).unwrap().with("quantization_config", serde_json::Value::Null);
            let whole = Architecture::of(&config).unwrap();
            for ranks in [2, 3].into_iter().filter(|ranks| *ranks <= whole.layers.len()) {
                let stage = |rank| whole.stage(ShardRank { rank, ranks }).unwrap();
                let stages: Vec<_> = (0..ranks).map(stage).collect();
                let layers: usize = stages.iter().map(|stage| stage.layers.len()).sum();
                assert_eq!(layers, whole.layers.len(), "{name}");
                for (at, param) in whole.params.iter().enumerate() {
                    let has = |stage: &&Architecture| {
                        let own = stage.params.iter().nth(at).unwrap();
                        assert!(own.is_empty() || own.len() == param.len(), "{name}: {}", own.name);
                        !own.is_empty()
                    };
                    let with: Vec<_> = stages.iter().filter(has).collect();
                    let embedding = &whole.params.get(whole.embedding).name;
                    let twice = whole.is_tied() && param.name == *embedding;
                    assert_eq!(with.len(), 1 + usize::from(twice), "{name}: {}", param.name);
                    // Parameter names contain the layer's number.
                    let number = param.name.split('.').find_map(|part| part.parse().ok());
                    if let Some(layer) = number {
                        let own = with[0].stage.part(whole.layers.len());
                        assert!(own.contains(&layer), "{name}: {} is not of {own:?}", param.name);
                        split += 1;
                    }
                }
            }
        }
        assert!(split > 1000, "{split}");
    }

    #[test]
    fn more_processes_than_layers_are_refused() {
        let whole = Architecture::of(&shape("granite-hybrid-mini").unwrap()).unwrap();
        let error = whole.stage(ShardRank { rank: 0, ranks: 64 }).unwrap_err();
        assert!(error.to_string().contains("layers are fewer than 64 processes"), "{error}");
        assert!(error.hint.starts_with("use --pp 2"), "{}", error.hint);
    }
}
