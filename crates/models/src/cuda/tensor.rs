//! Tensors on the GPU, and parts of them.

use device::cuda::{Buffer, CudaError, Stream};
use kernels::cuda::Bound;
use kernels::{DType, OpError, Tensor};
use std::sync::Arc;

/// A tensor on the GPU, or some columns of the tokens of one.
#[derive(Debug, Clone)]
pub(super) struct GpuTensor {
    pub(super) buffer: Arc<Buffer>,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    /// Elements from one token's values to the next one's, where tokens lie apart.
    row: Option<usize>,
}

/// An error of the device outside any op.
pub(super) fn device_error(error: CudaError) -> OpError {
    OpError::Cuda { op: "model", error }
}

impl GpuTensor {
    pub(super) fn new(buffer: Arc<Buffer>, shape: &[usize], dtype: DType) -> Self {
        Self { buffer, shape: shape.to_vec(), dtype, row: None }
    }

    /// A tensor of undefined content.
    pub(super) fn allocate(
        stream: &Stream,
        shape: &[usize],
        dtype: DType,
    ) -> Result<Self, OpError> {
        let bytes = shape.iter().product::<usize>() * dtype.bytes();
        let buffer = stream.allocate(bytes).map_err(device_error)?;
        Ok(Self::new(Arc::new(buffer), shape, dtype))
    }

    /// A tensor of zeros.
    pub(super) fn zeros(stream: &Stream, shape: &[usize], dtype: DType) -> Result<Self, OpError> {
        let tensor = Self::allocate(stream, shape, dtype)?;
        // Fills whole words: an odd number of 16-bit values has a last one of its own.
        let filled = match dtype.bytes() {
            2 => stream.fill16(&tensor.buffer, 0),
            _ => stream.fill32(&tensor.buffer, 0),
        };
        filled.map_err(device_error)?;
        Ok(tensor)
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub(super) fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// The same values in another shape.
    pub(super) fn shaped(&self, shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), ..self.clone() }
    }

    /// `count` columns from `first` on of a matrix `[tokens, columns]`, in the shape that an op wants.
    pub(super) fn columns(
        &self,
        first: usize,
        count: usize,
        shape: &[usize],
    ) -> Result<Self, OpError> {
        let (tokens, width) = (self.shape[0], self.elements() / self.shape[0].max(1));
        // The last token's columns end before the row does.
        let bytes = ((tokens.max(1) - 1) * width + count) * self.dtype.bytes();
        let part = self.buffer.part(first * self.dtype.bytes(), bytes).map_err(device_error)?;
        let row = (tokens > 1).then_some(width);
        Ok(Self { buffer: Arc::new(part), shape: shape.to_vec(), dtype: self.dtype, row })
    }

    /// `count` rows from `first` on, counted in the first dimension.
    pub(super) fn rows(&self, first: usize, count: usize) -> Result<Self, OpError> {
        let row = self.shape[1..].iter().product::<usize>() * self.dtype.bytes();
        let part = self.buffer.part(first * row, count * row).map_err(device_error)?;
        let mut shape = self.shape.clone();
        shape[0] = count;
        Ok(Self::new(Arc::new(part), &shape, self.dtype))
    }

    /// How an op is given it.
    pub(super) fn bound(&self) -> Bound {
        Bound { buffer: Arc::clone(&self.buffer), row: self.row }
    }

    /// The tensor in host memory.
    pub(super) fn to_host(&self, stream: &Stream) -> Result<Tensor, OpError> {
        let mut host = Tensor::poisoned(&self.shape, self.dtype);
        stream.read(&self.buffer, host.bytes_mut()).map_err(device_error)?;
        Ok(host)
    }

    /// Float32 values, copied to the host.
    pub(super) fn read(&self, stream: &Stream) -> Result<Vec<f32>, OpError> {
        Ok(self.to_host(stream)?.view::<f32>().map(<[f32]>::to_vec).unwrap_or_default())
    }
}
