// dy = do silu(z): the gradient of the scan's output before the gate. Launched before the kernels in float32 arithmetic if z is given.
//
// output_gradient [B, T, H, P] and dy f32, contiguous; z the same with z_row elements between tokens; z_row and width = H * P are
// multiples of VECTOR.
//
// Launch: grid (total tokens, ceil(width / VECTOR / 256)); block (256). Requires storage.cuh.
// Macros: DTYPE (f32, bf16, f16), VECTOR (1, 2, 4, 8: elements of a vector of 16 bytes or less).

extern "C" __global__ void __launch_bounds__(256)
    ssd_gradient_gate(const unsigned char* __restrict__ output_gradient, const unsigned char* __restrict__ z,
                      float* __restrict__ dy, int width, int z_row) {
  const i64 token = blockIdx.x;
  for (int column = (blockIdx.y * 256 + threadIdx.x) * VECTOR; column < width; column += gridDim.y * 256 * VECTOR) {
    Stored<VECTOR> gate, given;
    gate.load(z + (token * z_row + column) * ELEMENT_BYTES);
    given.load(output_gradient + (token * width + column) * ELEMENT_BYTES);
#pragma unroll
    for (int e = 0; e < VECTOR; e++) dy[token * width + column + e] = given.get(e) * silu(gate.get(e));
  }
}
