//! Which tensor of one layout is which of the other.

use crate::{Architecture, Layer, Mixer, ModelError, Param};
use facts::CompactCollect;
use std::collections::{BTreeMap, HashMap};

/// How the tensors of a checkpoint are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// As the family was published, which is what an engine loads.
    Hf,
    /// The KDA layers by the parameters of flash-linear-attention's `KimiDeltaAttention` (fla/layers/kda.py), all else as
    /// published: fla has no model with latent attention and experts beside them.
    FlaKda,
}

impl Layout {
    /// Its name, as an argument has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hf => "hf",
            Self::FlaKda => "fla-kda",
        }
    }

    /// The layout it is converted from.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Hf => Self::FlaKda,
            Self::FlaKda => Self::Hf,
        }
    }
}

/// Parameters of a KDA layer as published, and as fla's layer has them.
const RENAMED: [(&str, &str); 4] = [
    ("f_a_proj.weight", "f_proj.0.weight"),
    ("f_b_proj.weight", "f_proj.1.weight"),
    ("g_a_proj.weight", "g_proj.0.weight"),
    ("g_b_proj.weight", "g_proj.1.weight"),
];

/// The decay's logarithm: `[1, 1, heads, 1]` as published, `[heads]` in fla.
const FLATTENED: &str = "A_log";

/// The output gate's bias, which fla's layer has and the published ones have not: zero, and of its weight's type.
const ZERO: (&str, &str) = ("g_b_proj.weight", "g_proj.1.bias");

/// A tensor's name and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// A tensor of both layouts, whose bytes are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// In the checkpoint that is read.
    pub from: Key,
    /// In the one that is written.
    pub to: Key,
}

/// A tensor of fla's layout alone, all zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zeros {
    /// The tensor.
    pub key: Key,
    /// The published tensor whose type it has and behind which it stands.
    pub beside: String,
}

/// A bijection between the tensors of two layouts, but for those that are zeros.
#[derive(Debug, Clone)]
pub struct KeyMap {
    to: Layout,
    pairs: Vec<Pair>,
    zeros: Vec<Zeros>,
    /// Place among the pairs, by the name that is read.
    places: HashMap<String, usize>,
}

impl KeyMap {
    /// The map of a model.
    ///
    /// # Errors
    /// [`ModelError::Convert`] when it has no KDA layers, or the map is no bijection.
    pub fn of(architecture: &Architecture, to: Layout) -> Result<Self, ModelError> {
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
                Layout::FlaKda.name()
            );
            return Err(ModelError::convert(what, "convert a model of the family kimi-linear"));
        }
        let (mut pairs, mut zeros) = (Vec::new(), Vec::new());
        for param in params.iter() {
            let place = layers.iter().find_map(|layer| Some((layer, own(param, layer)?)));
            let published = Key { name: param.name.clone(), shape: param.shape.clone() };
            let fla = place.map_or(published.clone(), |(layer, own)| fla(layer, own, param));
            if let Some((layer, own)) = place
                && own == ZERO.0
            {
                let key = Key { name: format!("{layer}{}", ZERO.1), shape: vec![param.shape[0]] };
                zeros.push(Zeros { key, beside: param.name.clone() });
            }
            pairs.push(match to {
                Layout::FlaKda => Pair { from: published, to: fla },
                Layout::Hf => Pair { from: fla, to: published },
            });
        }
        Self::new(to, pairs, zeros)
    }

    /// A map of these pairs, each name once on each side.
    fn new(to: Layout, pairs: Vec<Pair>, zeros: Vec<Zeros>) -> Result<Self, ModelError> {
        let added = |side: Layout| zeros.iter().map(|zeros| &zeros.key).filter(move |_| side == to);
        // What stands in fla's layout alone is on the side that is written, or on the one that is read.
        once(pairs.iter().map(|pair| &pair.from).chain(added(Layout::Hf)))?;
        once(pairs.iter().map(|pair| &pair.to).chain(added(Layout::FlaKda)))?;
        let len = |key: &Key| key.shape.iter().product::<usize>();
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

    /// The layout that is written.
    pub fn to(&self) -> Layout {
        self.to
    }

    /// Every tensor of both layouts.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// The tensors of fla's layout alone: added when it is written, left out when it is read.
    pub fn zeros(&self) -> &[Zeros] {
        &self.zeros
    }

    /// Those that differ in name or shape.
    pub fn changed(&self) -> impl Iterator<Item = &Pair> {
        self.pairs.iter().filter(|pair| pair.from != pair.to)
    }

    /// What has to be in the checkpoint that is read.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let zeros = self.zeros.iter().map(|zeros| &zeros.key).filter(|_| self.to == Layout::Hf);
        let keys = self.pairs.iter().map(|pair| &pair.from).chain(zeros);
        keys.map(|key| (key.name.as_str(), key.shape.as_slice()))
    }

    /// What a tensor that is read becomes; none for one that both layouts have and no config names.
    pub(super) fn get(&self, name: &str) -> Option<&Key> {
        Some(&self.pairs[*self.places.get(name)?].to)
    }

    /// The zeros that stand behind a tensor that is read.
    pub(super) fn added(&self, behind: &str) -> Option<&Zeros> {
        self.zeros.iter().find(|zeros| self.to == Layout::FlaKda && zeros.beside == behind)
    }

    /// Whether a tensor that is read is left out.
    pub(super) fn left_out(&self, name: &str) -> bool {
        self.to == Layout::Hf && self.zeros.iter().any(|zeros| zeros.key.name == name)
    }

    /// The changed names, by what is read.
    pub(super) fn renamed(&self) -> BTreeMap<String, String> {
        self.changed().map(|pair| (pair.from.name.clone(), pair.to.name.clone())).compact_map()
    }
}

/// What a parameter is called within a layer.
fn own<'a>(param: &'a Param, layer: &str) -> Option<&'a str> {
    param.name.strip_prefix(layer)
}

/// A parameter of a KDA layer in fla.
fn fla(layer: &str, own: &str, param: &Param) -> Key {
    let renamed = RENAMED.iter().find(|(published, _)| *published == own);
    let name = format!("{layer}{}", renamed.map_or(own, |(_, fla)| fla));
    let shape =
        if own == FLATTENED { vec![param.shape.iter().product()] } else { param.shape.clone() };
    Key { name, shape }
}

/// Holds that no name is there twice.
fn once<'a>(keys: impl Iterator<Item = &'a Key>) -> Result<(), ModelError> {
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

    fn key(name: &str, shape: &[usize]) -> Key {
        Key { name: name.to_owned(), shape: shape.to_vec() }
    }

    fn map(to: Layout) -> KeyMap {
        let architecture = Architecture::of(&shape("kimi-linear-mini").unwrap()).unwrap();
        KeyMap::of(&architecture, to).unwrap()
    }

    #[test]
    fn a_kda_layer_has_the_names_and_shapes_of_flas() {
        let map = map(Layout::FlaKda);
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
        // Two of the four layers are KDA: four names and a shape change in each, and a bias comes to it.
        assert_eq!(map.changed().count(), 2 * 5);
        assert_eq!(map.zeros().len(), 2);
        assert_eq!(map.zeros()[0].key, key(&format!("{layer}g_proj.1.bias"), &[width]));
    }

    #[test]
    fn the_way_back_is_the_map_reversed() {
        let (there, back) = (map(Layout::FlaKda), map(Layout::Hf));
        let reversed = |pair: &Pair| Pair { from: pair.to.clone(), to: pair.from.clone() };
        assert_eq!(there.pairs().iter().map(reversed).collect::<Vec<_>>(), back.pairs());
        assert_eq!(there.zeros(), back.zeros());
    }

    #[test]
    fn what_is_no_bijection_is_refused_by_its_keys() {
        let pair = |from: &str, to: &str, len| Pair { from: key(from, &[4]), to: key(to, &[len]) };
        let check = |pairs: &[Pair], zeros: &[Zeros], expect: &str| {
            let error = KeyMap::new(Layout::FlaKda, pairs.to_vec(), zeros.to_vec()).unwrap_err();
            assert_eq!(error.to_string(), format!("the key map is no bijection: {expect}"));
        };
        check(&[pair("a", "x", 4), pair("b", "x", 4)], &[], "two tensors are `x`");
        check(&[pair("a", "x", 4), pair("a", "y", 4)], &[], "two tensors are `a`");
        check(&[pair("a", "x", 5)], &[], "`a` [4] cannot become `x` [5]");
        let zeros = Zeros { key: key("x", &[4]), beside: "a".to_owned() };
        check(&[pair("a", "x", 4)], &[zeros], "two tensors are `x`");
        let granite = Architecture::of(&shape("granite-hybrid-mini").unwrap()).unwrap();
        let error = KeyMap::of(&granite, Layout::FlaKda).unwrap_err();
        assert!(error.to_string().starts_with("the model has no KDA layer"), "{error}");
    }
}
