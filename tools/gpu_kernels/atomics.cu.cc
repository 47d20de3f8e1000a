// gpu_device_functions.h: atomic operations, also on half and double, which old GPUs lack.
#include "evidence_op.h"

namespace tensorflow {
namespace {

__global__ void Sums(const int size, const float* in, float* out, double* wide, Eigen::half* small) {
  GPU_1D_KERNEL_LOOP(i, size) {
    GpuAtomicAdd(out, in[i]);
    GpuAtomicAdd(wide, static_cast<double>(in[i]));
    GpuAtomicAdd(small, static_cast<Eigen::half>(in[i]));
    GpuAtomicMax(out + size - 1, in[i]);
    GpuAtomicMul(wide, static_cast<double>(in[i]));
  }
}

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  const GPUDevice& device = context->eigen_device<GPUDevice>();
  Tensor wide, small;
  TF_RETURN_IF_ERROR(context->allocate_temp(DT_DOUBLE, TensorShape({1}), &wide));
  TF_RETURN_IF_ERROR(context->allocate_temp(DT_HALF, TensorShape({2}), &small));
  GpuLaunchConfig config = GetGpuLaunchConfig(size, device);
  return GpuLaunchKernel(Sums, config.block_count, config.thread_per_block, 0, device.stream(),
                         size, in, out, wide.flat<double>().data(),
                         small.flat<Eigen::half>().data());
}

EVIDENCE_OP("HpcdlAtomics", Run);

}  // namespace
}  // namespace tensorflow
