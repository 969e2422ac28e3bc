//! Weights on the GPU: matrices in bfloat16, or in float8 or integers as in the file; vectors in float32.

pub(super) mod integers;

use super::experts::CudaExperts;
use super::run::Cache;
use super::states::StatePool;
use super::{Cuda, Memory, failed};
use crate::float8::ScalesOf;
use crate::layers::{Experts, GatedMlp};
use crate::pages::{BLOCK, Pages};
use crate::params::{ParamId, Projection, RowRange};
use crate::program::{CacheId, Loader, StateId, Values};
use crate::{Architecture, Checkpoint, ModelError};
use architectures::UnexpandedWeights;
use device::cuda::{Stream, UPLOAD_BYTES, Uploader};
use half::bf16;
use ops::linear::{LinearCall, SCALED};
use ops::{DType, Tensor};
use std::ops::Range;

/// Minimum inputs that GEMM kernels read at once: one 32-bit word of a bfloat16 row. Quantized weights are expanded to
/// bfloat16 if their rows are not whole words.
const READ: usize = 2;
/// Minimum inputs for expert kernels: 16 bytes.
const READ_OF_EXPERTS: usize = 8;

/// Loads a model's weights from its checkpoint to the GPU and allocates the memory of its layers. Copies run while the
/// engine is built and are complete when uploading ends.
pub(super) struct Weights<'a, 'w> {
    architecture: &'w Architecture,
    checkpoint: &'w Checkpoint,
    pages: &'a Pages,
    stream: &'a Stream,
    uploads: &'a Uploader<'w, ModelError>,
    /// `[vocabulary, hidden]`.
    pub(super) embedding: Tensor,
    /// Memory that layers have requested so far.
    pub(super) memory: Memory,
}

impl<'a, 'w> Weights<'a, 'w> {
    pub(super) fn new(
        (architecture, checkpoint): (&'w Architecture, &'w Checkpoint),
        pages: &'a Pages,
        stream: &'a Stream,
        uploads: &'a Uploader<'w, ModelError>,
    ) -> Result<Self, ModelError> {
        let Architecture { embedding: param, vocabulary, hidden, .. } = *architecture;
        let shape = [vocabulary, hidden];
        let embedding = Tensor::allocate(stream, &shape, DType::Bf16).map_err(failed)?;
        let memory = Memory::default();
        let this = Self { architecture, checkpoint, pages, stream, uploads, embedding, memory };
        let rows = RowRange { param, first: 0, count: vocabulary };
        this.matrix_into(&[rows], &Columns::all(hidden), &this.embedding)?;
        Ok(this)
    }

    /// Uploads a column range of some rows to the start of a tensor. `fill` makes whole rows in the tensor's type; a
    /// row fits in one upload.
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
            self.uploads.submit(part, move |into| {
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

    /// An uninitialized tensor.
    pub(super) fn allocate(&self, shape: &[usize], dtype: DType) -> Result<Tensor, ModelError> {
        Tensor::allocate(self.stream, shape, dtype).map_err(failed)
    }

    /// Concatenated rows of parameters `[rows, width]` in bfloat16.
    fn matrix(&self, rows: &[RowRange], width: usize) -> Result<Tensor, ModelError> {
        let count: usize = rows.iter().map(|rows| rows.count).sum();
        let to = self.allocate(&[count, width], DType::Bf16)?;
        self.matrix_into(rows, &Columns::all(width), &to)?;
        Ok(to)
    }

    /// [`Self::matrix`] into an existing tensor, for a column range.
    pub(super) fn matrix_into(
        &self,
        rows: &[RowRange],
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

    /// Float8 rows as in the file, with scales `[1 or groups, rows]`; `None` if some rows have another format or must
    /// be expanded.
    fn float8(
        &self,
        rows: &[RowRange],
        width: usize,
    ) -> Result<Option<CudaProjection>, ModelError> {
        let Some(scales) = self.scales(rows) else { return Ok(None) };
        let groups = float8_groups(&scales, width);
        let count = rows.iter().map(|rows| rows.count).sum();
        let row_scales = float8_scales(rows, &scales, groups, 0);
        let row_scales = self.transfer(Tensor::new(&[groups, count], row_scales))?;
        let to = self.allocate(&[count, width], DType::E4m3)?;
        self.float8_into(rows, &Columns::all(width), &to)?;
        Ok(Some(CudaProjection { w_scale: Some(row_scales), ..CudaProjection::wide(to) }))
    }

    /// The scales of each parameter in `rows`; `None` if one is not stored in float8.
    pub(super) fn scales(&self, rows: &[RowRange]) -> Option<Vec<ScalesOf<'w>>> {
        let of = |rows: &RowRange| {
            let param = self.architecture.params.get(rows.param);
            self.checkpoint.scales(param).filter(|_| param.is_kept(UnexpandedWeights::Projections))
        };
        rows.iter().map(of).collect()
    }

    /// A column range of float8 rows, to the start of an existing tensor.
    pub(super) fn float8_into(
        &self,
        rows: &[RowRange],
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

    /// Refuses shapes that no kernel supports at load time.
    fn check_inputs(&self, of: &Projection, read: usize) -> Result<(), ModelError> {
        let Some(rows) = of.rows.first().filter(|_| !of.inputs.is_multiple_of(read)) else {
            return Ok(());
        };
        let Projection { inputs, .. } = of;
        let name = &self.architecture.params.get(rows.param).name;
        let what =
            format!("tensor `{name}` has {inputs} inputs, expected a multiple of {read} on a GPU");
        Err(ModelError::call(what, "the processor multiplies it: --backend cpu"))
    }

    /// Transposes of several groups of rows `[count, width]` with equal counts: `[groups, width, count]`.
    fn transposed(&self, groups: &[RowRange], width: usize) -> Result<Tensor, ModelError> {
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

    fn transfer(&self, values: Tensor) -> Result<Tensor, ModelError> {
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

    /// Uses the embedding's matrix if the two are tied.
    fn head(&self, of: &Projection) -> Result<CudaProjection, ModelError> {
        let name = |id| &self.architecture.params.get(id).name;
        let embedding = name(self.architecture.embedding);
        if of.bias.is_empty() && of.rows.iter().any(|rows| name(rows.param) == embedding) {
            // A rank has a range of the head's rows.
            let w = self.embedding.rows(self.architecture.first_of_head(), of.outputs());
            return Ok(CudaProjection::wide(w.map_err(failed)?));
        }
        self.projection(of)
    }

    fn gated(&self, of: &Projection) -> Result<CudaProjection, ModelError> {
        self.projection(of)
    }

    fn heads(&self, of: &[RowRange], width: usize, transposed: bool) -> Result<Tensor, ModelError> {
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

    /// Zero-initialized: values read beyond a sequence's keys are masked, but a NaN would survive the mask.
    fn cache(&mut self, keys: [usize; 2], values: Values) -> Result<CacheId, ModelError> {
        let pool = |[heads, dim]: [usize; 2]| {
            let shape = [self.pages.pooled(), BLOCK, heads, dim];
            Tensor::zeros(self.stream, &shape, DType::Bf16).map_err(failed)
        };
        let (keys, (values, value_dim)) = match values {
            Values::Separate(values) => (pool(keys)?, (Some(pool(values)?), values[1])),
            Values::InKeys(width) => (pool(keys)?, (None, width)),
        };
        self.memory.caches.push(Cache { keys, values, value_dim });
        Ok(CacheId(self.memory.caches.len() - 1))
    }
}

/// A range of consecutive columns of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) of: Range<usize>,
    /// Width of the whole matrix.
    pub(super) width: usize,
}

impl Columns {
    pub(super) fn all(width: usize) -> Self {
        Self { of: 0..width, width }
    }
}

/// Scales per row of float8 rows.
pub(super) fn float8_groups(scales: &[ScalesOf<'_>], width: usize) -> usize {
    let whole = scales.iter().all(|scales| scales.is_of_rows());
    if whole { 1 } else { width.div_ceil(SCALED) }
}

/// Scales `[groups, rows]` of concatenated rows, for columns starting at `first`.
pub(super) fn float8_scales(
    rows: &[RowRange],
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
    /// Scales of w in float8 or integers.
    w_scale: Option<Tensor>,
    /// Zero points of w in 4-bit integers.
    w_zero: Option<Tensor>,
    /// Offsets instead of zero points, if those are not integers.
    w_offset: Option<Tensor>,
    /// Group size: columns that share a scale.
    w_group: usize,
    bias: Option<Tensor>,
}

impl CudaProjection {
    /// A bfloat16 projection without a bias.
    fn wide(w: Tensor) -> Self {
        Self { w, w_scale: None, w_zero: None, w_offset: None, w_group: SCALED, bias: None }
    }

    /// A projection of quantized weights with this group size.
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
