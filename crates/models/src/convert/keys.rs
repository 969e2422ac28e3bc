//! The mapping between tensors of two layouts.

use crate::{Architecture, Layer, Mixer, ModelError, Param};
use facts::CompactCollect;
use std::collections::{BTreeMap, HashMap};

/// A naming scheme of a checkpoint's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointLayout {
    /// The published names, which an engine loads.
    Hf,
    /// KDA layers with the parameter names of flash-linear-attention's `KimiDeltaAttention` (fla/layers/kda.py), all
    /// others as published: fla has no model that combines latent attention with experts.
    FlaKda,
}

impl CheckpointLayout {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hf => "hf",
            Self::FlaKda => "fla-kda",
        }
    }

    /// The layout that it is converted from.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Hf => Self::FlaKda,
            Self::FlaKda => Self::Hf,
        }
    }
}

/// Parameters of a KDA layer: the published name and fla's.
const RENAMED: [(&str, &str); 4] = [
    ("f_a_proj.weight", "f_proj.0.weight"),
    ("f_b_proj.weight", "f_proj.1.weight"),
    ("g_a_proj.weight", "g_proj.0.weight"),
    ("g_b_proj.weight", "g_proj.1.weight"),
];

/// Logarithm of the decay: `[1, 1, heads, 1]` as published, `[heads]` in fla.
const FLATTENED: &str = "A_log";

/// Bias of the output gate, which only fla's layer has: zeros of the weight's type.
const ZERO: (&str, &str) = ("g_b_proj.weight", "g_proj.1.bias");

/// A tensor's name and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorKey {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// A tensor of both layouts, with the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPair {
    /// Its key in the source.
    pub from: TensorKey,
    /// Its key in the target.
    pub to: TensorKey,
}

/// A tensor that only fla's layout has, all zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZeroTensor {
    /// The tensor.
    pub key: TensorKey,
    /// The published tensor that it follows, whose type it has.
    pub beside: String,
}

/// A bijection between the tensors of two layouts, except for tensors of zeros.
#[derive(Debug, Clone)]
pub struct KeyMap {
    to: CheckpointLayout,
    pairs: Vec<TensorPair>,
    zeros: Vec<ZeroTensor>,
    /// Index of a pair by the source's name.
    places: HashMap<String, usize>,
}

impl KeyMap {
    /// The map of a model.
    ///
    /// # Errors
    /// [`ModelError::Convert`] when the model has no KDA layers or the map is not a bijection.
    pub fn of(architecture: &Architecture, to: CheckpointLayout) -> Result<Self, ModelError> {
        let params = &architecture.params;
        let prefix = |layer: &Layer| match &layer.mixer {
            Mixer::Kda(kda) => {
                params.get(kda.a_log).name.strip_suffix(FLATTENED).map(str::to_owned)
            }
            _ => None,
        };
        let layers: Vec<String> = architecture.layers.iter().filter_map(prefix).collect();
        if layers.is_empty() {
            let what = format!(
                "the model has no KDA layer, and {} differs in nothing else",
                CheckpointLayout::FlaKda.name()
            );
            return Err(ModelError::convert(what, "convert a model of the family kimi-linear"));
        }
        let (mut pairs, mut zeros) = (Vec::new(), Vec::new());
        for param in params.iter() {
            let place = layers.iter().find_map(|layer| Some((layer, own(param, layer)?)));
            let published = TensorKey { name: param.name.clone(), shape: param.shape.clone() };
            let fla = place.map_or(published.clone(), |(layer, own)| fla(layer, own, param));
            if let Some((layer, own)) = place
                && own == ZERO.0
            {
                let key =
                    TensorKey { name: format!("{layer}{}", ZERO.1), shape: vec![param.shape[0]] };
                zeros.push(ZeroTensor { key, beside: param.name.clone() });
            }
            pairs.push(match to {
                CheckpointLayout::FlaKda => TensorPair { from: published, to: fla },
                CheckpointLayout::Hf => TensorPair { from: fla, to: published },
            });
        }
        Self::new(to, pairs, zeros)
    }

    /// A map of these pairs. Names are unique on each side.
    fn new(
        to: CheckpointLayout,
        pairs: Vec<TensorPair>,
        zeros: Vec<ZeroTensor>,
    ) -> Result<Self, ModelError> {
        let added = |side: CheckpointLayout| {
            zeros.iter().map(|zeros| &zeros.key).filter(move |_| side == to)
        };
        // Tensors of zeros are in the target when converting to fla, in the source otherwise.
        once(pairs.iter().map(|pair| &pair.from).chain(added(CheckpointLayout::Hf)))?;
        once(pairs.iter().map(|pair| &pair.to).chain(added(CheckpointLayout::FlaKda)))?;
        let len = |key: &TensorKey| key.shape.iter().product::<usize>();
        if let Some(pair) = pairs.iter().find(|pair| len(&pair.from) != len(&pair.to)) {
            let (from, to) = (&pair.from, &pair.to);
            return Err(no_bijection(format!(
                "`{}` {:?} cannot become `{}` {:?}",
                from.name, from.shape, to.name, to.shape
            )));
        }
        let named = pairs.iter().enumerate().map(|(at, pair)| (pair.from.name.clone(), at));
        let places = named.collect();
        Ok(Self { to, pairs, zeros, places })
    }

    /// The target layout.
    pub fn to(&self) -> CheckpointLayout {
        self.to
    }

    /// Tensors of both layouts.
    pub fn pairs(&self) -> &[TensorPair] {
        &self.pairs
    }

    /// Tensors of fla's layout only: added when it is the target, dropped when it is the source.
    pub fn zeros(&self) -> &[ZeroTensor] {
        &self.zeros
    }

    /// Pairs whose name or shape changes.
    pub fn changed(&self) -> impl Iterator<Item = &TensorPair> {
        self.pairs.iter().filter(|pair| pair.from != pair.to)
    }

    /// Names and shapes that the source must have.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let zeros =
            self.zeros.iter().map(|zeros| &zeros.key).filter(|_| self.to == CheckpointLayout::Hf);
        let keys = self.pairs.iter().map(|pair| &pair.from).chain(zeros);
        keys.map(|key| (key.name.as_str(), key.shape.as_slice()))
    }

    /// The target key of a source tensor; `None` if both layouts have it unchanged and no config names it.
    pub(super) fn get(&self, name: &str) -> Option<&TensorKey> {
        Some(&self.pairs[*self.places.get(name)?].to)
    }

    /// The tensor of zeros that follows a source tensor.
    pub(super) fn added(&self, behind: &str) -> Option<&ZeroTensor> {
        self.zeros
            .iter()
            .find(|zeros| self.to == CheckpointLayout::FlaKda && zeros.beside == behind)
    }

    /// Whether a source tensor is dropped.
    pub(super) fn left_out(&self, name: &str) -> bool {
        self.to == CheckpointLayout::Hf && self.zeros.iter().any(|zeros| zeros.key.name == name)
    }

    /// New names by source name.
    pub(super) fn renamed(&self) -> BTreeMap<String, String> {
        self.changed().map(|pair| (pair.from.name.clone(), pair.to.name.clone())).compact_map()
    }
}

/// The name of a parameter within its layer.
fn own<'a>(param: &'a Param, layer: &str) -> Option<&'a str> {
    param.name.strip_prefix(layer)
}

/// The fla key of a KDA layer's parameter.
fn fla(layer: &str, own: &str, param: &Param) -> TensorKey {
    let renamed = RENAMED.iter().find(|(published, _)| *published == own);
    let name = format!("{layer}{}", renamed.map_or(own, |(_, fla)| fla));
    let shape =
        if own == FLATTENED { vec![param.shape.iter().product()] } else { param.shape.clone() };
    TensorKey { name, shape }
}

/// Checks that no name occurs twice.
fn once<'a>(keys: impl Iterator<Item = &'a TensorKey>) -> Result<(), ModelError> {
    let mut seen = std::collections::HashSet::new();
    for key in keys {
        if !seen.insert(&key.name) {
            return Err(no_bijection(format!("two tensors are `{}`", key.name)));
        }
    }
    Ok(())
}

fn no_bijection(what: String) -> ModelError {
    let hint = "nothing was written; such a map could not be undone, so please report the config";
    ModelError::convert(format!("the key map is no bijection: {what}"), hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;

    fn key(name: &str, shape: &[usize]) -> TensorKey {
        TensorKey { name: name.to_owned(), shape: shape.to_vec() }
    }

    fn map(to: CheckpointLayout) -> KeyMap {
        let architecture = Architecture::of(&shape("kimi-linear-mini").unwrap()).unwrap();
        KeyMap::of(&architecture, to).unwrap()
    }

    #[test]
    fn kda_layer_maps_to_fla_names_and_shapes() {
        let map = map(CheckpointLayout::FlaKda);
        let layer = "model.layers.0.self_attn.";
        let to = |own: &str| map.get(&format!("{layer}{own}")).cloned().unwrap();
        let heads = to("A_log").shape[0];
        let width = to("dt_bias").shape[0];
        let dim = width / heads;
        for (own, name, shape) in [
            ("q_proj.weight", "q_proj.weight", &[width, 64][..]),
            ("k_conv1d.weight", "k_conv1d.weight", &[width, 1, 4]),
            ("f_a_proj.weight", "f_proj.0.weight", &[dim, 64]),
            ("f_b_proj.weight", "f_proj.1.weight", &[width, dim]),
            ("g_a_proj.weight", "g_proj.0.weight", &[dim, 64]),
            ("g_b_proj.weight", "g_proj.1.weight", &[width, dim]),
            ("b_proj.weight", "b_proj.weight", &[heads, 64]),
            ("A_log", "A_log", &[heads]),
            ("o_norm.weight", "o_norm.weight", &[dim]),
        ] {
            assert_eq!(to(own), key(&format!("{layer}{name}"), shape));
        }
        // Two of the four layers are KDA: four names and one shape change in each, and a bias is added.
        assert_eq!(map.changed().count(), 2 * 5);
        assert_eq!(map.zeros().len(), 2);
        assert_eq!(map.zeros()[0].key, key(&format!("{layer}g_proj.1.bias"), &[width]));
    }

    #[test]
    fn reverse_map_is_the_inverse() {
        let (there, back) = (map(CheckpointLayout::FlaKda), map(CheckpointLayout::Hf));
        let reversed =
            |pair: &TensorPair| TensorPair { from: pair.to.clone(), to: pair.from.clone() };
        assert_eq!(there.pairs().iter().map(reversed).collect::<Vec<_>>(), back.pairs());
        assert_eq!(there.zeros(), back.zeros());
    }

    #[test]
    fn duplicate_keys_are_refused() {
        let pair =
            |from: &str, to: &str, len| TensorPair { from: key(from, &[4]), to: key(to, &[len]) };
        let check = |pairs: &[TensorPair], zeros: &[ZeroTensor], expect: &str| {
            let error =
                KeyMap::new(CheckpointLayout::FlaKda, pairs.to_vec(), zeros.to_vec()).unwrap_err();
            assert_eq!(error.to_string(), format!("the key map is no bijection: {expect}"));
        };
        check(&[pair("a", "x", 4), pair("b", "x", 4)], &[], "two tensors are `x`");
        check(&[pair("a", "x", 4), pair("a", "y", 4)], &[], "two tensors are `a`");
        check(&[pair("a", "x", 5)], &[], "`a` [4] cannot become `x` [5]");
        let zeros = ZeroTensor { key: key("x", &[4]), beside: "a".to_owned() };
        check(&[pair("a", "x", 4)], &[zeros], "two tensors are `x`");
        let granite = Architecture::of(&shape("granite-hybrid-mini").unwrap()).unwrap();
        let error = KeyMap::of(&granite, CheckpointLayout::FlaKda).unwrap_err();
        assert!(error.to_string().starts_with("the model has no KDA layer"), "{error}");
    }
}
