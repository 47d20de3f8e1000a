// Eigen::half and bfloat16 in device code: arithmetic, comparison, conversion.
#include "evidence_op.h"

namespace tensorflow {
namespace {

template <typename T>
__global__ void Smooth(const int size, const float* in, float* out) {
  GPU_1D_KERNEL_LOOP(i, size) {
    T x = static_cast<T>(in[i]);
    T next = static_cast<T>(in[(i + 1) % size]);
    T mean = (x + next) * static_cast<T>(0.5f);
    out[i] = static_cast<float>(mean > x ? Eigen::numext::exp(-mean) : Eigen::numext::sqrt(x));
  }
}

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  const GPUDevice& device = context->eigen_device<GPUDevice>();
  GpuLaunchConfig config = GetGpuLaunchConfig(size, device);
  TF_RETURN_IF_ERROR(GpuLaunchKernel(Smooth<Eigen::half>, config.block_count,
                                     config.thread_per_block, 0, device.stream(), size, in, out));
  return GpuLaunchKernel(Smooth<Eigen::bfloat16>, config.block_count, config.thread_per_block, 0,
                         device.stream(), size, in, out);
}

EVIDENCE_OP("HpcdlHalf", Run);

}  // namespace
}  // namespace tensorflow
