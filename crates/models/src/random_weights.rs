//! Random weights, generated rather than read: any range of any tensor, in any order, with the same values each time.

use crate::Architecture;
use crate::float8::Scales;
use crate::group_quant::{self, IntegerSource, Integers};
use crate::mxfp4::TWICE;
use crate::params::{Param, ParamInit};
use crate::random::mix;
use crate::values::Value;
use architectures::{Fp8, GroupQuantization, StorageFormat};
use half::bf16;
use ops::{DType, E4m3};
use safetensors::tensor::Dtype;
use std::collections::HashMap;
use std::sync::Arc;

/// Upper bound of a sum of four 16-bit values.
const SUMS: usize = 4 << 16;

/// All values of a normal distribution with one standard deviation, indexed by the sum that selects them. There are far
/// fewer of them than weights, so that drawing is a table lookup.
type Normals = Arc<[bf16]>;

/// Tables generated so far: of normal distributions by the bits of their deviation, of float8, and of integers by their
/// number of bits, with E2M1 at 0.
#[derive(Debug, Default)]
pub(crate) struct Tables(HashMap<u64, Normals>, Option<Arc<[E4m3]>>, HashMap<usize, Arc<[i8]>>);

/// Standard deviation of float8 values; the largest drawn value, 2 sqrt(3) times as large, is within the range.
const DEVIATION: f64 = 100.0;

impl Tables {
    fn of(&mut self, deviation: f64) -> Normals {
        let table = || (0..SUMS).map(|sum| bf16::from_f64(normal(sum, deviation))).collect();
        self.0.entry(deviation.to_bits()).or_insert_with(table).clone()
    }

    fn float8(&mut self) -> Arc<[E4m3]> {
        let number = |sum| E4m3::from_f32(normal(sum, DEVIATION) as f32);
        self.1.get_or_insert_with(|| (0..SUMS).map(number).collect()).clone()
    }

    /// Twice the E2M1 value nearest to each draw.
    fn e2m1(&mut self) -> Arc<[i8]> {
        let number = |sum| {
            let drawn = normal(sum, E2M1_DEVIATION);
            let off = |of: &&i8| (drawn - f64::from(**of)).abs();
            TWICE.iter().min_by(|a, b| off(a).total_cmp(&off(b))).copied().unwrap_or(0)
        };
        self.2.entry(0).or_insert_with(|| (0..SUMS).map(number).collect()).clone()
    }

    fn integers(&mut self, bits: usize) -> Arc<[i8]> {
        let (low, high) = (-f64::from(1 << (bits - 1)), f64::from((1 << (bits - 1)) - 1));
        let number =
            |sum| normal(sum, whole_deviation(bits)).round_ties_even().clamp(low, high) as i8;
        self.2.entry(bits).or_insert_with(|| (0..SUMS).map(number).collect()).clone()
    }
}

/// The deviation whose largest draw is 12.
const E2M1_DEVIATION: f64 = 3.46;

/// The deviation of integers of `bits` bits; few draws have to be clipped.
fn whole_deviation(bits: usize) -> f64 {
    f64::from(1 << bits) / 6.5
}

/// Values, scales and zero points of a random integer weight.
#[derive(Debug)]
pub(crate) struct RandomIntegers {
    seed: u64,
    table: Arc<[i8]>,
    /// The mean of the scales.
    scale: f64,
    zeros: bool,
    /// Exponent of the middle scale if scales are powers of two.
    power: Option<i32>,
}

impl RandomIntegers {
    /// Values starting at `first`.
    pub(crate) fn numbers(&self, first: usize, into: &mut [i8]) {
        let drawn = (first..).map(|at| mix(self.seed.wrapping_add(at as u64)));
        into.iter_mut().zip(drawn).for_each(|(to, bits)| *to = self.table[sum(bits)]);
    }

    /// A scale that is exact in bfloat16. Scales differ by two thirds; powers of two by a factor of four.
    pub(crate) fn scale(&self, at: usize) -> f32 {
        if let Some(power) = self.power {
            return 2f32.powi(power + (mix(!self.seed ^ at as u64) % 3) as i32 - 1);
        }
        let part = mix(!self.seed ^ at as u64) as f64 / u64::MAX as f64;
        bf16::from_f64((0.75 + 0.5 * part) * self.scale).to_f32()
    }

    /// A zero point from -3 to 3; 0 for formats without zero points.
    pub(crate) fn zero(&self, at: usize) -> i8 {
        if self.zeros { (mix(self.seed ^ !(at as u64)) % 7) as i8 - 3 } else { 0 }
    }
}

/// A tensor of a random model.
#[derive(Debug)]
pub(crate) struct RandomTensor {
    seed: u64,
    len: usize,
    draw: ParamInit,
    normals: Option<Normals>,
    /// Float8 values by the sums that select them, and scales.
    float8: Option<(Arc<[E4m3]>, Scales)>,
    integers: Option<Integers>,
}

impl RandomTensor {
    /// Values depend on the tensor's name, so that layers can be removed without changing the others.
    pub(crate) fn new(param: &Param, seed: u64, tables: &mut Tables) -> Self {
        let normals = match param.draw {
            ParamInit::Normal(deviation) => Some(tables.of(deviation)),
            _ => None,
        };
        let seed = param.name.bytes().fold(seed, |seed, byte| mix(seed ^ u64::from(byte)));
        // Scales differ by two thirds, so that a wrong scale gives a wrong weight.
        let scale = |deviation: f64, at: usize| {
            let part = mix(!seed ^ at as u64) as f64 / u64::MAX as f64;
            ((0.75 + 0.5 * part) * deviation / DEVIATION) as f32
        };
        let float8 = match (param.stored, param.draw) {
            (StorageFormat::Fp8(Fp8 { scales, .. }), ParamInit::Normal(deviation)) => {
                let scales = Scales::drawn(param, scales, |at| scale(deviation, at));
                Some((tables.float8(), scales))
            }
            _ => None,
        };
        let integers = match (param.stored, param.draw) {
            (StorageFormat::Int(int), ParamInit::Normal(deviation)) => {
                Some(draw_integers(param, int, seed, (tables, deviation)))
            }
            _ => None,
        };
        Self { seed, len: param.len(), draw: param.draw, normals, float8, integers }
    }

    /// Its integer format; `None` for other types.
    pub(crate) fn integers(&self) -> Option<&Integers> {
        self.integers.as_ref()
    }

    /// Its type in a checkpoint.
    pub(crate) fn dtype(&self) -> Dtype {
        match self.float8 {
            Some(_) => Dtype::F8_E4M3,
            None if self.draw.keeps_float32() => Dtype::F32,
            None => Dtype::BF16,
        }
    }

    /// Its size in a checkpoint: float8 without scales, integers with all their tensors in compressed-tensors' format.
    pub(crate) fn bytes(&self) -> usize {
        if let Some(of) = self.integers.as_ref().filter(|of| of.float) {
            return self.len / 2 + of.rows * of.groups();
        }
        if let Some(of) = &self.integers {
            return group_quant::packed(of)
                .iter()
                .map(|(_, dtype, shape)| shape.iter().product::<usize>() * dtype.bitsize() / 8)
                .sum();
        }
        self.len * self.dtype().bitsize() / 8
    }

    /// Scales of a float8 tensor.
    pub(crate) fn scales(&self) -> Option<&Scales> {
        self.float8.as_ref().map(|(_, scales)| scales)
    }

    /// Writes float8 values without scales.
    pub(crate) fn fill_float8(&self, first: usize, into: &mut [u8]) {
        let Some((numbers, _)) = &self.float8 else { return };
        let drawn = (first..).map(|at| mix(self.seed.wrapping_add(at as u64)));
        into.iter_mut().zip(drawn).for_each(|(to, bits)| *to = numbers[sum(bits)].to_bits());
    }

    /// Number of its values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Fills a slice with values starting at `first`; `false` if the tensor has too few.
    pub(crate) fn fill<V: Value>(&self, first: usize, into: &mut [V]) -> bool {
        if first.checked_add(into.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        let drawn = (first..).map(|at| mix(self.seed.wrapping_add(at as u64)));
        if let Some((numbers, scales)) = &self.float8 {
            scales.each(first, into.len(), |scale, run| {
                let drawn = (first + run.start..).map(|at| mix(self.seed.wrapping_add(at as u64)));
                let numbers = drawn.map(|bits| V::of_f32(numbers[sum(bits)].to_f32() * scale));
                into[run].iter_mut().zip(numbers).for_each(|(to, number)| *to = number);
            });
            return true;
        }
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

/// Random integers. The order of columns in groups makes no difference for random values: they are sorted.
fn draw_integers(
    param: &Param,
    int: GroupQuantization,
    seed: u64,
    (tables, deviation): (&mut Tables, f64),
) -> Integers {
    let ([rows, columns], zeros) = (param.sides(), !int.symmetric);
    let drawn = match int.is_float() {
        true => {
            let scale = deviation / (E2M1_DEVIATION * 1.1);
            let power = Some(scale.log2().round() as i32);
            RandomIntegers { seed, table: tables.e2m1(), scale, zeros, power }
        }
        false => {
            let (table, scale) = (tables.integers(int.bits), deviation / whole_deviation(int.bits));
            RandomIntegers { seed, table, scale, zeros, power: None }
        }
    };
    Integers {
        bits: int.bits,
        float: int.is_float(),
        shape: param.shape.clone(),
        rows,
        columns,
        group: int.group.unwrap_or(columns).min(columns),
        zeros,
        order: None,
        groups_of: None,
        scale_type: DType::Bf16,
        held: IntegerSource::Random(drawn),
    }
}

/// All tensors of a random model.
#[derive(Debug)]
pub(crate) struct RandomModel {
    tensors: HashMap<String, RandomTensor>,
}

impl RandomModel {
    pub(crate) fn new(architecture: &Architecture, seed: u64) -> Self {
        let mut tables = Tables::default();
        let drawn =
            |param: &Param| (param.name.clone(), RandomTensor::new(param, seed, &mut tables));
        Self { tensors: architecture.params.iter().map(drawn).collect() }
    }

    /// A tensor by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&RandomTensor> {
        self.tensors.get(name)
    }

    /// Values of all tensors.
    pub(crate) fn parameters(&self) -> u64 {
        self.tensors.values().map(|drawn| drawn.len() as u64).sum()
    }

    /// Size of its tensors in files.
    pub(crate) fn bytes(&self) -> u64 {
        let scales =
            |drawn: &RandomTensor| drawn.scales().map_or(0, |scales| 4 * scales.values().len());
        self.tensors.values().map(|drawn| (drawn.bytes() + scales(drawn)) as u64).sum()
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
fn value(draw: ParamInit, bits: u64) -> f64 {
    let between =
        |low: f64, high: f64| low + (high - low) * (bits >> 11) as f64 / (1u64 << 53) as f64;
    match draw {
        ParamInit::Normal(deviation) => normal(sum(bits), deviation),
        ParamInit::Uniform(low, high) => between(low, high),
        ParamInit::DecayRate => between(1.0, 16.0).ln(),
        ParamInit::StepBias => between(-9.0, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{ExpandedBy, MatrixLayout};
    use crate::{Architecture, Checkpoint, SynthOptions, shape, synth};

    /// A normal draw by its definition: the sum of four uniform values.
    fn defined(deviation: f64, bits: u64) -> bf16 {
        let parts = [0, 16, 32, 48].map(|shift| (bits >> shift & 0xffff) as f64 / 65_536.0);
        bf16::from_f64((parts.iter().sum::<f64>() - 2.0) * 3f64.sqrt() * deviation)
    }

    #[test]
    fn table_lookup_matches_the_definition() {
        for deviation in [0.02, (2304f64).powf(-0.5), 1.0] {
            let draw = ParamInit::Normal(deviation);
            let (name, shape, stored) = ("w".to_owned(), vec![300, 400], StorageFormat::Wide);
            let (layout, expanded, of_experts) =
                (MatrixLayout::default(), ExpandedBy::Nowhere, false);
            let param =
                Param { name, shape, cut: None, layout, draw, stored, expanded, of_experts };
            let drawn = RandomTensor::new(&param, 5, &mut Tables::default());
            let seed = mix(5 ^ u64::from(b'w'));
            let want: Vec<bf16> =
                (0..120_000).map(|at| defined(deviation, mix(seed.wrapping_add(at)))).collect();
            let mut all = vec![bf16::ZERO; 120_000];
            assert!(drawn.fill(0, &mut all));
            assert_eq!(all, want);
            // Every range gives the same values.
            let mut some = [bf16::ZERO; 33];
            assert!(drawn.fill(77_777, &mut some));
            assert_eq!(some, want[77_777..77_810]);
            assert!(!drawn.fill(119_990, &mut some));
        }
        assert_eq!(sum(u64::MAX), SUMS - 4);
    }

    #[test]
    fn random_model_equals_the_written_one() {
        let quantised = serde_json::json!({ "quant_method": "mxfp4" });
        let packed = shape("gpt-oss-mini").unwrap().with("quantization_config", quantised);
        let wide =
            ["granite-moe-mini", "kimi-linear-mini", "gpt-oss-mini"].map(|of| shape(of).unwrap());
        for config in wide.into_iter().chain([packed]) {
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
