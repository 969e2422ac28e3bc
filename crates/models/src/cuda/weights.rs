//! Weights on the GPU: matrices in bfloat16 or, where files hold them so, in float8 or integers; vectors in float32.

pub(super) mod integers;

use super::experts::CudaExperts;
use super::run::Cache;
use super::states::StatePool;
use super::{Cuda, Memory, failed};
use crate::float8::ScalesOf;
use crate::layers::{Experts, GatedMlp};
use crate::pages::{BLOCK, Pages};
use crate::params::{ParamId, Projection, Rows};
use crate::program::{CacheId, Loader, StateId, Values};
use crate::{Architecture, Checkpoint, ModelError};
use architectures::Keeps;
use device::cuda::{Stream, UPLOAD_BYTES, Uploads};
use half::bf16;
use kernels::linear::{LinearCall, SCALED};
use kernels::{DType, Tensor};
use std::ops::Range;

/// Inputs that kernels of projections read at once at least: a word of a row in bfloat16. Narrower weights are expanded to that
/// where rows are not whole words of theirs.
const READ: usize = 2;
/// Those of experts read 16 bytes.
const READ_OF_EXPERTS: usize = 8;

/// The weights of a model, and the memory that goes with them. Weights go from its checkpoint to the GPU while the engine is being
/// made, and are there when uploading ends.
pub(super) struct Weights<'a, 'w> {
    architecture: &'w Architecture,
    checkpoint: &'w Checkpoint,
    pages: &'a Pages,
    stream: &'a Stream,
    uploads: &'a Uploads<'w, ModelError>,
    /// `[vocabulary, hidden]`.
    pub(super) embedding: Tensor,
    /// What layers asked for so far.
    pub(super) memory: Memory,
}

impl<'a, 'w> Weights<'a, 'w> {
    pub(super) fn new(
        (architecture, checkpoint): (&'w Architecture, &'w Checkpoint),
        pages: &'a Pages,
        stream: &'a Stream,
        uploads: &'a Uploads<'w, ModelError>,
    ) -> Result<Self, ModelError> {
        let Architecture { embedding: param, vocabulary, hidden, .. } = *architecture;
        let shape = [vocabulary, hidden];
        let embedding = Tensor::allocate(stream, &shape, DType::Bf16).map_err(failed)?;
        let memory = Memory::default();
        let this = Self { architecture, checkpoint, pages, stream, uploads, embedding, memory };
        let rows = Rows { param, first: 0, count: vocabulary };
        this.matrix_into(&[rows], &Columns::all(hidden), &this.embedding)?;
        Ok(this)
    }

    /// Columns of some rows, to the start of a tensor on the GPU. `fill` makes whole rows in the tensor's type, none of which is as long
    /// as an upload may be.
    fn upload(
        &self,
        rows: Range<usize>,
        columns: &Columns,
        to: &Tensor,
        fill: impl Fn(Range<usize>, &mut [u8]) -> Result<(), ModelError> + Clone + Send + 'w,
    ) -> Result<(), ModelError> {
        let bytes = |values| to.dtype().bytes_of(values);
        let (whole, own) = (bytes(columns.width), bytes(columns.of.start)..bytes(columns.of.end));
        let at_once = (UPLOAD_BYTES / whole.max(1)).max(1);
        for first in rows.clone().step_by(at_once) {
            let some = first..rows.end.min(first + at_once);
            let start = (first - rows.start) * own.len();
            let part = to.on().map_err(failed)?.part(start, some.len() * own.len())?;
            let (own, fill) = (own.clone(), fill.clone());
            self.uploads.give(part, move |into| {
                if own.len() == whole {
                    return fill(some, into);
                }
                let mut rows = vec![0; some.len() * whole];
                fill(some, &mut rows)?;
                let rows = rows.chunks_exact(whole);
                let both = into.chunks_exact_mut(own.len()).zip(rows);
                both.for_each(|(into, row)| into.copy_from_slice(&row[own.clone()]));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// A tensor of undefined content, to be filled.
    pub(super) fn allocate(&self, shape: &[usize], dtype: DType) -> Result<Tensor, ModelError> {
        Tensor::allocate(self.stream, shape, dtype).map_err(failed)
    }

    /// Rows of parameters under each other `[rows, width]`, in bfloat16.
    fn matrix(&self, rows: &[Rows], width: usize) -> Result<Tensor, ModelError> {
        let count: usize = rows.iter().map(|rows| rows.count).sum();
        let to = self.allocate(&[count, width], DType::Bf16)?;
        self.matrix_into(rows, &Columns::all(width), &to)?;
        Ok(to)
    }

    /// The same into a tensor that is there, and some columns alone.
    pub(super) fn matrix_into(
        &self,
        rows: &[Rows],
        columns: &Columns,
        to: &Tensor,
    ) -> Result<(), ModelError> {
        let (mut first, width) = (0, columns.width);
        for rows in rows {
            let part = to.rows(first, rows.count).map_err(failed)?;
            let values = self.checkpoint.param(self.architecture.params.get(rows.param))?;
            let fill = move |rows: Range<usize>, into: &mut [u8]| {
                values.fill_bytes::<bf16>(rows.start * width, into)
            };
            self.upload(rows.first..rows.first + rows.count, columns, &part, fill)?;
            first += rows.count;
        }
        Ok(())
    }

    /// The same as files hold it, in float8, with its scales `[1 or groups, rows]`; none where some rows are otherwise, or are to be
    /// expanded.
    fn float8(&self, rows: &[Rows], width: usize) -> Result<Option<CudaProjection>, ModelError> {
        let Some(scales) = self.scales(rows) else { return Ok(None) };
        let groups = float8_groups(&scales, width);
        let count = rows.iter().map(|rows| rows.count).sum();
        let factors = float8_factors(rows, &scales, groups, 0);
        let factors = self.give(Tensor::new(&[groups, count], factors))?;
        let to = self.allocate(&[count, width], DType::E4m3)?;
        self.float8_into(rows, &Columns::all(width), &to)?;
        Ok(Some(CudaProjection { w_scale: Some(factors), ..CudaProjection::wide(to) }))
    }

    /// Scales of each parameter of which there are rows; none where some is not kept in float8.
    pub(super) fn scales(&self, rows: &[Rows]) -> Option<Vec<ScalesOf<'w>>> {
        let of = |rows: &Rows| {
            let param = self.architecture.params.get(rows.param);
            self.checkpoint.scales(param).filter(|_| param.is_kept(Keeps::Projections))
        };
        rows.iter().map(of).collect()
    }

    /// Columns of rows in float8 under each other, to the start of a tensor that is there.
    pub(super) fn float8_into(
        &self,
        rows: &[Rows],
        columns: &Columns,
        to: &Tensor,
    ) -> Result<(), ModelError> {
        let (mut first, width) = (0, columns.width);
        for rows in rows {
            let part = to.rows(first, rows.count).map_err(failed)?;
            let values = self.checkpoint.param(self.architecture.params.get(rows.param))?;
            let fill = move |rows: Range<usize>, into: &mut [u8]| {
                values.fill_float8(rows.start * width, into)
            };
            self.upload(rows.first..rows.first + rows.count, columns, &part, fill)?;
            first += rows.count;
        }
        Ok(())
    }

    /// Refuses what no kernel multiplies, before a step wants it.
    fn check_inputs(&self, of: &Projection, read: usize) -> Result<(), ModelError> {
        let Some(rows) = of.rows.first().filter(|_| !of.inputs.is_multiple_of(read)) else {
            return Ok(());
        };
        let Projection { inputs, .. } = of;
        let name = &self.architecture.params.get(rows.param).name;
        let what =
            format!("tensor `{name}` has {inputs} inputs, wanted a multiple of {read} on a GPU");
        Err(ModelError::call(what, "the processor multiplies it: --backend cpu"))
    }

    /// The transposes of several groups of rows `[count, width]`, equally many each: `[groups, width, count]`.
    fn transposed(&self, groups: &[Rows], width: usize) -> Result<Tensor, ModelError> {
        let count = groups.first().map_or(0, |rows| rows.count);
        let mut values = Vec::with_capacity(groups.len() * count * width);
        for rows in groups {
            let of = self.checkpoint.param(self.architecture.params.get(rows.param))?;
            let own = of.read::<bf16>(rows.first * width, rows.count * width)?;
            for column in 0..width {
                values.extend((0..count).map(|row| own[row * width + column]));
            }
        }
        let host = Tensor::new(&[groups.len(), width, count], values);
        let to = self.allocate(host.shape(), DType::Bf16)?;
        self.stream.write(to.on().map_err(failed)?, host.bytes())?;
        Ok(to)
    }
}

impl Loader<Cuda> for Weights<'_, '_> {
    fn architecture(&self) -> &Architecture {
        self.architecture
    }

    fn vectors(&self, ids: &[ParamId], shape: &[usize]) -> Result<Tensor, ModelError> {
        let len = |id: &ParamId| self.architecture.params.get(*id).len();
        let to = self.allocate(&[ids.iter().map(len).sum()], DType::F32)?;
        let mut first = 0;
        for id in ids {
            let part = to.rows(first, len(id)).map_err(failed)?;
            let values = self.checkpoint.param(self.architecture.params.get(*id))?;
            let fill = move |rows: Range<usize>, into: &mut [u8]| {
                values.fill_bytes::<f32>(rows.start, into)
            };
            self.upload(0..len(id), &Columns::all(1), &part, fill)?;
            first += len(id);
        }
        to.shaped(shape).map_err(failed)
    }

    fn read(&self, id: ParamId) -> Result<Vec<f32>, ModelError> {
        let param = self.architecture.params.get(id);
        self.checkpoint.param(param)?.read(0, param.len())
    }

    fn give(&self, values: Tensor) -> Result<Tensor, ModelError> {
        let to = self.allocate(values.shape(), values.dtype())?;
        self.stream.write(to.on().map_err(failed)?, values.bytes())?;
        Ok(to)
    }

    fn projection(&self, of: &Projection) -> Result<CudaProjection, ModelError> {
        self.check_inputs(of, READ)?;
        let bias = match of.bias.as_slice() {
            [] => None,
            bias => Some(self.vectors(bias, &[of.outputs()])?),
        };
        let (rows, width) = (&of.rows, of.inputs);
        let made = if let Some(float8) = self.mxfp4(rows, width)? {
            float8
        } else if let Some(integers) = self.integers(rows, width)? {
            integers
        } else if let Some(float8) = self.float8(rows, width)? {
            float8
        } else {
            CudaProjection::wide(self.matrix(rows, width)?)
        };
        Ok(CudaProjection { bias, ..made })
    }

    /// The embedding where they are tied.
    fn head(&self, of: &Projection) -> Result<CudaProjection, ModelError> {
        let name = |id| &self.architecture.params.get(id).name;
        let embedding = name(self.architecture.embedding);
        if of.bias.is_empty() && of.rows.iter().any(|rows| name(rows.param) == embedding) {
            // Of a rank's rows of it, those; of a whole model all.
            let w = self.embedding.rows(self.architecture.first_of_head(), of.outputs());
            return Ok(CudaProjection::wide(w.map_err(failed)?));
        }
        self.projection(of)
    }

    fn gated(&self, of: &Projection) -> Result<CudaProjection, ModelError> {
        self.projection(of)
    }

    fn heads(&self, of: &[Rows], width: usize, transposed: bool) -> Result<Tensor, ModelError> {
        if transposed {
            return self.transposed(of, width);
        }
        let (all, heads) = (self.matrix(of, width)?, of.len());
        all.shaped(&[heads, all.shape()[0] / heads, width]).map_err(failed)
    }

    fn experts(
        &self,
        of: &Experts,
        shared: Option<&GatedMlp>,
    ) -> Result<(CudaExperts, bool), ModelError> {
        for of in of.experts.iter().flat_map(|of| [&of.gate_up, &of.down]) {
            self.check_inputs(of, READ_OF_EXPERTS)?;
        }
        CudaExperts::new(of, shared, self)
    }

    fn states_in(&mut self, dtype: DType, shape: &[usize]) -> Result<StateId, ModelError> {
        let slots = self.pages.sequences();
        let pool = StatePool::new(self.stream, slots, shape, dtype).map_err(failed)?;
        self.memory.states.push(pool);
        Ok(StateId(self.memory.states.len() - 1))
    }

    /// Of zeros: what is read beside a sequence's keys is masked, but a NaN would outlive that.
    fn cache(&mut self, keys: [usize; 2], values: Values) -> Result<CacheId, ModelError> {
        let pool = |[heads, dim]: [usize; 2]| {
            let shape = [self.pages.pooled(), BLOCK, heads, dim];
            Tensor::zeros(self.stream, &shape, DType::Bf16).map_err(failed)
        };
        let (keys, (values, value_dim)) = match values {
            Values::Apart(values) => (pool(keys)?, (Some(pool(values)?), values[1])),
            Values::InKeys(width) => (pool(keys)?, (None, width)),
        };
        self.memory.caches.push(Cache { keys, values, value_dim });
        Ok(CacheId(self.memory.caches.len() - 1))
    }
}

/// Neighbouring columns of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) of: Range<usize>,
    /// Of the whole matrix.
    pub(super) width: usize,
}

impl Columns {
    pub(super) fn all(width: usize) -> Self {
        Self { of: 0..width, width }
    }
}

/// Scales of a row of float8, of rows with these.
pub(super) fn float8_groups(scales: &[ScalesOf<'_>], width: usize) -> usize {
    let whole = scales.iter().all(|scales| scales.is_of_rows());
    if whole { 1 } else { width.div_ceil(SCALED) }
}

/// Scales `[groups, rows]` of rows under each other, of columns from one on.
pub(super) fn float8_factors(
    rows: &[Rows],
    scales: &[ScalesOf<'_>],
    groups: usize,
    first: usize,
) -> Vec<f32> {
    let of_rows = || rows.iter().zip(scales);
    let of_group = |group: usize| {
        let column = first + group * SCALED;
        of_rows()
            .flat_map(move |(rows, scales)| scales.at(rows.first..rows.first + rows.count, column))
    };
    (0..groups).flat_map(of_group).collect()
}

/// `y = x W^T (+ bias)`.
pub(crate) struct CudaProjection {
    /// `[outputs, inputs]`.
    w: Tensor,
    /// Of w in float8 or integers.
    w_scale: Option<Tensor>,
    /// Of w in integers of 4 bits.
    w_zero: Option<Tensor>,
    /// Of those whose zero points are no whole numbers, in their place.
    w_offset: Option<Tensor>,
    /// Columns that have a scale of their own.
    w_group: usize,
    bias: Option<Tensor>,
}

impl CudaProjection {
    /// By weights as they are multiplied, without a bias.
    fn wide(w: Tensor) -> Self {
        Self { w, w_scale: None, w_zero: None, w_offset: None, w_group: SCALED, bias: None }
    }

    /// By weights as files hold them, in so large groups.
    pub(super) fn narrow(
        w: Tensor,
        [w_scale, w_zero]: [Option<Tensor>; 2],
        w_group: usize,
    ) -> Self {
        Self { w_scale, w_zero, w_group, ..Self::wide(w) }
    }

    /// A call that projects x.
    pub(super) fn of<'a>(&'a self, x: &'a Tensor) -> LinearCall<'a> {
        let Self { w, w_scale, w_zero, w_offset, w_group, bias } = self;
        let [w_scale, w_zero] = [w_scale, w_zero].map(Option::as_ref);
        let [w_offset, bias] = [w_offset, bias].map(Option::as_ref);
        let w_group = *w_group;
        LinearCall { w_scale, w_zero, w_offset, w_group, bias, ..LinearCall::new(x, w) }
    }

    /// Width of y.
    pub(super) fn outputs(&self) -> usize {
        self.w.shape()[0]
    }
}
