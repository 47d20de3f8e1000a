// reduction_gpu_kernels.cu.h: sums of everything, of rows and of columns.
#include "evidence_op.h"
#include "tensorflow/core/kernels/reduction_gpu_kernels.cu.h"

namespace tensorflow {
namespace {

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  gpuStream_t stream = context->eigen_device<GPUDevice>().stream();
  functor::Sum<float> sum;
  const int columns = size % 8 == 0 ? 8 : 1;
  functor::LaunchScalarReduction<float>(context, out, in, size, sum, 0.0f, stream);
  functor::LaunchRowReduction<float>(context, out, in, size / columns, columns, sum, 0.0f, stream);
  functor::LaunchColumnReduction<float>(context, out, in, size / columns, columns, sum, 0.0f,
                                        stream);
  return absl::OkStatus();
}

EVIDENCE_OP("HpcdlReduction", Run);

}  // namespace
}  // namespace tensorflow
