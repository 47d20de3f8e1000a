// gpu_launch_config.h: grids of two dimensions.
#include "evidence_op.h"

namespace tensorflow {
namespace {

__global__ void Transpose(const int rows, const int columns, const float* in, float* out) {
  GPU_AXIS_KERNEL_LOOP(x, columns, X) {
    GPU_AXIS_KERNEL_LOOP(y, rows, Y) { out[x * rows + y] = in[y * columns + x]; }
  }
}

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  const GPUDevice& device = context->eigen_device<GPUDevice>();
  const int columns = size % 2 == 0 ? 2 : 1;
  Gpu2DLaunchConfig config = GetGpu2DLaunchConfig(columns, size / columns, device);
  return GpuLaunchKernel(Transpose, config.block_count, config.thread_per_block, 0,
                         device.stream(), size / columns, columns, in, out);
}

EVIDENCE_OP("HpcdlLaunch2d", Run);

}  // namespace
}  // namespace tensorflow
