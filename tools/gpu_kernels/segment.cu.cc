// segment_reduction_ops_gpu.cu.h: sums by segment, sorted and unsorted.
#include "evidence_op.h"
#include "tensorflow/core/kernels/segment_reduction_ops_gpu.cu.h"

namespace tensorflow {
namespace {

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  const GPUDevice& device = context->eigen_device<GPUDevice>();
  Tensor ids, offsets;
  TF_RETURN_IF_ERROR(context->allocate_temp(DT_INT32, TensorShape({size}), &ids));
  TF_RETURN_IF_ERROR(context->allocate_temp(DT_INT32, TensorShape({size + 1}), &offsets));
  const int* segments = ids.flat<int>().data();
  TF_RETURN_IF_ERROR(LaunchSegmentOffsetsKernel(device, size, size, segments,
                                                offsets.flat<int>().data()));
  GpuLaunchConfig config = GetGpuLaunchConfig(size, device);
  return GpuLaunchKernel(UnsortedSegmentCustomKernel<float, int, AtomicSumOpGpu>,
                         config.block_count, config.thread_per_block, 0, device.stream(),
                         static_cast<int64_t>(size), static_cast<int64_t>(1),
                         static_cast<int64_t>(size), segments, in, out);
}

EVIDENCE_OP("HpcdlSegment", Run);

}  // namespace
}  // namespace tensorflow
