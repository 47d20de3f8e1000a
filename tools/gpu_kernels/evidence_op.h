// An operation of TensorFlow around a function that launches kernels: float in, float out.
// Each .cu.cc beside this file includes it first, uses one part of TensorFlow's GPU headers, and
// ends with EVIDENCE_OP(Name, Function).
#ifndef HPCDL_TOOLS_GPU_KERNELS_EVIDENCE_OP_H_
#define HPCDL_TOOLS_GPU_KERNELS_EVIDENCE_OP_H_

#define EIGEN_USE_GPU

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/gpu_kernel_helper.h"

namespace tensorflow {
using GPUDevice = Eigen::GpuDevice;
}  // namespace tensorflow

#define EVIDENCE_OP(NAME, FUNCTION)                                               \
  REGISTER_OP(NAME).Input("x: float").Output("y: float");                         \
  class EvidenceOp : public OpKernel {                                            \
   public:                                                                        \
    explicit EvidenceOp(OpKernelConstruction* context) : OpKernel(context) {}     \
    void Compute(OpKernelContext* context) override {                             \
      const Tensor& x = context->input(0);                                        \
      Tensor* y = nullptr;                                                        \
      OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &y));        \
      const int size = static_cast<int>(x.NumElements());                         \
      if (size == 0) return;                                                      \
      OP_REQUIRES_OK(context, FUNCTION(context, x.flat<float>().data(),           \
                                       y->flat<float>().data(), size));           \
    }                                                                             \
  };                                                                              \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(DEVICE_GPU), EvidenceOp)

#endif  // HPCDL_TOOLS_GPU_KERNELS_EVIDENCE_OP_H_
