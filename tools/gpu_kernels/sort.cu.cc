// gpu_prim_helpers.h: radix sort of CUB.
#include "evidence_op.h"
#include "tensorflow/core/kernels/gpu_prim_helpers.h"

namespace tensorflow {
namespace {

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  Tensor order;
  TF_RETURN_IF_ERROR(context->allocate_temp(DT_INT32, TensorShape({size}), &order));
  int* indices = order.flat<int>().data();
  TF_RETURN_IF_ERROR(GpuRadixSort(context, size, in, out, static_cast<const int*>(nullptr), indices));
  return GpuRadixSortDescending(context, size, in, out, static_cast<const int*>(nullptr), indices);
}

EVIDENCE_OP("HpcdlSort", Run);

}  // namespace
}  // namespace tensorflow
