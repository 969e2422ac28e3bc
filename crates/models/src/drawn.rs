//! Weights that are drawn rather than read: any range of any tensor, in any order, the same values each time.

use crate::Architecture;
use crate::params::{Draw, Param};
use crate::random::mix;
use crate::values::Value;
use half::bf16;
use safetensors::tensor::Dtype;
use std::collections::HashMap;
use std::sync::Arc;

/// A sum of four values of 16 bits is below this.
const SUMS: usize = 4 << 16;

/// Every value that a normal draw of one deviation can have, by the sum that chose it. There are far fewer of them than
/// weights, so that drawing is a look-up.
type Normals = Arc<[bf16]>;

/// The tables of the normal draws so far, by the bits of their deviation.
#[derive(Debug, Default)]
pub(crate) struct Tables(HashMap<u64, Normals>);

impl Tables {
    fn of(&mut self, deviation: f64) -> Normals {
        let table = || (0..SUMS).map(|sum| bf16::from_f64(normal(sum, deviation))).collect();
        self.0.entry(deviation.to_bits()).or_insert_with(table).clone()
    }
}

/// A tensor of a random model.
#[derive(Debug)]
pub(crate) struct Drawn {
    seed: u64,
    len: usize,
    draw: Draw,
    normals: Option<Normals>,
}

impl Drawn {
    /// A tensor's values depend on its name, so that layers can be cut without changing those that stay.
    pub(crate) fn new(param: &Param, seed: u64, tables: &mut Tables) -> Self {
        let normals = match param.draw {
            Draw::Normal(deviation) => Some(tables.of(deviation)),
            _ => None,
        };
        let seed = param.name.bytes().fold(seed, |seed, byte| mix(seed ^ u64::from(byte)));
        Self { seed, len: param.len(), draw: param.draw, normals }
    }

    /// What checkpoints keep it in.
    pub(crate) fn dtype(&self) -> Dtype {
        if self.draw.keeps_float32() { Dtype::F32 } else { Dtype::BF16 }
    }

    /// Its size in a checkpoint.
    pub(crate) fn bytes(&self) -> usize {
        self.len * if self.draw.keeps_float32() { 4 } else { 2 }
    }

    /// Number of its values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes values from `first` on over those of a slice; `false` where it has not so many.
    pub(crate) fn fill<V: Value>(&self, first: usize, into: &mut [V]) -> bool {
        if first.checked_add(into.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        let drawn = (first..).map(|at| mix(self.seed.wrapping_add(at as u64)));
        let places = into.iter_mut().zip(drawn);
        match (&self.normals, self.dtype()) {
            (Some(normals), _) => {
                let normals = normals.as_ref();
                places.for_each(|(to, bits)| *to = V::of_bf16(normals[sum(bits)]));
            }
            (None, Dtype::F32) => {
                places.for_each(|(to, bits)| *to = V::of_f32(value(self.draw, bits) as f32));
            }
            (None, _) => {
                let rounded = |bits| bf16::from_f64(value(self.draw, bits));
                places.for_each(|(to, bits)| *to = V::of_bf16(rounded(bits)));
            }
        }
        true
    }
}

/// All tensors of a random model.
#[derive(Debug)]
pub(crate) struct DrawnModel {
    tensors: HashMap<String, Drawn>,
}

impl DrawnModel {
    pub(crate) fn new(architecture: &Architecture, seed: u64) -> Self {
        let mut tables = Tables::default();
        let drawn = |param: &Param| (param.name.clone(), Drawn::new(param, seed, &mut tables));
        Self { tensors: architecture.params.iter().map(drawn).collect() }
    }

    /// A tensor by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&Drawn> {
        self.tensors.get(name)
    }

    /// Values of all tensors.
    pub(crate) fn parameters(&self) -> u64 {
        self.tensors.values().map(|drawn| drawn.len() as u64).sum()
    }

    /// Bytes that its tensors would take in files.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.values().map(|drawn| drawn.bytes() as u64).sum()
    }
}

/// The sum of the four 16-bit parts of 64 bits.
fn sum(bits: u64) -> usize {
    const EVEN: u64 = 0x0000_ffff_0000_ffff;
    let pairs = (bits & EVEN) + (bits >> 16 & EVEN);
    // Two halves of at most 17 bits each.
    ((pairs & 0xffff_ffff) + (pairs >> 32)) as usize
}

/// The sum of four uniform values is close to normal, with a variance of 4/12.
fn normal(sum: usize, deviation: f64) -> f64 {
    (sum as f64 / 65_536.0 - 2.0) * 3f64.sqrt() * deviation
}

/// One value from 64 random bits.
fn value(draw: Draw, bits: u64) -> f64 {
    let between =
        |low: f64, high: f64| low + (high - low) * (bits >> 11) as f64 / (1u64 << 53) as f64;
    match draw {
        Draw::Normal(deviation) => normal(sum(bits), deviation),
        Draw::Uniform(low, high) => between(low, high),
        Draw::DecayRate => between(1.0, 16.0).ln(),
        Draw::StepBias => between(-9.0, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, Checkpoint, SynthOptions, shape, synth};

    /// A normal draw as it is defined: four uniform values, added up.
    fn defined(deviation: f64, bits: u64) -> bf16 {
        let parts = [0, 16, 32, 48].map(|shift| (bits >> shift & 0xffff) as f64 / 65_536.0);
        bf16::from_f64((parts.iter().sum::<f64>() - 2.0) * 3f64.sqrt() * deviation)
    }

    #[test]
    fn looked_up_values_are_the_defined_ones() {
        for deviation in [0.02, (2304f64).powf(-0.5), 1.0] {
            let draw = Draw::Normal(deviation);
            let param = Param { name: "w".to_owned(), shape: vec![300, 400], draw };
            let drawn = Drawn::new(&param, 5, &mut Tables::default());
            let seed = mix(5 ^ u64::from(b'w'));
            let want: Vec<bf16> =
                (0..120_000).map(|at| defined(deviation, mix(seed.wrapping_add(at)))).collect();
            let mut all = vec![bf16::ZERO; 120_000];
            assert!(drawn.fill(0, &mut all));
            assert_eq!(all, want);
            // Any range of them is the same.
            let mut some = [bf16::ZERO; 33];
            assert!(drawn.fill(77_777, &mut some));
            assert_eq!(some, want[77_777..77_810]);
            assert!(!drawn.fill(119_990, &mut some));
        }
        assert_eq!(sum(u64::MAX), SUMS - 4);
    }

    #[test]
    fn a_model_that_is_drawn_is_the_one_that_is_written() {
        for name in ["granite-moe-mini", "kimi-linear-mini"] {
            let config = shape(name).unwrap();
            let architecture = Architecture::of(&config).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let options = SynthOptions { seed: 11, ..SynthOptions::default() };
            synth(config, folder.path(), &options).unwrap();
            let written = Checkpoint::open(folder.path()).unwrap();
            let drawn = Checkpoint::random(&architecture, 11);
            assert_eq!(drawn.bytes(), written.bytes());
            for param in architecture.params.iter() {
                let read =
                    |from: &Checkpoint| from.read::<f32>(&param.name, 0, param.len()).unwrap();
                assert_eq!(read(&drawn), read(&written), "{}", param.name);
            }
            assert!(drawn.read::<bf16>("model.norm.weight", 60, 5).is_err());
            assert!(drawn.read::<bf16>("model.norm.bias", 0, 1).is_err());
        }
    }
}
