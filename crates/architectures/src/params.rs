//! Parameters of a model: names in the checkpoint, shapes, and distributions of random values.

mod matrix_layout;
mod slice;

use crate::tensor_names::TensorShapes;
use crate::{Fp8, GroupQuantization, Packing, StorageFormat, UnexpandedWeights};
pub use matrix_layout::{HeadPairs, MatrixLayout};
pub use slice::TensorSlice;
use std::ops::Range;

/// A parameter of an [`crate::Architecture`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParamId(usize);

impl ParamId {
    /// The ids of a range.
    pub(crate) fn within(range: Range<Self>) -> impl Iterator<Item = Self> {
        (range.start.0..range.end.0).map(Self)
    }
}

/// One tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its shape; for a rank, that of its part.
    pub shape: Vec<usize>,
    /// The part of the checkpoint's tensor; `None` for all of it.
    pub cut: Option<TensorSlice>,
    /// Its layout in the checkpoint.
    pub layout: MatrixLayout,
    /// The distribution of its random values.
    pub draw: ParamInit,
    /// Its storage format in the checkpoint, as far as the config says.
    pub stored: StorageFormat,
    /// Which engines expand it although it is quantized.
    pub expanded: ExpandedBy,
    /// Whether expert kernels read it, for which scales and zero points are float32 on GPUs as well.
    pub of_experts: bool,
}

/// Which engines expand a quantized parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpandedBy {
    /// None that has kernels for its format.
    Nowhere,
    /// GPU engines.
    OnGpus,
    /// All.
    Everywhere,
}

impl Param {
    /// Number of values, saturating: a config may contain any numbers.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |all, side| all.saturating_mul(*side))
    }

    /// Rows of all matrices together, and columns.
    pub fn sides(&self) -> [usize; 2] {
        let columns = self.shape.last().copied().unwrap_or(1);
        [self.len().checked_div(columns).unwrap_or(0), columns]
    }

    /// Whether an engine with this policy keeps it as stored.
    pub fn is_kept(&self, keeps: UnexpandedWeights) -> bool {
        match (self.stored, keeps) {
            (StorageFormat::Wide, _)
            | (_, UnexpandedWeights::Nothing)
            | (StorageFormat::Fp8(_), UnexpandedWeights::Integers) => false,
            (_, UnexpandedWeights::Projections) => self.expanded == ExpandedBy::Nowhere,
            (StorageFormat::Int(_), UnexpandedWeights::Integers) => {
                self.expanded < ExpandedBy::Everywhere
            }
        }
    }

    /// Its bytes on a device whose unquantized values have `value_bytes` bytes. Scales of float8 are float32. Scales
    /// and zero points of integers are float32 on the CPU, for experts, and if scales are products of two; otherwise
    /// they have 16 and 8 bits. GPUs store MXFP4 as float8 with a scale per row, and widen other 4-bit values that their
    /// kernels do not read.
    pub fn bytes(&self, value_bytes: usize, keeps: UnexpandedWeights) -> u64 {
        let products = matches!(self.stored, StorageFormat::Int(int) if int.has_wide_scales());
        let wide = keeps == UnexpandedWeights::Integers || self.of_experts || products;
        let narrow = match (self.is_kept(keeps), keeps, self.stored) {
            (false, ..) => None,
            (_, UnexpandedWeights::Projections, StorageFormat::Int(int)) if int.is_mxfp4() => {
                Some(int.float8_bytes(self.sides()))
            }
            (_, UnexpandedWeights::Projections, StorageFormat::Int(int)) => {
                let scale_bytes = if wide { [4, 4] } else { [2, 1] };
                Some(int.on_gpus().bytes(self.sides(), scale_bytes))
            }
            _ => self.narrow_bytes(if wide { [4, 4] } else { [2, 1] }),
        };
        narrow.unwrap_or_else(|| (self.len() as u64).saturating_mul(value_bytes as u64))
    }

    /// Its bytes in a checkpoint whose unquantized values have `value_bytes` bytes.
    pub fn stored_bytes(&self, value_bytes: usize) -> u64 {
        let wide = || (self.len() as u64).saturating_mul(value_bytes as u64);
        match self.stored {
            StorageFormat::Int(int) => int.stored_bytes(self.sides()),
            _ => self.narrow_bytes([2, 1]).unwrap_or_else(wide),
        }
    }

    /// Its bytes if it is quantized, with scales and zero points of integers of these sizes.
    fn narrow_bytes(&self, scale_bytes: [usize; 2]) -> Option<u64> {
        let [rows, columns] = self.sides();
        match self.stored {
            StorageFormat::Wide => None,
            StorageFormat::Int(int) => Some(int.bytes([rows, columns], scale_bytes)),
            StorageFormat::Fp8(Fp8 { scales, .. }) => {
                let scales = 4 * scales.count(rows, columns) as u64;
                Some((self.len() as u64).saturating_add(scales))
            }
        }
    }

    /// Marks it as expanded on GPUs if they do not support its format for this number of columns.
    fn note_expanded(&mut self) {
        let columns = self.sides()[1];
        let multiplied = match self.stored {
            StorageFormat::Wide => true,
            // Kernels read such weights in units of 16 bytes per row.
            StorageFormat::Fp8(_) => columns.is_multiple_of(16),
            StorageFormat::Int(int) => int.has_linear_kernel(columns),
        };
        if !multiplied {
            self.expanded = self.expanded.max(ExpandedBy::OnGpus);
        }
    }

    /// Whether it is a matrix that tokens are multiplied by. Engines store everything else in float32: norms,
    /// convolutions, rates.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() > 1 && self.shape[1] > 1 && matches!(self.draw, ParamInit::Normal(_))
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Distribution of random values. Parameters that could be constant (norms of 1, biases of 0) are random too, so that
/// ignoring one gives a wrong result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ParamInit {
    /// Normal with this standard deviation.
    Normal(f64),
    /// Uniform in a range.
    Uniform(f64, f64),
    /// Logarithm of a head's decay rate, for rates from 1 to 16.
    DecayRate,
    /// Bias of a step size before the softplus, from -9 to 1: from nearly no decay to immediate decay.
    StepBias,
}

impl ParamInit {
    /// Whether checkpoints store it in float32 although weights are bfloat16.
    pub fn keeps_float32(self) -> bool {
        matches!(self, Self::DecayRate | Self::StepBias)
    }
}

/// The parameters of a model in the order of declaration.
#[derive(Debug, Clone, Default)]
pub struct Params {
    all: Vec<Param>,
    /// Whether norms multiply by 1 plus their weight, except those declared as plain.
    pub norms_add_one: bool,
    /// The checkpoint's tensors, if the parameters are declared for one.
    tensors: Option<TensorShapes>,
}

impl Params {
    /// No parameters yet; they will be declared under a checkpoint's names.
    pub(crate) fn of(tensors: TensorShapes) -> Self {
        Self { tensors: Some(tensors), ..Self::default() }
    }

    /// The checkpoint's tensors, if the parameters are declared for one.
    pub(crate) fn tensors(&self) -> Option<&TensorShapes> {
        self.tensors.as_ref()
    }

    /// The shape of a checkpoint's tensor, under this name or an equivalent one; `None` without a checkpoint.
    pub(crate) fn shape_of(&self, name: &str) -> Option<&[usize]> {
        let tensors = self.tensors.as_ref()?;
        tensors.shape(&tensors.present_key(name.to_owned()))
    }

    /// Whether the checkpoint has a tensor, under this name or an equivalent one; false without a checkpoint.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.shape_of(name).is_some()
    }

    /// Whether there is a checkpoint without this tensor.
    pub(crate) fn lacks(&self, name: &str) -> bool {
        self.tensors.is_some() && !self.has(name)
    }

    /// Drops the checkpoint's tensors after all parameters are declared.
    pub(crate) fn forget_tensors(&mut self) {
        self.tensors = None;
    }

    /// Adds a parameter, under its published name or the checkpoint's.
    pub(crate) fn add(&mut self, name: String, shape: &[usize], draw: ParamInit) -> ParamId {
        let name = match &self.tensors {
            Some(tensors) => tensors.present_key(name),
            None => name,
        };
        let (shape, stored, layout) =
            (shape.to_vec(), StorageFormat::Wide, MatrixLayout::default());
        let (expanded, of_experts) = (ExpandedBy::Nowhere, false);
        self.all.push(Param { name, shape, cut: None, layout, draw, stored, expanded, of_experts });
        ParamId(self.all.len() - 1)
    }

    /// Sets a parameter's layout in the checkpoint.
    pub(crate) fn set_layout(&mut self, id: ParamId, layout: MatrixLayout) {
        self.all[id.0].layout = layout;
        // Kernels read quantized rows in the file's order.
        if layout.pairs.is_some() {
            self.expand(id, ExpandedBy::Everywhere);
        }
    }

    /// The weight of a norm.
    pub(crate) fn norm(&mut self, name: String, width: usize) -> ParamId {
        let draw = match self.norms_add_one {
            true => ParamInit::Uniform(-0.5, 0.5),
            false => ParamInit::Uniform(0.5, 1.5),
        };
        self.add(name, &[width], draw)
    }

    /// The weight of a norm that never has an offset of 1.
    pub(crate) fn plain_norm(&mut self, name: String, width: usize) -> ParamId {
        self.add(name, &[width], ParamInit::Uniform(0.5, 1.5))
    }

    /// A projection `[outputs, inputs]` with a distribution that preserves the magnitude of its input.
    pub(crate) fn projection(&mut self, name: String, outputs: usize, inputs: usize) -> Projection {
        let id = self.add(name, &[outputs, inputs], fan_in(inputs));
        Projection::of(RowRange { param: id, first: 0, count: outputs }, inputs)
    }

    /// The bias of a projection.
    pub(crate) fn bias(&mut self, name: String, width: usize) -> ParamId {
        self.add(name, &[width], ParamInit::Uniform(-0.2, 0.2))
    }

    /// Biases of stacked projections, `[count, width]`.
    pub(crate) fn biases(&mut self, name: String, shape: [usize; 2]) -> ParamId {
        self.add(name, &shape, ParamInit::Uniform(-0.2, 0.2))
    }

    /// An untied head with transformers' initial distribution, independent of the width: a reduced model's logits then
    /// have about the magnitude of a model with scaled logits.
    pub(crate) fn head(&mut self, vocabulary: usize, hidden: usize) -> Projection {
        let id =
            self.add("lm_head.weight".to_owned(), &[vocabulary, hidden], ParamInit::Normal(0.02));
        Projection::of(RowRange { param: id, first: 0, count: vocabulary }, hidden)
    }

    /// Sets the storage format of each matrix by its name.
    pub(crate) fn store(&mut self, of: impl Fn(&str) -> StorageFormat) {
        let matrices = self.all.iter_mut().filter(|param| param.is_matrix());
        for param in matrices {
            param.stored = of(&param.name);
            param.note_expanded();
            if matches!(
                param.stored,
                StorageFormat::Int(GroupQuantization { packing: Packing::BitsAndBytes, .. })
            ) {
                param.expanded = ExpandedBy::Everywhere;
            }
        }
    }

    /// Sets the minimum set of engines that expand a parameter.
    pub(crate) fn expand(&mut self, id: ParamId, expanded: ExpandedBy) {
        let param = &mut self.all[id.0];
        param.expanded = param.expanded.max(expanded);
    }

    /// Sets whether expert kernels read a parameter.
    pub(crate) fn of_experts(&mut self, id: ParamId, of_experts: bool) {
        self.all[id.0].of_experts = of_experts;
    }

    /// A second reference to a parameter, for another part of it.
    pub(crate) fn again(&mut self, id: ParamId) -> ParamId {
        self.all.push(self.get(id).clone());
        ParamId(self.all.len() - 1)
    }

    /// Reduces a parameter to a part: the dimension that counts its rows, and the last one for columns.
    pub(crate) fn cut(&mut self, id: ParamId, cut: TensorSlice) {
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

/// The distribution that preserves the magnitude of an input of this width.
pub(crate) fn fan_in(inputs: usize) -> ParamInit {
    ParamInit::Normal((inputs as f64).powf(-0.5))
}

/// Consecutive rows of a parameter; all dimensions except the last count as rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRange {
    /// The parameter.
    pub param: ParamId,
    /// The first row.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// A projection `y = x W^T (+ bias)` with rows stacked from parts of parameters: projections of the same x are computed
/// together, whatever their names are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    /// The rows of W, in the order of y.
    pub rows: Vec<RowRange>,
    /// Width of x.
    pub inputs: usize,
    /// Added to y: concatenated vectors, or empty.
    pub bias: Vec<ParamId>,
}

impl Projection {
    /// A projection by consecutive rows of one parameter.
    pub(crate) fn of(rows: RowRange, inputs: usize) -> Self {
        Self { rows: vec![rows], inputs, bias: Vec::new() }
    }

    /// Several projections of the same x as one; all or none have a bias.
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

    /// Gate rows and up rows interleaved in pieces: `piece` gates, their ups, and so on.
    pub fn interleaved_gates_and_ups(&self, piece: usize) -> Vec<RowRange> {
        let half = self.outputs() / 2;
        let pieces = (0..half).step_by(piece).flat_map(|first| {
            let end = half.min(first + piece);
            [first..end, half + first..half + end]
        });
        pieces.flat_map(|range| self.part(range)).collect()
    }

    /// Some rows of W, possibly of several parameters.
    fn part(&self, range: Range<usize>) -> Vec<RowRange> {
        let mut start = 0;
        let mut part = Vec::new();
        for rows in &self.rows {
            let (from, to) = (range.start.max(start), range.end.min(start + rows.count));
            if from < to {
                part.push(RowRange { first: rows.first + from - start, count: to - from, ..*rows });
            }
            start += rows.count;
        }
        part
    }

    /// Rows in another order: pieces given by first row and count.
    pub(crate) fn pieces(&self, of: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let rows = of.into_iter().flat_map(|(first, count)| self.part(first..first + count));
        Self { rows: rows.collect(), ..self.clone() }
    }

    /// Width of y.
    pub fn outputs(&self) -> usize {
        self.rows.iter().map(|rows| rows.count).sum()
    }
}
