// random_distributions.h: Philox in device code, uniform and normal, float and half.
#include "evidence_op.h"
#include "tensorflow/core/lib/random/philox_random.h"
#include "tensorflow/core/lib/random/random_distributions.h"

namespace tensorflow {
namespace {

template <typename Distribution>
__global__ void Add(random::PhiloxRandom generator, const int size, const float* in, float* out) {
  Distribution distribution;
  GPU_1D_KERNEL_LOOP(i, size / Distribution::kResultElementCount) {
    random::PhiloxRandom own = generator;
    own.Skip(i);
    const auto drawn = distribution(&own);
    for (int k = 0; k < Distribution::kResultElementCount; ++k) {
      const int place = i * Distribution::kResultElementCount + k;
      out[place] = in[place] + static_cast<float>(drawn[k]);
    }
  }
}

template <typename Distribution>
absl::Status Launch(const GPUDevice& device, const float* in, float* out, int size) {
  GpuLaunchConfig config = GetGpuLaunchConfig(size, device);
  return GpuLaunchKernel(Add<Distribution>, config.block_count, config.thread_per_block, 0,
                         device.stream(), random::PhiloxRandom(1, 2), size, in, out);
}

absl::Status Run(OpKernelContext* context, const float* in, float* out, int size) {
  using random::PhiloxRandom;
  const GPUDevice& device = context->eigen_device<GPUDevice>();
  using Uniform = random::UniformDistribution<PhiloxRandom, float>;
  TF_RETURN_IF_ERROR(Launch<Uniform>(device, in, out, size));
  using Normal = random::NormalDistribution<PhiloxRandom, float>;
  TF_RETURN_IF_ERROR(Launch<Normal>(device, in, out, size));
  using Half = random::NormalDistribution<PhiloxRandom, Eigen::half>;
  return Launch<Half>(device, in, out, size);
}

EVIDENCE_OP("HpcdlRandom", Run);

}  // namespace
}  // namespace tensorflow
