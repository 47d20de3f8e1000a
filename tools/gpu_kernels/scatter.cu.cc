// scatter_functor_gpu.cu.h: updates of a table by index, with atomic sums.
#include "evidence_op.h"
#include "tensorflow/core/kernels/scatter_functor_gpu.cu.h"

namespace tensorflow {
namespace {

using scatter_op_gpu::ScatterOpCustomKernel;

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  const GPUDevice& device = context->eigen_device<GPUDevice>();
  Tensor indices;
  TF_RETURN_IF_ERROR(context->allocate_temp(DT_INT32, TensorShape({size}), &indices));
  GpuLaunchConfig config = GetGpuLaunchConfig(size, device);
  return GpuLaunchKernel(ScatterOpCustomKernel<float, int, scatter_op::UpdateOp::ADD>,
                         config.block_count, config.thread_per_block, 0, device.stream(), out, in,
                         static_cast<const int*>(indices.flat<int>().data()),
                         static_cast<int>(size), static_cast<int>(size), static_cast<int>(size));
}

EVIDENCE_OP("HpcdlScatter", Run);

}  // namespace
}  // namespace tensorflow
