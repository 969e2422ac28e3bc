//! Weight matrices of all experts of a layer stacked in one tensor, quantized as in the file if the op `moe` supports
//! it.

use super::failed;
use super::weights::{Columns, CudaProjection, Weights, float8_groups, float8_scales, integers};
use crate::ModelError;
use crate::params::Projection;
use crate::program::Loader;
use ops::linear::SCALED;
use ops::{DType, OpError, Tensor};
use ops_cuda::moe::reads_once;
use std::ops::Range;

/// A matrix of an expert: a column range of a projection.
pub(super) struct Matrix {
    of: Projection,
    columns: Columns,
    /// For MXFP4 files, the scale of each row with which all of its values are exact in float8.
    float8_scales: Option<Vec<f32>>,
}

impl Matrix {
    /// The whole projection.
    pub(super) fn whole(of: &Projection, weights: &Weights<'_, '_>) -> Result<Self, ModelError> {
        Self::part(of, 0..of.inputs, weights)
    }

    /// A column range.
    pub(super) fn part(
        of: &Projection,
        columns: Range<usize>,
        weights: &Weights<'_, '_>,
    ) -> Result<Self, ModelError> {
        let float8_scales = weights.mxfp4_scales(&of.rows)?;
        let columns = Columns { of: columns, width: of.inputs };
        Ok(Self { of: of.clone(), columns, float8_scales })
    }

    /// Scales per row, given a group size or one group per row; `None` if the column range cuts through groups.
    fn groups(&self, group: Option<usize>) -> Option<usize> {
        let Range { start, end } = self.columns.of;
        let Some(group) = group else { return Some(1) };
        let ends = end.is_multiple_of(group) || end == self.columns.width;
        (start.is_multiple_of(group) && ends).then(|| (end - start).div_ceil(group))
    }
}

/// The up and down matrices of experts.
pub(super) type UpDownMatrices = [Vec<Matrix>; 2];

/// The storage format of such matrices. Scales per row are counted for up and for down projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// bfloat16.
    Wide,
    /// float8.
    Float8 { groups: [usize; 2] },
    /// MXFP4, converted to float8 with a scale per row: `moe` has no groups of 32.
    Mxfp4,
    /// Integers.
    Integers {
        dtype: DType,
        /// Group size: columns that share a scale.
        group: usize,
        groups: [usize; 2],
        /// Whether any zero point is not the middle of the range.
        zeros: bool,
    },
}

impl Scheme {
    /// The file's format if `moe` supports it and all matrices share it, otherwise bfloat16.
    pub(super) fn of(weights: &Weights<'_, '_>, both: [&[Matrix]; 2]) -> Self {
        let narrow = Self::mxfp4(both).or_else(|| Self::integers(weights, both));
        narrow.or_else(|| Self::float8(weights, both)).unwrap_or(Self::Wide)
    }

    /// Whether files have all of these matrices in this format, so that they are not expanded.
    pub(super) fn is_of(self, weights: &Weights<'_, '_>, both: [&[Matrix]; 2]) -> bool {
        let wide = |of: &Matrix| {
            weights.scales(&of.of.rows).is_none() && weights.alike(&of.of.rows).is_none()
        };
        self == Self::of(weights, both)
            && (self != Self::Wide || both.into_iter().flatten().all(wide))
    }

    /// For rows that are exact in float8; others become bfloat16.
    fn mxfp4(both: [&[Matrix]; 2]) -> Option<Self> {
        let read = |of: &Matrix| {
            of.float8_scales.is_some() && reads_once(DType::E4m3, of.columns.of.len(), None)
        };
        both.into_iter().flatten().all(read).then_some(Self::Mxfp4)
    }

    fn float8(weights: &Weights<'_, '_>, [up, down]: [&[Matrix]; 2]) -> Option<Self> {
        let groups = |of: &[Matrix]| {
            of.iter().try_fold(1, |most, of| {
                let scales = weights.scales(&of.of.rows)?;
                let blocks = (float8_groups(&scales, of.columns.width) > 1).then_some(SCALED);
                let groups = of.groups(blocks)?;
                let group = (groups > 1).then_some(SCALED);
                let read = reads_once(DType::E4m3, of.columns.of.len(), group);
                read.then_some(most.max(groups))
            })
        };
        Some(Self::Float8 { groups: [groups(up)?, groups(down)?] })
    }

    fn integers(weights: &Weights<'_, '_>, [up, down]: [&[Matrix]; 2]) -> Option<Self> {
        let (mut form, mut zeros) = (None, false);
        let mut groups_of = |of: &[Matrix]| {
            let mut all = None;
            for of in of {
                for values in weights.alike(&of.of.rows)? {
                    let integers = values.of;
                    let group = (values.groups() > 1).then_some(integers.group);
                    let groups = of.groups(group)?;
                    let group = group.filter(|_| groups > 1);
                    let dtype = integers::type_of(integers);
                    zeros |= integers.zeros;
                    // A whole-row scale is compatible with any groups, but not within the same projection.
                    let (known, wanted) = form.get_or_insert((dtype, group));
                    let same = group.is_none() || wanted.is_none() || *wanted == group;
                    let read = reads_once(dtype, of.columns.of.len(), group);
                    if *known != dtype || !same || !read || *all.get_or_insert(groups) != groups {
                        return None;
                    }
                    *wanted = wanted.or(group);
                }
            }
            all
        };
        let groups = [groups_of(up)?, groups_of(down)?];
        let (dtype, group) = form?;
        Some(Self::Integers { dtype, group: group.unwrap_or(SCALED), groups, zeros })
    }

    /// Group size: columns that share a scale.
    pub(super) fn group(self) -> usize {
        if let Self::Integers { group, .. } = self { group } else { SCALED }
    }
}

/// A stacked matrix of all experts, as the op takes it.
pub(super) struct Stacked {
    /// `[experts, rows, columns]`.
    pub(super) matrices: Tensor,
    /// Scales of quantized matrices, `[experts, groups, rows]`.
    pub(super) scales: Option<Tensor>,
    /// Offsets of integers with zero points, in the shape of the scales.
    pub(super) offsets: Option<Tensor>,
    /// Zero points of the last experts for `linear`, in the shape of the scales.
    zeros: Option<Tensor>,
    group: usize,
}

impl Stacked {
    /// Loads matrices in a format, up or `down` projections; the last ones are also usable by `linear`.
    pub(super) fn new(
        scheme: Scheme,
        (of, down): (&[Matrix], bool),
        last: usize,
        weights: &Weights<'_, '_>,
    ) -> Result<Self, ModelError> {
        let size = |of: &Matrix| [of.of.outputs(), of.columns.of.len()];
        let [rows, columns] = of.first().map_or([0; 2], size);
        let (dtype, groups, zeros) = match scheme {
            Scheme::Wide => (DType::Bf16, [1; 2], false),
            Scheme::Float8 { groups } => (DType::E4m3, groups, false),
            Scheme::Mxfp4 => (DType::E4m3, [1; 2], false),
            Scheme::Integers { dtype, groups, zeros, .. } => (dtype, groups, zeros),
        };
        let groups = groups[usize::from(down)];
        let matrices = weights.allocate(&[of.len(), rows, columns], dtype)?;
        let [mut scales, mut offsets] = [(); 2].map(|()| Vec::new());
        let mut zero_points = Vec::new();
        for (index, Matrix { of, columns, float8_scales: given }) in of.iter().enumerate() {
            let to = own(&matrices, index).map_err(failed)?;
            match scheme {
                Scheme::Wide => weights.matrix_into(&of.rows, columns, &to)?,
                Scheme::Float8 { .. } => {
                    weights.float8_into(&of.rows, columns, &to)?;
                    let own = weights.scales(&of.rows).unwrap_or_default();
                    scales.extend(float8_scales(&of.rows, &own, groups, columns.of.start));
                }
                Scheme::Mxfp4 => {
                    let own = given.as_deref().unwrap_or_default();
                    weights.mxfp4_into(&of.rows, own, columns, &to)?;
                    scales.extend_from_slice(own);
                }
                Scheme::Integers { .. } => {
                    let values = weights.alike(&of.rows).unwrap_or_default();
                    weights.integers_into(&of.rows, &values, columns, &to)?;
                    let scales_and_zeros = integers::Factors::read(&of.rows, &values, false)?;
                    let group = values.first().map_or(1, |values| values.of.group);
                    let first = columns.of.start / group * rows;
                    let own = first..first + groups * rows;
                    let (own_scales, own_zeros) =
                        (&scales_and_zeros.scales[own.clone()], &scales_and_zeros.below[own]);
                    // Exact for 16-bit scales; float32 scales are rounded once.
                    let below = own_scales.iter().zip(own_zeros);
                    offsets.extend(below.map(|(scale, zero)| scale * (zero + 8.0)));
                    zero_points.extend(own_zeros.iter().map(|zero| (zero + 8.0) as u8));
                    scales.extend_from_slice(own_scales);
                }
            }
        }
        zero_points.drain(..zero_points.len() - zero_points.len().min(last * groups * rows));
        let all = [of.len(), groups, rows];
        let narrow = scheme != Scheme::Wide;
        let transfer = |values| weights.transfer(values);
        let zero_points = || Tensor::new(&[last, groups, rows], zero_points);
        Ok(Self {
            matrices,
            scales: narrow.then(|| transfer(Tensor::new(&all, scales))).transpose()?,
            offsets: zeros.then(|| transfer(Tensor::new(&all, offsets))).transpose()?,
            zeros: (zeros && last > 0).then(|| transfer(zero_points())).transpose()?,
            group: scheme.group(),
        })
    }

    /// All but the last experts.
    pub(super) fn without(&self, last: usize) -> Result<Self, OpError> {
        let of = |all: &Tensor| all.rows(0, all.shape()[0] - last);
        Ok(Self {
            matrices: of(&self.matrices)?,
            scales: self.scales.as_ref().map(of).transpose()?,
            offsets: self.offsets.as_ref().map(of).transpose()?,
            zeros: None,
            group: self.group,
        })
    }

    /// One of the last matrices, counted from the end, as `linear` takes it.
    pub(super) fn last(&self, from_end: usize) -> Result<CudaProjection, OpError> {
        let of = |all: &Tensor| own(all, all.shape()[0] - from_end);
        let scales_and_zeros =
            [&self.scales, &self.zeros].map(|all| all.as_ref().map(of).transpose());
        let [scale, zero] = scales_and_zeros;
        Ok(CudaProjection::narrow(of(&self.matrices)?, [scale?, zero?], self.group))
    }
}

/// One expert's part of a tensor.
fn own(all: &Tensor, expert: usize) -> Result<Tensor, OpError> {
    all.rows(expert, 1)?.shaped(&all.shape()[1..])
}
