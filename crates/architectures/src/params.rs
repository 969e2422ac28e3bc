//! The parameters of a model: names in the checkpoint, shapes, and how a random model draws them.

mod cut;
mod lie;

use crate::tensor_names::TensorShapes;
use crate::{Fp8, Int, Keeps, Packing, Stored};
pub use cut::Cut;
pub use lie::Lie;
use std::ops::Range;

/// A parameter of an [`crate::Architecture`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParamId(usize);

impl ParamId {
    /// Those that were added from one on, up to another.
    pub(crate) fn within(range: Range<Self>) -> impl Iterator<Item = Self> {
        (range.start.0..range.end.0).map(Self)
    }
}

/// One tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its shape; that of the part which a rank has.
    pub shape: Vec<usize>,
    /// Which part of the checkpoint's tensor it is; none: all of it.
    pub cut: Option<Cut>,
    /// How its checkpoint lays it.
    pub lie: Lie,
    /// How a random model draws it.
    pub draw: Draw,
    /// How its checkpoint stores it, as far as the config says.
    pub stored: Stored,
    /// Which engines expand it though it is stored narrower.
    pub expanded: Expanded,
    /// Whether it is multiplied as experts are, whose scales and zero points are float32 on GPUs too.
    pub of_experts: bool,
}

/// Which engines expand a parameter that is stored narrower than what it is multiplied as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expanded {
    /// None that has kernels for such weights.
    Nowhere,
    /// Those on GPUs.
    OnGpus,
    /// All.
    Everywhere,
}

impl Param {
    /// Number of values. A config's numbers are anybody's: their product stops at the largest.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |all, side| all.saturating_mul(*side))
    }

    /// Rows, of all its matrices, and columns.
    pub fn sides(&self) -> [usize; 2] {
        let columns = self.shape.last().copied().unwrap_or(1);
        [self.len().checked_div(columns).unwrap_or(0), columns]
    }

    /// Whether an engine that keeps so much keeps it as it is stored.
    pub fn is_kept(&self, keeps: Keeps) -> bool {
        match (self.stored, keeps) {
            (Stored::Wide, _) | (_, Keeps::Nothing) | (Stored::Fp8(_), Keeps::Integers) => false,
            (_, Keeps::Projections) => self.expanded == Expanded::Nowhere,
            (Stored::Int(_), Keeps::Integers) => self.expanded < Expanded::Everywhere,
        }
    }

    /// Its bytes where a value in a type of 16 or 32 bits has so many. Scales of float8 are float32; those of integers are, and their zero
    /// points, where the processor keeps them, in experts and where scales are products of two, and elsewhere have 16 bits, and 8. GPUs
    /// keep numbers of MXFP4 in float8, with a scale a row.
    pub fn bytes(&self, value_bytes: usize, keeps: Keeps) -> u64 {
        let products = matches!(self.stored, Stored::Int(int) if int.has_wide_scales());
        let wide = keeps == Keeps::Integers || self.of_experts || products;
        let narrow = match (self.is_kept(keeps), keeps, self.stored) {
            (false, ..) => None,
            (_, Keeps::Projections, Stored::Int(int)) if int.is_float() => {
                Some(int.float8_bytes(self.sides()))
            }
            _ => self.narrow_bytes(if wide { [4, 4] } else { [2, 1] }),
        };
        narrow.unwrap_or_else(|| (self.len() as u64).saturating_mul(value_bytes as u64))
    }

    /// Its bytes in a checkpoint whose values in a type of 16 or 32 bits have so many.
    pub fn stored_bytes(&self, value_bytes: usize) -> u64 {
        let wide = || (self.len() as u64).saturating_mul(value_bytes as u64);
        match self.stored {
            Stored::Int(int) => int.stored_bytes(self.sides()),
            _ => self.narrow_bytes([2, 1]).unwrap_or_else(wide),
        }
    }

    /// Its bytes as it is stored where that is narrower, with scales and zero points of integers of so many bytes.
    fn narrow_bytes(&self, factor_bytes: [usize; 2]) -> Option<u64> {
        let [rows, columns] = self.sides();
        match self.stored {
            Stored::Wide => None,
            Stored::Int(int) => Some(int.bytes([rows, columns], factor_bytes)),
            Stored::Fp8(Fp8 { scales, .. }) => {
                let scales = 4 * scales.count(rows, columns) as u64;
                Some((self.len() as u64).saturating_add(scales))
            }
        }
    }

    /// Notes that GPUs expand it where they do not multiply what is stored so narrow in so few columns.
    fn note_expanded(&mut self) {
        let columns = self.sides()[1];
        let multiplied = match self.stored {
            Stored::Wide => true,
            // Kernels read such weights by 16 bytes of a row.
            Stored::Fp8(_) => columns.is_multiple_of(16),
            Stored::Int(int) => int.is_multiplied(columns),
        };
        if !multiplied {
            self.expanded = self.expanded.max(Expanded::OnGpus);
        }
    }

    /// Whether it is a matrix that tokens are multiplied by. Engines keep all else in float32: norms, convolutions, rates.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() > 1 && self.shape[1] > 1 && matches!(self.draw, Draw::Normal(_))
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a random model draws a parameter. What every value could be the same in (norms of 1, biases of 0) is drawn from a
/// range, so that a forward pass which forgot it is a wrong one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Draw {
    /// Normal with this standard deviation.
    Normal(f64),
    /// Uniform between two ends.
    Uniform(f64, f64),
    /// The logarithm of a head's decay rate, a rate from 1 to 16.
    DecayRate,
    /// What is added to a step size before the softplus, from -9 to 1: one head hardly forgets, another at once.
    StepBias,
}

impl Draw {
    /// Whether checkpoints keep it in float32 beside bfloat16 weights.
    pub fn keeps_float32(self) -> bool {
        matches!(self, Self::DecayRate | Self::StepBias)
    }
}

/// The parameters of a model in the order their layers were made.
#[derive(Debug, Clone, Default)]
pub struct Params {
    all: Vec<Param>,
    /// Whether norms multiply by 1 plus their weight, but for those that are declared as plain.
    pub norms_add_one: bool,
    /// The tensors of the checkpoint that the parameters are declared for.
    tensors: Option<TensorShapes>,
}

impl Params {
    /// None yet, to be declared under the names that a checkpoint has.
    pub(crate) fn of(tensors: TensorShapes) -> Self {
        Self { tensors: Some(tensors), ..Self::default() }
    }

    /// The tensors of the checkpoint that the parameters are declared for, where there is one.
    pub(crate) fn tensors(&self) -> Option<&TensorShapes> {
        self.tensors.as_ref()
    }

    /// Forgets the checkpoint: all parameters are declared.
    pub(crate) fn forget_tensors(&mut self) {
        self.tensors = None;
    }

    /// Adds a parameter, under its published name or what the checkpoint calls it.
    pub(crate) fn add(&mut self, name: String, shape: &[usize], draw: Draw) -> ParamId {
        let name = match &self.tensors {
            Some(tensors) => tensors.spelled(name),
            None => name,
        };
        let (shape, stored, lie) = (shape.to_vec(), Stored::Wide, Lie::default());
        let (expanded, of_experts) = (Expanded::Nowhere, false);
        self.all.push(Param { name, shape, cut: None, lie, draw, stored, expanded, of_experts });
        ParamId(self.all.len() - 1)
    }

    /// Says how the checkpoint lays a parameter.
    pub(crate) fn lay(&mut self, id: ParamId, lie: Lie) {
        self.all[id.0].lie = lie;
    }

    /// The weight of a norm.
    pub(crate) fn norm(&mut self, name: String, width: usize) -> ParamId {
        let draw = match self.norms_add_one {
            true => Draw::Uniform(-0.5, 0.5),
            false => Draw::Uniform(0.5, 1.5),
        };
        self.add(name, &[width], draw)
    }

    /// The weight of a norm that is multiplied as it is, in whatever model.
    pub(crate) fn plain_norm(&mut self, name: String, width: usize) -> ParamId {
        self.add(name, &[width], Draw::Uniform(0.5, 1.5))
    }

    /// A projection `[outputs, inputs]`, drawn so that what it makes is as large as what it takes.
    pub(crate) fn projection(&mut self, name: String, outputs: usize, inputs: usize) -> Projection {
        let id = self.add(name, &[outputs, inputs], fan_in(inputs));
        Projection::of(Rows { param: id, first: 0, count: outputs }, inputs)
    }

    /// The bias of a projection.
    pub(crate) fn bias(&mut self, name: String, width: usize) -> ParamId {
        self.add(name, &[width], Draw::Uniform(-0.2, 0.2))
    }

    /// The biases of projections that are stacked, `[count, width]`.
    pub(crate) fn biases(&mut self, name: String, shape: [usize; 2]) -> ParamId {
        self.add(name, &shape, Draw::Uniform(-0.2, 0.2))
    }

    /// A head of its own, drawn as transformers initialises it, whatever the width: a reduced model's logits are then
    /// about as large as those of one whose logits are scaled down.
    pub(crate) fn head(&mut self, vocabulary: usize, hidden: usize) -> Projection {
        let id = self.add("lm_head.weight".to_owned(), &[vocabulary, hidden], Draw::Normal(0.02));
        Projection::of(Rows { param: id, first: 0, count: vocabulary }, hidden)
    }

    /// Says of each matrix how it is stored, by its name.
    pub(crate) fn store(&mut self, of: impl Fn(&str) -> Stored) {
        let matrices = self.all.iter_mut().filter(|param| param.is_matrix());
        for param in matrices {
            param.stored = of(&param.name);
            param.note_expanded();
            if matches!(param.stored, Stored::Int(Int { packing: Packing::LookedUp, .. })) {
                param.expanded = Expanded::Everywhere;
            }
        }
    }

    /// Says which engines expand a parameter at least.
    pub(crate) fn expand(&mut self, id: ParamId, expanded: Expanded) {
        let param = &mut self.all[id.0];
        param.expanded = param.expanded.max(expanded);
    }

    /// Says whether a parameter is multiplied as experts are.
    pub(crate) fn of_experts(&mut self, id: ParamId, of_experts: bool) {
        self.all[id.0].of_experts = of_experts;
    }

    /// The same parameter once more, to be cut otherwise.
    pub(crate) fn again(&mut self, id: ParamId) -> ParamId {
        self.all.push(self.get(id).clone());
        ParamId(self.all.len() - 1)
    }

    /// Leaves a part of a parameter: the dimension that counts its rows becomes smaller, and the last one with columns.
    pub(crate) fn cut(&mut self, id: ParamId, cut: Cut) {
        let param = &mut self.all[id.0];
        let Param { shape, cut: own, .. } = param;
        let [rows, columns] = cut.sides();
        if let Some((last, by_row)) =
            shape.split_last_mut().filter(|(_, by_row)| !by_row.is_empty())
        {
            let counts = by_row.iter().position(|side| *side > 1).unwrap_or(0);
            let inner: usize = by_row[counts + 1..].iter().product();
            by_row[counts] = rows / inner.max(1);
            *last = (*last).min(columns);
        } else {
            *shape = vec![rows * columns];
        }
        *own = Some(cut);
        param.note_expanded();
    }

    /// The parameter of an id.
    pub fn get(&self, id: ParamId) -> &Param {
        &self.all[id.0]
    }

    /// Every parameter, with its id.
    pub(crate) fn with_ids(&self) -> impl Iterator<Item = (ParamId, &Param)> {
        self.all.iter().enumerate().map(|(at, param)| (ParamId(at), param))
    }

    /// Every parameter.
    pub fn iter(&self) -> impl Iterator<Item = &Param> {
        self.all.iter()
    }

    /// Number of values of all parameters.
    pub fn count(&self) -> u64 {
        self.all.iter().fold(0, |all, param| all.saturating_add(param.len() as u64))
    }
}

/// A draw that keeps the size of what a projection of this width takes.
pub(crate) fn fan_in(inputs: usize) -> Draw {
    Draw::Normal((inputs as f64).powf(-0.5))
}

/// Neighbouring rows of a parameter, all but whose last dimension count as rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// The parameter.
    pub param: ParamId,
    /// The first row.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// A projection `y = x W^T (+ bias)`, its rows stacked from parts of parameters: what reads the same x is read in one
/// pass, whatever the checkpoint calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    /// The rows of W, in the order of y.
    pub rows: Vec<Rows>,
    /// Width of x.
    pub inputs: usize,
    /// Added to y: vectors one behind the other, or none.
    pub bias: Vec<ParamId>,
}

impl Projection {
    /// A projection by neighbouring rows of one parameter.
    pub(crate) fn of(rows: Rows, inputs: usize) -> Self {
        Self { rows: vec![rows], inputs, bias: Vec::new() }
    }

    /// Several projections of the same x as one, all with a bias or all without.
    pub(crate) fn stacked(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut parts = parts.into_iter();
        let mut all =
            parts.next().unwrap_or(Self { rows: Vec::new(), inputs: 0, bias: Vec::new() });
        for part in parts {
            all.rows.extend(part.rows);
            all.bias.extend(part.bias);
        }
        all
    }

    /// The rows of gates and of as many ups behind them, in pieces: so many gates, their ups, and so on.
    pub fn gates_beside_ups(&self, piece: usize) -> Vec<Rows> {
        let half = self.outputs() / 2;
        let pieces = (0..half).step_by(piece).flat_map(|first| {
            let end = half.min(first + piece);
            [first..end, half + first..half + end]
        });
        pieces.flat_map(|range| self.part(range)).collect()
    }

    /// Some rows of W, which may lie in several parameters.
    fn part(&self, range: Range<usize>) -> Vec<Rows> {
        let mut start = 0;
        let mut part = Vec::new();
        for rows in &self.rows {
            let (from, to) = (range.start.max(start), range.end.min(start + rows.count));
            if from < to {
                part.push(Rows { first: rows.first + from - start, count: to - from, ..*rows });
            }
            start += rows.count;
        }
        part
    }

    /// Rows in another order: pieces of so many rows from a first one on.
    pub(crate) fn pieces(&self, of: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let rows = of.into_iter().flat_map(|(first, count)| self.part(first..first + count));
        Self { rows: rows.collect(), ..self.clone() }
    }

    /// Width of y.
    pub fn outputs(&self) -> usize {
        self.rows.iter().map(|rows| rows.count).sum()
    }
}
