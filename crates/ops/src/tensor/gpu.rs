//! Tensors on a GPU, and parts of them.

use super::{Data, Dims, Tensor, row_major};
use crate::{DType, OpError};
use device::{Buffer, DeviceError, Queue};
use std::sync::Arc;

/// Elements on a GPU.
#[derive(Debug, Clone)]
pub(super) struct OnGpu {
    dtype: DType,
    buffer: Arc<Buffer>,
    /// Planning values of integers whose actual values are only on the GPU.
    planned: Option<Arc<[i32]>>,
}

impl PartialEq for OnGpu {
    /// Whether they are the same memory.
    fn eq(&self, other: &Self) -> bool {
        let place = |of: &Self| (of.dtype, of.buffer.address(), of.buffer.bytes());
        place(self) == place(other)
    }
}

impl OnGpu {
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn planned(&self) -> Option<&[i32]> {
        self.planned.as_deref()
    }
}

fn failed(error: DeviceError) -> OpError {
    OpError::Device { op: "tensor", error }
}

fn refused(what: String) -> OpError {
    failed(DeviceError::Refused { what })
}

impl Tensor {
    /// The tensor at the start of a buffer.
    ///
    /// # Errors
    /// [`OpError::Device`] when the buffer is shorter.
    pub fn on_gpu(
        buffer: impl Into<Arc<Buffer>>,
        shape: &[usize],
        dtype: DType,
    ) -> Result<Self, OpError> {
        Self::strided(buffer.into(), shape, &row_major(shape), dtype)
    }

    /// The tensor at the start of a buffer with these `strides`, in elements.
    ///
    /// # Errors
    /// As [`Tensor::on_gpu`].
    pub fn strided(
        buffer: Arc<Buffer>,
        shape: &[usize],
        strides: &[usize],
        dtype: DType,
    ) -> Result<Self, OpError> {
        if strides.len() != shape.len() {
            return Err(refused(format!("strides {strides:?} of a tensor of {shape:?}")));
        }
        let strides = Dims::from_slice(strides);
        let data = Data::Gpu(OnGpu { dtype, buffer: Arc::clone(&buffer), planned: None });
        let tensor = Self { shape: Dims::from_slice(shape), strides, data };
        if buffer.bytes() < tensor.extent() {
            let (wanted, given) = (tensor.extent(), buffer.bytes());
            return Err(refused(format!(
                "a tensor of {shape:?} {dtype} wants {wanted} bytes, its buffer has {given}"
            )));
        }
        Ok(tensor)
    }

    /// Integers on a GPU, which kernels read there, with `planned` values for planning on the host: the integers themselves or
    /// bounds of them.
    ///
    /// # Errors
    /// [`OpError::Device`] if the buffer is shorter, or the number of planning values differs.
    pub fn integers(
        buffer: impl Into<Arc<Buffer>>,
        shape: &[usize],
        planned: Arc<[i32]>,
    ) -> Result<Self, OpError> {
        let mut tensor = Self::on_gpu(buffer, shape, DType::I32)?;
        if planned.len() != tensor.len() {
            return Err(refused(format!("{} integers for shape {shape:?}", planned.len())));
        }
        if let Data::Gpu(on_gpu) = &mut tensor.data {
            on_gpu.planned = Some(planned);
        }
        Ok(tensor)
    }

    /// A tensor on a GPU, of undefined content.
    ///
    /// # Errors
    /// [`OpError::Device`] when there is no memory for it.
    pub fn allocate(queue: &impl Queue, shape: &[usize], dtype: DType) -> Result<Self, OpError> {
        let bytes = dtype.bytes_of(shape.iter().product());
        Self::on_gpu(queue.allocate(bytes).map_err(failed)?, shape, dtype)
    }

    /// As [`Tensor::allocate`], for content that is not read after other work was queued ([`Queue::allocate_transient`]).
    ///
    /// # Errors
    /// As [`Tensor::allocate`].
    pub fn transient(queue: &impl Queue, shape: &[usize], dtype: DType) -> Result<Self, OpError> {
        let bytes = dtype.bytes_of(shape.iter().product());
        Self::on_gpu(queue.allocate_transient(bytes).map_err(failed)?, shape, dtype)
    }

    /// A tensor of zeros on a GPU.
    ///
    /// # Errors
    /// As [`Tensor::allocate`].
    pub fn zeros(queue: &impl Queue, shape: &[usize], dtype: DType) -> Result<Self, OpError> {
        let tensor = Self::allocate(queue, shape, dtype)?;
        if let Some(buffer) = tensor.buffer() {
            // `fill32` fills whole words, so an odd number of 16-bit values needs `fill16`.
            let filled = match dtype.bytes() {
                2 => queue.fill16(buffer, 0),
                _ => queue.fill32(buffer, 0),
            };
            filled.map_err(failed)?;
        }
        Ok(tensor)
    }

    /// Its memory from its first element on; `None` for a tensor in host memory.
    pub fn buffer(&self) -> Option<&Arc<Buffer>> {
        match &self.data {
            Data::Gpu(on_gpu) => Some(&on_gpu.buffer),
            _ => None,
        }
    }

    /// Its memory on a GPU.
    ///
    /// # Errors
    /// [`OpError::Device`] if it is in host memory.
    pub fn on(&self) -> Result<&Arc<Buffer>, OpError> {
        self.buffer()
            .ok_or_else(|| refused("a tensor in host memory is wanted on a GPU".to_owned()))
    }

    /// Bytes from its first element to the end of its last.
    pub fn extent(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        let last: usize =
            self.shape.iter().zip(&self.strides).map(|(size, stride)| (size - 1) * stride).sum();
        self.dtype().bytes_of(last + 1)
    }

    /// A row-major tensor on a GPU in another shape, over the same memory.
    ///
    /// # Errors
    /// [`OpError::Device`] if the number of elements differs, or it is not contiguous.
    pub fn shaped(&self, shape: &[usize]) -> Result<Self, OpError> {
        if shape.iter().product::<usize>() != self.len() || !self.is_row_major() {
            return Err(refused(format!("{:?} in the shape {shape:?}", self.shape)));
        }
        Self::on_gpu(Arc::clone(self.on()?), shape, self.dtype())
    }

    /// `count` columns from `first` on of a row-major matrix `[tokens, columns]` on a GPU, in the shape that an op wants,
    /// whose last dimensions are those of one token.
    ///
    /// # Errors
    /// [`OpError::Device`] if they are out of bounds.
    pub fn columns(&self, first: usize, count: usize, shape: &[usize]) -> Result<Self, OpError> {
        let tokens = self.shape[0];
        let width = self.len() / tokens.max(1);
        let bytes = |elements| self.dtype().bytes_of(elements);
        // Dimensions of one token are the last ones; those before them are strides of whole rows.
        let mut strides = row_major(shape);
        let mut row = width;
        let mut inner = 1;
        let leading = shape.iter().rev().take_while(|size| {
            inner *= **size;
            inner <= count
        });
        let leading = shape.len() - leading.count();
        for at in (0..leading).rev() {
            strides[at] = row;
            row *= shape[at];
        }
        // The last token's columns end before the row does.
        let long = bytes((tokens.max(1) - 1) * width + count);
        let part = self.on()?.part(bytes(first), long).map_err(failed)?;
        Self::strided(Arc::new(part), shape, &strides, self.dtype())
    }

    /// `count` rows of a row-major tensor on a GPU from `first` on, counted in the first dimension.
    ///
    /// # Errors
    /// [`OpError::Device`] if they are out of bounds, or it is not contiguous.
    pub fn rows(&self, first: usize, count: usize) -> Result<Self, OpError> {
        if !self.is_row_major() {
            return Err(refused(format!("rows of a strided {:?}", self.shape)));
        }
        let row: usize = self.shape[1..].iter().product();
        let bytes = |rows| self.dtype().bytes_of(rows * row);
        let part = self.on()?.part(bytes(first), bytes(count)).map_err(failed)?;
        let mut shape = self.shape.clone();
        shape[0] = count;
        Self::on_gpu(part, &shape, self.dtype())
    }

    /// Elements from one token's values to the next one's, where a token has `width` of them and the dimensions before are
    /// those of tokens; `None` if tokens are not evenly spaced.
    pub fn token_stride(&self, width: usize) -> Option<usize> {
        if self.is_row_major() {
            return Some(width);
        }
        let (mut leading, mut inner) = (self.shape.len(), 1);
        while inner < width && leading > 0 {
            leading -= 1;
            inner *= self.shape[leading];
        }
        let own = row_major(&self.shape[leading..]);
        let fits = |(at, wanted): (usize, &usize)| {
            self.shape[leading + at] == 1 || self.strides[leading + at] == *wanted
        };
        if inner != width || !own.iter().enumerate().all(fits) {
            return None;
        }
        // Dimensions of size 1 do not matter.
        let mut outer = (0..leading).rev().filter(|at| self.shape[*at] > 1);
        let innermost = outer.next()?;
        let (row, mut next) =
            (self.strides[innermost], self.strides[innermost] * self.shape[innermost]);
        for at in outer {
            if self.strides[at] != next {
                return None;
            }
            next *= self.shape[at];
        }
        Some(row)
    }

    /// The tensor in host memory.
    ///
    /// # Errors
    /// [`OpError::Device`] if it cannot be read, or is not contiguous.
    pub fn to_host(&self, queue: &impl Queue) -> Result<Self, OpError> {
        if !self.is_row_major() {
            return Err(refused(format!("a copy of {:?} whose rows lie apart", self.shape)));
        }
        let mut host = Self::poisoned(&self.shape, self.dtype());
        queue.read(self.on()?, host.bytes_mut()).map_err(failed)?;
        Ok(host)
    }

    /// Copies a tensor of as many bytes to this one, on one GPU.
    ///
    /// # Errors
    /// [`OpError::Device`] when one of them is shorter, or the driver refuses.
    pub fn copy_from(&self, from: &Self, queue: &impl Queue) -> Result<(), OpError> {
        queue.copy(from.on()?, self.on()?, self.extent()).map_err(failed)
    }

    /// Fills a tensor on a GPU with zeros, in the order of a queue.
    ///
    /// # Errors
    /// [`OpError::Device`] of the driver.
    pub fn clear(&self, queue: &impl Queue) -> Result<(), OpError> {
        queue.fill32(self.on()?, 0).map_err(failed)
    }
}
