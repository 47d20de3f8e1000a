// scan_ops_gpu.h: cumulative sums and products along an axis.
#include "evidence_op.h"
#include "tensorflow/core/kernels/scan_ops_gpu.h"

namespace tensorflow {
namespace {

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  const GPUDevice& device = context->eigen_device<GPUDevice>();
  TTypes<float, 3>::ConstTensor x(in, 1, size, 1);
  TTypes<float, 3>::Tensor y(out, 1, size, 1);
  functor::LaunchScan<float, functor::Sum<float>>(device, x, y, functor::Sum<float>(), false, false);
  functor::LaunchScan<float, functor::Prod<float>>(device, x, y, functor::Prod<float>(), true, true);
  return absl::OkStatus();
}

EVIDENCE_OP("HpcdlScan", Run);

}  // namespace
}  // namespace tensorflow
