// gpu_device_functions.h: shuffles and votes of a warp, which changed with Volta.
#include "evidence_op.h"

namespace tensorflow {
namespace {

__global__ void WarpSums(const int size, const float* in, float* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned active = GpuBallotSync(kCudaWarpAll, i < size);
  float sum = i < size ? in[i] : 0.0f;
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += GpuShuffleDownSync(kCudaWarpAll, sum, offset);
  }
  sum = GpuShuffleSync(kCudaWarpAll, sum, 0);
  if (i < size) out[i] = GpuAnySync(active, sum > 0.0f) ? sum : GpuShuffleXorSync(active, sum, 1);
}

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  const GPUDevice& device = context->eigen_device<GPUDevice>();
  return GpuLaunchKernel(WarpSums, (size + 127) / 128, 128, 0, device.stream(), size, in, out);
}

EVIDENCE_OP("HpcdlWarp", Run);

}  // namespace
}  // namespace tensorflow
