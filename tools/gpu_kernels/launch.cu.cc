// gpu_launch_config.h, gpu_kernel_helper.h: a grid for so many elements, and the loop over them.
#include "evidence_op.h"

namespace tensorflow {
namespace {

__global__ void Double(const int size, const float* __restrict__ in, float* __restrict__ out) {
  GPU_1D_KERNEL_LOOP(i, size) { out[i] = 2.0f * ldg(in + i); }
}

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  const GPUDevice& device = context->eigen_device<GPUDevice>();
  GpuLaunchConfig config = GetGpuLaunchConfig(size, device, Double, 0, 0);
  return GpuLaunchKernel(Double, config.block_count, config.thread_per_block, 0, device.stream(),
                         size, in, out);
}

EVIDENCE_OP("HpcdlLaunch", Run);

}  // namespace
}  // namespace tensorflow
