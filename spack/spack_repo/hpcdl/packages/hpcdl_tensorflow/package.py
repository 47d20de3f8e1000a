"""The whole stack by one name: `spack install hpcdl-tensorflow cuda_arch=60`."""

from spack_repo.builtin.build_systems.bundle import BundlePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class HpcdlTensorflow(BundlePackage, CudaPackage):
    """TensorFlow, Keras, Horovod and what they need on a Slurm cluster, for one GPU generation."""

    homepage = "https://www.tensorflow.org"

    maintainers("hpcdl")

    version("1.0")

    variant("cuda", default=True, description="For GPUs; without it, for CPUs")
    variant("hpcdl", default=True, description="Bring hpcdl itself along")
    variant("nccl_tests", default=True, when="+cuda", description="Bring nccl-tests along")

    conflicts("cuda_arch=none", when="+cuda", msg="say which GPU, for example cuda_arch=60")

    with default_args(type="run"):
        depends_on("py-tensorflow~mpi")
        for minor in (14, 15):
            depends_on(f"py-keras@2.{minor}", when=f"^py-tensorflow@2.{minor}")
        depends_on("py-horovod@0.28.1 frameworks=tensorflow controllers=mpi")
        depends_on("py-hpcdl", when="+hpcdl")

        with when("+cuda"):
            depends_on("py-horovod+cuda tensor_ops=nccl")
            # Slurm starts the ranks through PMIx; UCX moves data from GPU to GPU.
            depends_on("openmpi+cuda schedulers=slurm fabrics=ucx")
            depends_on("ucx+cuda+gdrcopy+verbs+rc+ud+dc+mlx5_dv+cma")
            for arch in CudaPackage.cuda_arch_values:
                depends_on(f"py-tensorflow+cuda cuda_arch={arch}", when=f"cuda_arch={arch}")
                depends_on(f"py-horovod+cuda cuda_arch={arch}", when=f"cuda_arch={arch}")
                depends_on(
                    f"nccl-tests+mpi cuda_arch={arch}", when=f"+nccl_tests cuda_arch={arch}"
                )

        with when("~cuda"):
            depends_on("py-tensorflow~cuda~nccl")
            depends_on("py-horovod~cuda tensor_ops=mpi")
            depends_on("openmpi schedulers=slurm fabrics=ucx")
