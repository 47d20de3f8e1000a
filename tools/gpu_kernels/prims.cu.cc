// gpu_prim.h: CUB of the CUDA release, by block and by device.
#include "evidence_op.h"
#include "tensorflow/core/kernels/gpu_prim.h"

namespace tensorflow {
namespace {

__global__ void BlockSums(const int size, const float* in, float* out) {
  using Reduce = gpuprim::BlockReduce<float, 128>;
  __shared__ typename Reduce::TempStorage scratch;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float sum = Reduce(scratch).Sum(i < size ? in[i] : 0.0f);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  const GPUDevice& device = context->eigen_device<GPUDevice>();
  TF_RETURN_IF_ERROR(GpuLaunchKernel(BlockSums, (size + 127) / 128, 128, 0, device.stream(), size,
                                     in, out));
  size_t bytes = 0;
  auto sum = [&](void* scratch) {
    return gpuprim::DeviceReduce::Sum(scratch, bytes, in, out, size, device.stream());
  };
  if (sum(nullptr) != gpuSuccess) return errors::Internal("DeviceReduce: no size");
  Tensor scratch;
  TF_RETURN_IF_ERROR(
      context->allocate_temp(DT_INT8, TensorShape({static_cast<int64_t>(bytes)}), &scratch));
  if (sum(scratch.flat<int8>().data()) != gpuSuccess) return errors::Internal("DeviceReduce");
  return absl::OkStatus();
}

EVIDENCE_OP("HpcdlPrims", Run);

}  // namespace
}  // namespace tensorflow
